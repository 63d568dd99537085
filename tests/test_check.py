"""The checks of a machine: every one has a verdict, and no value of a variable is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rca_llm import check
from rca_llm.cli import main

STATUSES = {"ok", "warning", "missing", "unknown"}


def test_every_check_has_a_verdict_and_says_what_to_do() -> None:
    found = check.run()
    assert {row["status"] for row in found["checks"]} <= STATUSES
    assert sum(found["counts"].values()) == len(found["checks"])
    for row in found["checks"]:
        assert row["found"]
        assert row["advice"] or row["status"] in ("ok", "unknown"), row


def test_bad_settings_are_named_without_their_values() -> None:
    environment = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "TRACE", "OPENAI_API_KEY": "sk-1"}
    found = check.run(environment=environment)
    rows = {row["name"]: row for row in found["checks"]}
    assert rows["CUDA_LAUNCH_BLOCKING"]["status"] == "warning"
    assert rows["NCCL_DEBUG"]["found"] == "set"
    assert "sk-1" not in json.dumps(found)
    assert "OPENAI_API_KEY" not in json.dumps(found)


def test_settings_of_another_engine_are_left_out() -> None:
    environment = {"VLLM_LOGGING_LEVEL": "DEBUG"}
    named = [
        {row["name"] for row in check.run(e, environment)["checks"]} for e in ("vllm", "sglang")
    ]
    assert "VLLM_LOGGING_LEVEL" in named[0]
    assert "VLLM_LOGGING_LEVEL" not in named[1]


@pytest.mark.parametrize("threads, status", [("100000", "warning"), ("1", "ok")])
def test_more_threads_than_cpus(threads: str, status: str) -> None:
    rows = check.run(environment={"OMP_NUM_THREADS": threads})["checks"]
    found = [row for row in rows if row["name"] in ("OMP_NUM_THREADS", "CPUs")]
    assert found[0]["status"] in (status, "warning")


def test_versions_are_compared_as_numbers() -> None:
    assert check._numbers("2.11.0+cu130") == (2, 11, 0)  # pyright: ignore[reportPrivateUsage]
    assert check.LEAST_TORCH < (2, 11)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "check.json"
    assert main(["check", "--engine", "vllm", "--json", str(target)]) == 0
    assert json.loads(target.read_text())["schema"] == check.SCHEMA
    assert "tracing" in capsys.readouterr().out
    assert main(["check", "--json", str(target)]) == 2
