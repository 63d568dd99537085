"""A real vLLM 0.20.2 on an H200, recorded under load, and what vLLM itself said of its requests.

Made by `benchmarks/gpu/vllm_load.py` on 2026-11-30, shortened to its first 3 s by
`benchmarks/gpu/cut.py`: 40 streamed requests at a rate above capacity with full and piecewise CUDA
graphs, one that its client gave up, two more, and bursts of four between and during pauses.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rca_llm
from rca_llm.attribute import partition
from rca_llm.attribute.codes import GRAPH_LAUNCH
from rca_llm.readers import run_pauses, segments
from rca_llm.report import Report
from rca_llm.trace import CALLS_OFF, DEVICE_OFF, PAUSES, SWITCHED_OFF
from tests.engines import compare

DATA = Path(__file__).with_name("data") / "h200"
ARCHIVE = DATA / "vllm.rca.tar.gz"
MS = 1_000_000
REQUESTS = 51
STEPS = 425
KERNELS = 88_111


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
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
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
    assert len(summary["steps"]) == STEPS
    assert summary["totals"]["kernels"] == KERNELS
    assert sum(step["kernels"] for step in summary["steps"]) == KERNELS
    assert all(step["requests"] for step in summary["steps"])
    launches = sum(step["launches"] for step in summary["steps"])
    api = vllm.report.trace.timelines[0]["api"]
    assert 0 < launches <= len(api)


def test_what_was_launched_in_a_pause_is_left_out_and_counted(vllm: Recorded) -> None:
    """The collector noticed the second pause 29 ms late, when a step had begun that nobody saw."""
    timeline = vllm.report.trace.timelines[0]
    paused = timeline.header.extra[PAUSES]
    assert len(paused) == 3
    assert not run_pauses.inside(paused, timeline["api"]["start"]).any()
    dropped = {f.detail: f.count for f in timeline.findings if f.code == "dropped_records"}
    assert dropped == {SWITCHED_OFF: 3, DEVICE_OFF: 20, CALLS_OFF: 21}


def test_the_pause_within_the_window_is_unknown_to_the_nanosecond(vllm: Recorded) -> None:
    """One pause ended before the first record, one began after the last."""
    summary = vllm.report.summary
    paused = vllm.report.trace.timelines[0].header.extra[PAUSES]
    window = summary["window"]
    (inside,) = [(a, b) for a, b in paused if window["start_ns"] < b and a < window["end_ns"]]
    assert summary["parts"]["unknown.not_recorded"] == inside[1] - inside[0] == 228_963_697
    assert sum(summary["parts"].values()) == window["span_ns"]
    for row in [*summary["steps"], *vllm.requests.values()]:
        assert row["shares"]["unknown"] == 0


def test_decodes_replay_one_graph_and_prefills_one_a_piece(vllm: Recorded) -> None:
    recording = partition.prepare(vllm.report.trace.timelines[0])
    _, work = partition.activities(recording, recording.ranks[0])
    graphs = work.of_call[recording.calls == GRAPH_LAUNCH]
    replays = np.bincount(graphs, minlength=len(recording.steps))
    prefill = recording.steps.prefill_tokens > 0
    assert set(replays[~prefill].tolist()) == {1}
    # The two first after a pause lack some: the collector of that day noticed its end 40 ms late.
    assert Counter(replays[prefill].tolist()) == {17: 39, 11: 1, 0: 1}
    in_graphs = (recording.timeline["gpu"]["graph_node"] > 0).sum()
    assert in_graphs == 79_585


def test_a_step_that_replays_a_graph_and_launches_besides_is_mixed(vllm: Recorded) -> None:
    """Input, logits and sampling are launched one by one, 15 of them, around the graph."""
    modes = Counter(step["mode"] for step in vllm.report.summary["steps"])
    assert modes == {"mixed": STEPS - 1, None: 1}


def test_a_full_batch_of_decodes_has_the_same_kernels_every_time(vllm: Recorded) -> None:
    """Overlapping steps would show as kernels that one step lost to the next."""
    steps = vllm.report.summary["steps"]
    decodes = [s for s in steps if not s["prefill_tokens"] and s["requests"] == 4]
    assert len(decodes) == 295
    assert {(step["kernels"], step["launches"]) for step in decodes} == {(208, 16)}


def test_shares_add_up_and_little_is_unexplained(vllm: Recorded) -> None:
    lived = other = 0
    assert len(vllm.requests) == REQUESTS
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


def test_the_recording_holds_nothing_of_the_machine_it_was_made_on() -> None:
    texts: set[str] = set()
    with tarfile.open(ARCHIVE) as archive:
        for part in filter(tarfile.TarInfo.isfile, archive):
            stream = archive.extractfile(part)
            assert stream is not None
            if part.name.endswith("manifest.json"):
                manifest = json.load(stream)
                assert manifest["command"][:3] == ["vllm", "serve", "model"]
                texts |= {manifest["host"]}
            segment = segments.parse(part.name, stream.read())
            if segment is not None:
                texts |= {*segment.names.values(), segment.text("host")}
    paths = {text for text in texts if "/" in text and text.startswith(("/", "~"))}
    assert paths
    assert all(text.startswith(("/tmp/", "/opt/")) for text in paths), paths
    assert "vm" in texts  # what the host is called
    assert not [text for text in texts if re.search(r"^[A-Z_]+=|@[a-z]|://|HOME", text)]
