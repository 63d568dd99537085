"""R36: far from the GPU on a machine of two sockets, and no verdict where that is not known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.exporters import events
from rca_llm.readers import load
from rca_llm.trace import COPY_KINDS, MEMORY_KINDS, NODES, Device, Trace
from tests.scenes import MS, PROCESS, Scene, hint, ids

H2D = COPY_KINDS.index("H2D")
PINNED, DEVICE = MEMORY_KINDS.index("pinned"), MEMORY_KINDS.index("device")
TWO = {
    "0": {"cpus": "0-3,8-11", "distances": {"0": 10, "1": 21}},
    "1": {"cpus": "4-7,12-15", "distances": {"0": 21, "1": 10}},
}
STEPS, PERIOD = 100, 10 * MS
MIB = 1 << 20


def _scene(
    cpu: int | None = 5, node: int | None = 0, nodes: Mapping[str, Any] = TWO, **header: Any
) -> Scene:
    """A second of serving; the launching thread runs on a CPU, the GPU is on a node."""
    scene = Scene(extra={NODES: nodes}, **header)
    scene.serve(steps=STEPS, period=PERIOD, idle={i: [(0, 3 * MS)] for i in range(STEPS)})
    scene.timeline.devices.append(Device(0, "NVIDIA H200", PROCESS, node=node))
    told = {} if cpu is None else {"cpu": cpu}
    scene.row("states", process=PROCESS, thread=1, start=0, end=STEPS * PERIOD,
              state="running", **told)  # fmt: skip
    return scene


def _pages(scene: Scene, *counts: int, process: int = PROCESS, at: int = 0) -> None:
    for node, count in enumerate(counts):
        scene.sample(f"process.numa_pages.{node}", at + node, float(count), process=process)


def _upload(scene: Scene, ns: int, size: int = 64 * MIB) -> None:
    """A copy to the device in the idle time of every step."""
    for i in range(STEPS):
        scene.copy(H2D, i * PERIOD, i * PERIOD + ns, bytes=size, src=PINNED, dst=DEVICE)


def test_a_launching_thread_on_the_other_socket_is_found() -> None:
    scene = _scene()
    _pages(scene, 100, 1900)
    found = hint(scene.summary(), "R36")
    assert found["title"] == (
        "Worker 0 runs on the far socket: 100 % of its on-CPU time is far from its GPU's node 0"
    )
    told = found["evidence"]
    assert (found["confidence"], found["class"], found["saving_ns"]) == ("medium", "io", None)
    assert (told["cpu_share"], told["page_share"]) == (1.0, 0.95)
    assert (told["on_cpu_by_node"], told["gpu_node"]) == ("node 1: 100 %", 0)
    assert told["pages_by_node"] == "node 0: 5 %, node 1: 95 %"
    assert (told["pages_looked_at"], told["looks_at_pages"]) == (2000, 1)
    assert told["threads"] == "those that launch"
    assert told["population"] == "1 s on known CPUs and 2,000 pages of worker 0"
    assert told["saving_assumes"].startswith("unknown: no rank near")
    assert (told["copy_bytes_s"], told["near_copy_bytes_s"]) == (None, None)
    assert "numactl --cpunodebind=0 --membind=0" in found["advice"][0]


def test_memory_alone_is_a_possible_cause() -> None:
    scene = _scene(cpu=0)
    _pages(scene, 0, 2000)
    _pages(scene, 1560, 440, at=MS)  # where it lay later counts
    found = hint(scene.summary(), "R36")
    assert found["title"].startswith("Possible: Worker 0 has memory on the far socket: 22 %")
    assert (found["confidence"], found["saving_ns"]) == ("low", None)


@pytest.mark.parametrize(
    "scene",
    [
        _scene(cpu=0),
        _scene(cpu=None),
        _scene(node=None),
        _scene(nodes={"0": TWO["0"]}),
        _scene(nodes={}),
        _scene(cpu=99),
        _scene(nodes={"0": {"cpus": "0-3", "distances": {"0": 10, "1": 12}}, "1": TWO["1"]}),
        _scene(nodes={"x": 3, "0": None, "1": {"cpus": 7}}),
    ],
    ids=[
        *("near", "unknown CPU", "unknown node of the GPU", "one node", "unknown nodes"),
        *("a CPU of no node", "two nodes of one socket", "nonsense"),
    ],
)
def test_there_is_no_verdict_where_it_is_near_or_nobody_knows(scene: Scene) -> None:
    assert "R36" not in ids(scene.summary())


def test_little_is_no_verdict() -> None:
    scene = _scene(cpu=None)
    scene.state("running", 0, 400 * MS, thread=1)
    _pages(scene, 0, 255)
    assert "R36" not in ids(scene.summary())
    scene = _scene(cpu=0)
    _pages(scene, 1810, 190)
    assert "R36" not in ids(scene.summary())


def test_gpus_on_several_nodes_have_no_near_one() -> None:
    scene = _scene()
    scene.kernel("k", 0, MS, device=1)
    scene.timeline.devices.append(Device(1, "NVIDIA H200", PROCESS, node=1))
    assert "R36" not in ids(scene.summary())


def test_other_threads_and_processes_do_not_count_where_launches_are_known() -> None:
    scene = _scene(cpu=0)
    for thread in range(2, 9):
        scene.row("states", process=PROCESS, thread=thread, start=0, end=900 * MS,
                  state="running", cpu=5)  # fmt: skip
    _pages(scene, 0, 2000, process=77)
    assert "R36" not in ids(scene.summary())


def test_without_launches_all_threads_of_the_process_count() -> None:
    scene = _scene(cpu=0)
    scene.rows["api"] = []
    for thread in range(2, 4):
        scene.row("states", process=PROCESS, thread=thread, start=0, end=900 * MS,
                  state="running", cpu=5)  # fmt: skip
    told = hint(scene.summary(), "R36")["evidence"]
    assert told["threads"] == "all of the process"
    assert told["cpu_share"] == pytest.approx(1.8 / 2.8)


def _two(
    far_ns: int, near_ns: int, *more_far: int, near_node: int = 1, near_cpu: int | None = 5
) -> dict[str, Any]:
    """Ranks, each with its GPU; the second is near its own, the others are not."""
    count = 2 + len(more_far)
    ranks = [_scene(rank=number, world_size=count) for number in range(count)]
    ranks[1] = _scene(rank=1, world_size=count, node=near_node, cpu=near_cpu)
    for scene, ns in zip(ranks, (far_ns, near_ns, *more_far), strict=True):
        _upload(scene, ns)
    timelines = [scene.build() for scene in ranks]
    for number, timeline in enumerate(timelines):
        timeline.input = replace(timeline.input, path=f"rank{number}", rank=number)
    return Trace(timelines).attribute().summary


def test_slower_copies_than_those_of_a_near_rank_are_what_it_costs() -> None:
    found = hint(_two(2 * MS, MS), "R36")
    told = found["evidence"]
    assert (found["confidence"], told["rank"]) == ("high", 0)
    assert told["copy_bytes_s"] == pytest.approx(told["near_copy_bytes_s"] / 2)
    assert told["copies_compared"] == STEPS
    assert found["saving_ns"] == pytest.approx(told["charged_ns"] / 2, rel=0.01)
    assert told["charged_ns"] > 0


def test_the_rank_whose_copies_suffer_most_is_named() -> None:
    found = hint(_two(2 * MS, MS, 3 * MS), "R36")
    assert (found["evidence"]["rank"], found["evidence"]["ranks_affected"]) == (2, 2)
    assert found["title"].endswith("; so is 1 more")


def test_a_rank_of_which_nobody_knows_where_it_runs_is_no_measure() -> None:
    found = hint(_two(2 * MS, MS, near_cpu=None), "R36")
    assert (found["confidence"], found["saving_ns"]) == ("medium", None)
    assert found["evidence"]["near_copy_bytes_s"] is None


def test_copies_as_fast_as_near_ones_make_it_a_possible_cause() -> None:
    found = hint(_two(MS, MS), "R36")
    assert (found["confidence"], found["saving_ns"]) == ("low", None)
    assert "hardly faster" in found["evidence"]["saving_assumes"]


def test_ranks_that_are_all_far_are_told_in_one_hint() -> None:
    found = hint(_two(2 * MS, MS, near_node=0), "R36")
    assert found["title"].endswith("; so is 1 more")
    assert found["evidence"]["ranks_affected"] == 2
    assert found["saving_ns"] is None


def test_an_export_as_events_says_the_same(tmp_path: Path) -> None:
    scene = _scene()
    _pages(scene, 100, 1900)
    report = Trace([scene.build()]).attribute()
    events.write(report, tmp_path / "out.jsonl")
    again = load(tmp_path / "out.jsonl").attribute()
    assert hint(again.summary, "R36") == hint(report.summary, "R36")


def test_an_engine_of_another_language_can_tell_all_of_it(tmp_path: Path) -> None:
    """The lines that docs/events.md describes, with nonsense beside them."""
    lines: list[dict[str, Any]] = [
        {"type": "header", "schema": "rca-llm/events/1", "clock": "utc", "nodes": TWO,
         "devices": [{"device": 0, "name": "GPU", "node": 1}, {"device": 1, "node": -1}]},
        {"type": "gpu", "kind": "kernel", "pid": 1, "device": 0, "name": "k", "start": 0,
         "end": 2_000 * MS},
        {"type": "thread", "pid": 1, "tid": 1, "start": 0, "end": 1_000 * MS, "state": "running",
         "cpu": 9},
        {"type": "thread", "pid": 1, "tid": 1, "start": 1_000 * MS, "end": 2_000 * MS,
         "state": "running", "cpu": "all"},
        {"type": "sample", "t": 5, "pid": 1, "metric": "process.numa_pages.0", "value": 1e300},
        {"type": "sample", "t": 5, "pid": 1, "metric": "process.numa_pages.²", "value": 900},
        {"type": "sample", "t": 5, "pid": 1, "metric": "process.numa_pages.1", "value": 900},
    ]  # fmt: skip
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = hint(load(file).attribute().summary, "R36")["evidence"]
    assert (told["gpu_node"], told["cpu_share"], told["page_share"]) == (1, 1.0, 0.0)
    assert told["on_unknown_cpu_ns"] == 1_000 * MS


CPUS = st.lists(st.tuples(st.integers(-1, 20), st.integers(1, 900)), max_size=6)
PAGES = st.lists(st.integers(0, 5000), max_size=3)


@settings(max_examples=60, deadline=None)
@given(CPUS, PAGES, st.sampled_from([None, 0, 1, 7]))
def test_a_verdict_always_rests_on_a_share_over_its_limit(
    ran: list[tuple[int, int]], pages: list[int], node: int | None
) -> None:
    scene = _scene(cpu=None, node=node)
    scene.rows["states"] = []
    at, sums = 0, {0: 0, 1: 0, -1: 0}
    for cpu, ms in ran:
        scene.row("states", process=PROCESS, thread=1, start=at, end=at + ms * MS,
                  state="running", cpu=cpu)  # fmt: skip
        at += ms * MS
        sums[-1 if not 0 <= cpu < 16 else cpu % 8 // 4] += ms * MS
    _pages(scene, *pages)
    summary = scene.summary()
    known, all_pages = sums[0] + sums[1], sum(pages)
    away = [one for one in (0, 1) if one != node]
    far = sum(sums[one] for one in away)
    far_pages = sum(count for one, count in enumerate(pages) if one in away)
    by_cpu = known >= max(500 * MS, (known + sums[-1]) / 2) and far >= known / 2
    by_pages = all_pages >= 256 and far_pages >= all_pages / 10
    assert ("R36" in ids(summary)) == (node is not None and (by_cpu or by_pages))
    for found in (row for row in summary["hints"] if row["id"] == "R36"):
        assert found["saving_ns"] is None
        assert found["evidence"]["on_unknown_cpu_ns"] == sums[-1]
