"""Runs scripts under `rca-llm trace` in real processes and reads what they recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rca_llm.readers import read
from rca_llm.run import Run
from rca_llm.trace import Timeline

ROOT = Path(__file__).resolve().parent.parent
TRACE = [sys.executable, "-m", "rca_llm", "trace"]


def environment(**more: str) -> dict[str, str]:
    """This environment outside any trace, with the checkout importable."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RCA_LLM_")}
    return {**env, "PYTHONPATH": str(ROOT), **more}


@dataclass(frozen=True)
class Traced:
    """A finished traced command."""

    run: Run
    status: int
    stdout: str
    stderr: str

    def timeline(self) -> Timeline:
        """What it recorded."""
        return read(self.run.path).timelines[0]


def trace(
    tmp_path: Path, *command: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Traced:
    """Run a command under `rca-llm trace -o tmp_path/run`."""
    path = tmp_path / "run"
    done = subprocess.run(
        [*TRACE, "-o", str(path), *options, "--", *command],
        capture_output=True,
        text=True,
        env=environment() if env is None else env,
        timeout=120,
        check=False,
    )
    return Traced(Run(path), done.returncode, done.stdout, done.stderr)


def trace_ready(path: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start a command under `rca-llm trace -o path`; it has printed its first line."""
    launcher = subprocess.Popen(
        [*TRACE, "-o", str(path), "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert launcher.stdout is not None
    launcher.stdout.readline()
    return launcher


def trace_code(tmp_path: Path, code: str, *options: str) -> Traced:
    """Run Python code under `rca-llm trace`, from a file."""
    script = tmp_path / "script.py"
    script.write_text(code)
    return trace(tmp_path, sys.executable, str(script), options=options)


def texts(timeline: Timeline, table: str, column: str) -> list[str | None]:
    """A text column as strings."""
    return [timeline.text(code) for code in timeline[table][column].tolist()]
