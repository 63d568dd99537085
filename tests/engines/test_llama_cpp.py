"""Real llama-cpp-python with a tiny model: every completion explained, as the program times it.

Needs an environment with llama-cpp-python (it compiles for many minutes) and gguf;
RCA_LLM_LLAMA_PYTHON names its interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rca_llm.readers import read
from tests.traced import TRACE, environment

PYTHON = os.environ.get("RCA_LLM_LLAMA_PYTHON", "")
if not PYTHON:
    pytest.skip("RCA_LLM_LLAMA_PYTHON is not set (docs/engines.md)", allow_module_level=True)

HERE = Path(__file__).parent
MS = 1_000_000


@dataclass(frozen=True)
class Recorded:
    """One traced run: the program's own stamps, those of an untraced one, and what we say."""

    told: list[dict[str, Any]]
    alone: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    steps: list[dict[str, Any]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("llama")
    model, run = folder / "tiny.gguf", folder / "run.rca"
    subprocess.run([PYTHON, str(HERE / "tiny_gguf.py"), str(model)], check=True)

    def work(name: str, under: list[str]) -> list[dict[str, Any]]:
        command = [*under, PYTHON, str(HERE / "llama_work.py"), str(model), str(folder / name)]
        subprocess.run(command, check=True, env=environment(), capture_output=True)
        rows: list[dict[str, Any]] = json.loads((folder / name).read_text())
        return rows

    told = work("traced.json", [*TRACE, "-o", str(run), "--"])
    summary = read(run).attribute().summary
    rows = sorted(summary["requests"], key=lambda row: row["start_ns"])
    return Recorded(told, work("alone.json", []), rows, summary["steps"])


def test_no_request_is_missing_and_none_is_extra(recorded: Recorded) -> None:
    assert len(recorded.requests) == 4
    assert recorded.requests[2]["id"] == "scoped"
    assert [row["status"] for row in recorded.requests[:3]] == ["finished"] * 3


def test_tokens_are_those_that_the_library_counts(recorded: Recorded) -> None:
    for row, told in zip(recorded.requests[:2], recorded.told, strict=False):
        usage = told["usage"]
        assert row["prompt_tokens"] == usage["prompt_tokens"]
        assert row["output_tokens"] == usage["completion_tokens"]


def test_tracing_changes_no_text(recorded: Recorded) -> None:
    both = [[row["text"] for row in rows] for rows in (recorded.told, recorded.alone)]
    assert both[0] == both[1]


def test_times_are_those_of_the_program(recorded: Recorded) -> None:
    off = [
        abs(row["latency_ns"] - (told["end"] - told["begin"]))
        for row, told in zip(recorded.requests, recorded.told, strict=False)
    ]
    print("latency off by, us:", sorted(ns // 1000 for ns in off))
    assert sorted(off)[len(off) // 2] < 2 * MS


def test_shares_add_up_and_leave_little_unexplained(recorded: Recorded) -> None:
    for row in recorded.requests:
        assert sum(row["parts"].values()) == row["latency_ns"]
    total = sum(row["latency_ns"] for row in recorded.requests)
    other = sum(row["parts"].get("scheduling.other", 0) for row in recorded.requests)
    assert other <= 0.03 * total


def test_a_prompt_is_one_step_and_every_token_after_it_another(recorded: Recorded) -> None:
    first = recorded.steps[0]
    assert (first["prefill_tokens"], first["requests"]) == (13, 1)
    assert [step["decode_tokens"] for step in recorded.steps[1:8]] == [1] * 7
