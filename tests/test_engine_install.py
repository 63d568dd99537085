"""The installer of the engine's environment says why there is none, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("engines") / "vllm.sh"


def _run(folder: Path, python: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "RCA_LLM_"))}
    env = kept | {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull} | variables
    command = ["sh", str(SCRIPT), python, str(folder / "env")]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_an_environment_that_has_vllm_is_used_as_it_is(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    done = _run(tmp_path, "/bin/false", RCA_LLM_VLLM_PYTHON=str(python))
    assert (done.returncode, done.stdout) == (0, f"{python}\n")


def test_without_a_cpu_build_of_torch_the_reason_is_the_answer(tmp_path: Path) -> None:
    done = _run(tmp_path, sys.executable)
    assert (done.returncode, done.stdout) == (1, "no CPU build of torch==2.13.0 here\n")


def test_without_a_virtual_environment_the_reason_is_the_answer(tmp_path: Path) -> None:
    done = _run(tmp_path, "/bin/false")
    assert done.returncode == 1
    assert done.stdout == "no virtual environment could be made with /bin/false\n"
