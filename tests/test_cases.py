"""The acceptance cases beside the tree, run as a user would run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_every_public_case_passes_in_every_file_style(shared: Path, tmp_path: Path) -> None:
    runner = shared / "cases" / "run.py"
    if not runner.is_file():
        pytest.skip("no acceptance cases in ../shared")
    command = [sys.executable, str(runner), "--variants", "--no-hints"]
    command += ["--command", f"{sys.executable} -m rca_llm", "--keep", str(tmp_path / "kept")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    failed = [line for line in ended.stdout.splitlines() if " FAIL" in line]
    assert ended.returncode == 0, "\n".join(failed or [ended.stdout, ended.stderr])
    assert " pass" in ended.stdout
