"""Starts and ends the process that samples hardware counters (`rca_llm.probes.counters`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

READY = "ready"
PATIENCE_S = 10.0
PACKAGES = Path(__file__).resolve().parent.parent
"""Where `rca_llm` is imported from, which need not be installed."""


class Counting:
    """The process; it samples until its standard input ends, even where the launcher is killed.

    It is no part of the traced tree: its environment is the launcher's, and its session its own, so
    that a terminal's Ctrl-C does not end it before the command.
    """

    def __init__(self, run: Path, base: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rca_llm.probes.counters", str(run)],
            env=environment(base),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def end(self) -> str:
        """Let it end; what it said: `READY`, or why there are no counters, or none to the end."""
        try:
            said, _ = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
            said = said or "it did not end"
        said, status = said.strip(), self._process.returncode
        if said == READY and status:
            return f"the process that samples them ended early, with {status}"
        return said or f"it ended with {status}"


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment of the process: ours, without what would trace it."""
    env = {name: value for name, value in base.items() if not name.startswith("RCA_LLM_")}
    env.pop("CUDA_INJECTION64_PATH", None)
    path = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{PACKAGES}{os.pathsep}{path}" if path else str(PACKAGES)
    return env
