"""Real transformers on the CPU: every row of every batch explained, as the program times it.

Needs an environment with torch for the CPU and transformers; RCA_LLM_VLLM_PYTHON names its
interpreter (`make test-engines`), RCA_LLM_HF_PYTHON another one, to try other versions.
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

PYTHON = os.environ.get("RCA_LLM_HF_PYTHON") or os.environ.get("RCA_LLM_VLLM_PYTHON", "")
if not PYTHON:
    pytest.skip("RCA_LLM_VLLM_PYTHON is not set (make test-engines)", allow_module_level=True)

WORK = Path(__file__).with_name("generate_work.py")
MS = 1_000_000
LENGTHS = (5, 17, 40)


@dataclass(frozen=True)
class Recorded:
    """One traced run: the program's own stamps, and what we say."""

    told: list[dict[str, Any]]
    alone: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def batches(self) -> list[list[dict[str, Any]]]:
        """The requests of every call of generate, in order."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(self.summary["requests"], key=lambda row: row["start_ns"]):
            found.setdefault(row["id"].partition("/")[0], []).append(row)
        return list(found.values())


def _run(folder: Path, under: list[str]) -> list[dict[str, Any]]:
    folder.mkdir()
    command = [*under, PYTHON, str(WORK), str(folder / "told.json")]
    subprocess.run(command, check=True, env=environment(HF_HUB_OFFLINE="1"), capture_output=True)
    rows: list[dict[str, Any]] = json.loads((folder / "told.json").read_text())
    return rows


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("generate")
    told = _run(folder / "traced", [*TRACE, "-o", str(folder / "run.rca"), "--"])
    summary = read(folder / "run.rca").attribute().summary
    return Recorded(told, _run(folder / "alone", []), summary)


def test_no_request_is_missing_and_none_is_extra(recorded: Recorded) -> None:
    assert [len(rows) for rows in recorded.batches] == [3, 3, 1, 1, 1]
    assert recorded.batches[2][0]["id"] == "scoped"


def test_tracing_changes_no_token(recorded: Recorded) -> None:
    both = [[row.get("tokens") for row in rows] for rows in (recorded.told, recorded.alone)]
    assert both[0] == both[1]


def test_tokens_are_those_of_every_row(recorded: Recorded) -> None:
    counts = [[row["output_tokens"] for row in rows] for rows in recorded.batches]
    assert counts[0] == [8, 8, 8]
    ended = [tokens[max(LENGTHS) :] for tokens in recorded.told[1]["tokens"]]
    end = recorded.told[1]["end_token"]
    assert counts[1] == [row.index(end) + 1 if end in row else len(row) for row in ended]
    assert counts[1][0] < 8
    assert counts[2:4] == [[6], [6]]
    assert [row["prompt_tokens"] for row in recorded.batches[0]] == list(LENGTHS)


def test_times_are_those_of_the_program(recorded: Recorded) -> None:
    """A call may be held up between its stamp and ours on a busy machine: the closest count."""
    off = [
        abs(row["latency_ns"] - (told["end"] - told["begin"]))
        for rows, told in zip(recorded.batches[:4], recorded.told, strict=False)
        for row in rows
    ]
    print("latency off by, us:", sorted(ns // 1000 for ns in off))
    assert sorted(off)[len(off) // 2] < 2 * MS
    scoped, told = recorded.batches[2][0], recorded.told[2]
    first = told["pieces"][0] - told["begin"]
    assert abs(scoped["ttft_ns"] - first) < 2 * MS + scoped["latency_ns"] // 10


def test_beams_have_no_first_token_before_the_end(recorded: Recorded) -> None:
    assert recorded.batches[3][0]["ttft_ns"] is None


def test_a_call_that_fails_is_aborted(recorded: Recorded) -> None:
    assert [rows[0]["status"] for rows in recorded.batches] == [*["finished"] * 4, "aborted"]


def test_shares_add_up_and_leave_little_unexplained(recorded: Recorded) -> None:
    rows = [row for batch in recorded.batches for row in batch]
    for row in rows:
        assert sum(row["parts"].values()) == row["latency_ns"]
    total = sum(row["latency_ns"] for row in rows)
    assert sum(row["parts"].get("scheduling.other", 0) for row in rows) <= 0.03 * total
    assert sum(row["parts"].get("compute.cpu", 0) for row in rows) > 0


def test_the_first_step_of_a_batch_prefills(recorded: Recorded) -> None:
    first = recorded.summary["steps"][0]
    # Rows are padded to the longest: that is what the model computes.
    assert (first["prefill_tokens"], first["requests"]) == (120, 3)
    assert recorded.summary["steps"][1]["decode_tokens"] == 3
