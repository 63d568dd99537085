"""The example of a plain PyTorch model, traced."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rca_llm.trace import Trace
from tests.traced import ROOT, environment, trace

EXAMPLE = ROOT / "examples" / "torch_model.py"
ANSWERS = {"short": 4, "long prompt": 4, "long answer": 16}


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_every_pass_of_an_instrumented_model_is_a_step_of_its_request(tmp_path: Path) -> None:
    alone = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, env=environment()
    )
    done = trace(tmp_path, sys.executable, str(EXAMPLE))
    assert (done.status, done.stdout) == (0, alone.stdout)
    summary = Trace([done.timeline()]).attribute().summary
    assert {row["id"]: row["output_tokens"] for row in summary["requests"]} == ANSWERS
    assert len(summary["steps"]) == sum(ANSWERS.values())
    for row in summary["requests"]:
        assert sum(row["parts"].values()) == row["latency_ns"]
        assert row["parts"]["compute.cpu"] > 0


def test_without_torch_it_says_what_is_missing() -> None:
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = None\n"
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "torch is not installed" in done.stderr
