"""A real vLLM 0.20.2 on an H200, recorded under load, and what vLLM itself said of its requests.

Made by `benchmarks/gpu/vllm_load.py`, shortened by `benchmarks/gpu/cut.py`: 40 streamed requests at
a rate above capacity, one that its client gave up, and two more.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rca_llm
from rca_llm.report import Report
from tests.engines import compare

DATA = Path(__file__).with_name("data") / "h200"
MS = 1_000_000
REQUESTS = 43


@dataclass(frozen=True)
class Recorded:
    """The run as explained, and vLLM's stamps by request."""

    report: Report
    stamps: dict[str, dict[str, Any]]

    @property
    def requests(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.report.summary["requests"]}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(DATA / "vllm.rca.tar.gz") as archive:
        archive.extractall(folder)
    report = rca_llm.load(folder / "vllm.rca").attribute()
    return Recorded(report, json.loads((DATA / "vllm.stamps.json").read_text()))


def test_every_request_is_there_with_its_end(vllm: Recorded) -> None:
    status = [row["status"] for row in vllm.requests.values()]
    assert (status.count("finished"), status.count("aborted")) == (REQUESTS - 1, 1)
    assert set(vllm.stamps) == {i for i, row in vllm.requests.items() if row["status"] != "aborted"}


def test_times_are_those_of_vllm(vllm: Recorded) -> None:
    timeline = vllm.report.trace.timelines[0]
    worst = compare.worst(timeline, vllm.stamps, vllm.requests, vllm.stamps)
    assert max(worst.values()) <= MS, worst


def test_every_kernel_belongs_to_a_step_and_every_step_to_requests(vllm: Recorded) -> None:
    summary = vllm.report.summary
    # The next burst began while recording was being paused, which takes up to 50 ms: the last
    # fourteen kernels are its first, without a record of the host.
    assert summary["totals"]["kernels"] == 68_145
    assert sum(step["kernels"] for step in summary["steps"]) == 68_145 - 14
    assert all(step["requests"] for step in summary["steps"])
    launches = sum(step["launches"] for step in summary["steps"])
    api = vllm.report.trace.timelines[0]["api"]
    assert 0 < launches <= len(api)


def test_a_full_batch_of_decodes_has_the_same_kernels_every_time(vllm: Recorded) -> None:
    """Overlapping steps would show as kernels that one step lost to the next."""
    steps = vllm.report.summary["steps"]
    decodes = [s for s in steps if not s["prefill_tokens"] and s["requests"] == 4]
    assert len(decodes) > 200
    assert {(step["kernels"], step["launches"]) for step in decodes} == {(208, 16)}


def test_shares_add_up_and_little_is_unexplained(vllm: Recorded) -> None:
    lived = other = 0
    for row in vllm.requests.values():
        assert sum(row["parts"].values()) == row["latency_ns"] == sum(row["shares"].values())
        lived += row["latency_ns"]
        other += row["parts"].get("scheduling.other", 0)
    assert other <= 0.03 * lived
    for step in vllm.report.summary["steps"]:
        assert sum(step["shares"].values()) == step["end_ns"] - step["start_ns"]


def test_above_capacity_the_queue_dominates(vllm: Recorded) -> None:
    sums: dict[str, int] = {}
    for row in vllm.requests.values():
        for name, ns in row["parts"].items():
            sums[name] = sums.get(name, 0) + ns
    assert max(sums, key=lambda name: sums[name]) == "scheduling.queue"
    assert sums["compute.gemm"] > 0
