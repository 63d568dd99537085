"""Hints about calls that let devices run out of work: they cost until the next work comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rca_llm.attribute import job as jobs
from rca_llm.hardware import PCIE_PAYLOAD
from rca_llm.hints import lead
from rca_llm.trace import Trace
from tests.scenes import GEMM, MS, US, Scene, hint, ids
from tests.timelines import THREAD

H2D, D2H = 0, 1
PAGEABLE, PINNED, DEVICE = 0, 1, 2
PERIOD = 10 * MS
STEPS = range(20)
LINK = 64e9
"""The peak rate of the link of the device of these scenes, bytes a second."""


def stepping() -> Scene:
    """Steps and a request, with no work yet."""
    scene = Scene()
    for i in STEPS:
        scene.step(i, i * PERIOD, (i + 1) * PERIOD, R="decode" if i else "prefill")
    scene.request("R", 0, [(i + 1) * PERIOD for i in STEPS], scheduled=0)
    return scene


def working(until: int, again: int) -> Scene:
    """Steps in which a kernel ends at `until`, and the next is launched at `again`."""
    scene = stepping()
    for i in STEPS:
        start = i * PERIOD
        scene.work(GEMM, start, start + until)
        scene.work(GEMM, start + again, start + PERIOD)
    return scene


def charged(scene: Scene, id: str) -> float:
    """What a hint is charged with in a step, µs."""
    found: float = hint(scene.summary(), id)["evidence"]["charged_ns"] / len(STEPS) / US
    return found


def allocate(scene: Scene, *calls: tuple[int, int], name: str = "cudaFree") -> Scene:
    """The same calls in every step."""
    for i in STEPS:
        for start, end in calls:
            scene.api(name, i * PERIOD + start, i * PERIOD + end)
    return scene


def test_an_allocation_that_drains_the_device_costs_until_the_next_work() -> None:
    scene = allocate(working(4 * MS, 4_300 * US), (1 * MS, 4_100 * US))
    found = hint(scene.summary(), "R38")
    assert found["evidence"]["charged_ns"] == len(STEPS) * 310 * US
    assert found["evidence"]["idle_in_calls_ns"] == len(STEPS) * 100 * US
    assert found["saving_ns"] == pytest.approx(len(STEPS) * 310 * US, rel=0.02)


def test_an_allocation_costs_no_more_than_it_took() -> None:
    """The device stands still already when it is called, and would do so without it."""
    assert charged(allocate(working(4 * MS, 4_300 * US), (4_050 * US, 4_150 * US)), "R38") == 100


def test_what_one_allocation_took_counts_for_those_after_it() -> None:
    calls = (1 * MS, 4_100 * US), (4_200 * US, 4_300 * US), (4_400 * US, 4_500 * US)
    assert charged(allocate(working(4 * MS, 4_600 * US), *calls), "R38") == 610


def test_what_an_allocation_took_does_not_count_in_the_next_step() -> None:
    scene = working(4 * MS, 4_300 * US)
    for i in STEPS:
        start = i * PERIOD + (1 * MS if i % 2 else 4_050 * US)
        scene.api("cudaFree", start, i * PERIOD + (4_010 * US if i % 2 else 4_060 * US))
    assert charged(scene, "R38") == (310 + 10) / 2


def test_an_allocation_at_the_end_of_a_step_costs_nothing_in_the_next() -> None:
    scene = stepping()
    for i in STEPS:
        scene.work(GEMM, i * PERIOD, i * PERIOD + 8 * MS)
    assert charged(allocate(scene, (1 * MS, 8_500 * US)), "R38") == 500


def test_work_that_was_asked_for_in_time_is_not_late() -> None:
    """The second kernel is launched before the first has ended, 5 µs before the call returns."""
    scene = stepping()
    for i in STEPS:
        start = i * PERIOD
        scene.work(GEMM, start, start + 4 * MS)
        scene.launch(GEMM, (start + 2 * MS, start + 2_010 * US), (start + 5 * MS, start + 9 * MS))
    called = allocate(scene, (1 * MS, 1_900 * US), name="cudaMalloc")
    assert "R38" not in ids(called.summary())


def test_the_pause_that_queued_work_makes_is_left_out() -> None:
    scene = stepping()
    for i in STEPS:
        start = i * PERIOD
        scene.work(GEMM, start, start + 2 * MS)
        for place in range(3):  # queued, each 2 µs after the one before
            begin = start + (2 + place) * MS + 2 * US
            scene.launch(GEMM, (start + 20 * US, start + 30 * US), (begin, begin + 998 * US))
        scene.work(GEMM, start + 5_300 * US, start + PERIOD)
    rank = jobs.attribute(Trace([scene.build()]).timelines).ranks[0]
    queue = lead.queue(rank)
    calls = np.array([1 * MS]), np.array([5_100 * US])
    found = lead.lost(rank, queue, calls, np.zeros(1, np.int64))
    assert queue.pause == 2 * US
    assert [int(times[0]) for times in found] == [5_002 * US, 5_310 * US]


def test_another_thread_that_allocates_is_not_charged_with_what_the_main_thread_does() -> None:
    """The thread that launches what comes next runs its own code meanwhile."""
    scene = working(4 * MS, 4_300 * US)
    for i in STEPS:
        start = i * PERIOD
        scene.api("cudaFree", start + 4_020 * US, start + 4_280 * US, thread=THREAD + 1)
        scene.api("cudaMalloc", start + 4_280 * US, start + 4_290 * US)
    found = hint(scene.summary(), "R38")["evidence"]
    assert found["charged_ns"] == len(STEPS) * 10 * US


def reading(reads: int, *, wait: int = 20 * US) -> Scene:
    """Steps of as many kernels, each followed by a read of a number and then by the host's work."""
    scene = stepping()
    for i in STEPS:
        at = i * PERIOD
        for place in range(reads):
            stop, number = at + 400 * US, 50_000 + i * 100 + place
            scene.work(GEMM, at, stop)
            scene.api("cudaMemcpyAsync", at + 12 * US, at + 15 * US, correlation=number)
            copied = stop + 4 * US, stop + 6 * US
            scene.copy(D2H, *copied, bytes=4, src=DEVICE, dst=PAGEABLE, correlation=number)
            scene.api("cudaStreamSynchronize", at + 16 * US, stop + 10 * US)
            at = stop + 10 * US + wait
        scene.work(GEMM, at, (i + 1) * PERIOD)
    return scene


def test_reads_in_a_loop_cost_until_the_next_launch() -> None:
    """A read costs 4 µs to the copy, 2 of copying, 4 to return, 20 of the host, 10 of launching."""
    found = hint(reading(16).summary(), "R15")
    assert found["evidence"]["calls"] == found["evidence"]["calls_after_tiny_copy"] == 16 * 20
    assert found["evidence"]["charged_ns"] == 16 * 20 * 40 * US
    assert found["saving_ns"] == pytest.approx(16 * 20 * 38 * US, rel=0.06)


def copying(size: int, *, name: str | None = "NVIDIA H200", back: bool = False) -> Scene:
    """Asynchronous copies whose call returns amid the copy; then the host works for 200 µs."""
    scene = working(4 * MS, 5_200 * US)
    for i in STEPS:
        start, number = i * PERIOD, 50_000 + i
        scene.api("cudaMemcpyAsync", start + 1 * MS, start + 4_990 * US, correlation=number)
        kind, ends = (D2H, (DEVICE, PAGEABLE)) if back else (H2D, (PAGEABLE, DEVICE))
        where = {"src": ends[0], "dst": ends[1], "correlation": number, "stream": 7}
        scene.copy(kind, start + 4 * MS, start + 5 * MS, bytes=size, **where)
    if name:
        scene.device(name=name)
    return scene


def test_a_pageable_copy_costs_until_the_next_launch() -> None:
    found = hint(copying(16_000_000).summary(), "R18")
    assert found["evidence"]["charged_ns"] == 20 * (1_000 + 210) * US
    assert found["evidence"]["idle_after_calls_ns"] == 20 * 210 * US


def test_a_pinned_copy_would_still_take_its_time_on_the_link() -> None:
    found = hint(copying(16_000_000).summary(), "R18")
    left = 16_000_000 * 1e9 / (LINK * PCIE_PAYLOAD)
    assert found["evidence"]["link_bytes_s"] == LINK
    assert "peak rate" in found["evidence"]["saving_assumes"]
    assert found["saving_ns"] == pytest.approx(20 * (1_210 * US - left), rel=0.01)


def beside_pinned(count: int = 10, size: int = 8_000_000, kind: int = H2D) -> dict[str, Any]:
    """R18 where the trace also has pinned copies, of 0.3 ms each."""
    scene = copying(16_000_000)
    for i in range(count):
        at = i * PERIOD + 6 * MS
        ends = (PINNED, DEVICE) if kind == H2D else (DEVICE, PINNED)
        where = {"src": ends[0], "dst": ends[1], "stream": 8}
        scene.copy(kind, at, at + 300 * US, bytes=size, **where)
    return hint(scene.summary(), "R18")


def test_pinned_copies_of_the_trace_tell_how_fast_they_are() -> None:
    found = beside_pinned()
    assert "pinned copies of this trace" in found["evidence"]["saving_assumes"]
    assert found["evidence"]["assumed_to_device_bytes_s"] == pytest.approx(8e6 / 300e-6)
    assert found["saving_ns"] == pytest.approx(20 * (1_210 - 600) * US, rel=0.01)


@pytest.mark.parametrize("other", [{"count": 9}, {"size": 7_900_000}, {"kind": D2H}], ids=repr)
def test_few_small_or_opposite_ones_do_not(other: dict[str, int]) -> None:
    assert "peak rate" in beside_pinned(**other)["evidence"]["saving_assumes"]


def test_without_a_known_device_a_copy_is_removed_whole() -> None:
    found = hint(copying(16_000_000, name="Unknown Accelerator").summary(), "R18")
    assert found["evidence"]["link_bytes_s"] is None
    assert "no time" in found["evidence"]["saving_assumes"]
    assert found["saving_ns"] == pytest.approx(20 * 1_210 * US, rel=0.01)


def test_a_copy_as_fast_as_the_link_saves_its_idle_time_alone() -> None:
    found = hint(copying(64_000_000).summary(), "R18")
    assert found["saving_ns"] == pytest.approx(20 * 210 * US, rel=0.05)


def test_whoever_reads_a_copy_waits_for_it_in_any_case() -> None:
    found = hint(copying(16_000_000, back=True).summary(), "R18")
    assert found["evidence"]["idle_after_calls_ns"] == 0
    assert found["evidence"]["charged_ns"] == 20 * 1_000 * US


@pytest.mark.parametrize("skew", [0, 30 * US, -30 * US])
def test_a_synchronous_copy_still_waits_for_itself(skew: int) -> None:
    """Whether or not the call seems to end before its copy, as the clocks of devices may tell."""
    scene = stepping()
    scene.device()
    for i in STEPS:
        start, number = i * PERIOD, 50_000 + i
        scene.work(GEMM, start, start + 2 * MS)
        scene.api("cudaMemcpy", start + 2 * MS, start + 4 * MS - skew, correlation=number)
        where = {"src": PAGEABLE, "dst": DEVICE, "correlation": number, "stream": 7}
        scene.copy(H2D, start + 2 * MS, start + 4 * MS, bytes=32_000_000, **where)
        scene.work(GEMM, start + 4_030 * US, start + PERIOD)
    found = hint(scene.summary(), "R18")
    assert found["saving_ns"] == pytest.approx(20 * (2 * MS - 32_000_000 * 1e9 / LINK), rel=0.05)


def issuing(
    *, copies: int = 60, pause: int = 12 * US, launch: bool = False, threads: int = 1
) -> Scene:
    """Steps in which the host issues small copies one after another, while nothing else runs."""
    scene = stepping()
    scene.device()
    for i in STEPS:
        start = at = i * PERIOD + 2 * MS
        scene.work(GEMM, i * PERIOD, start)
        for place in range(copies):
            number = 50_000 + i * 1_000 + place
            own = {"correlation": number, "thread": THREAD + place % threads}
            scene.api("cudaMemcpyAsync", at, at + 4 * US, **own)
            where = {"bytes": 4096, "src": PINNED, "dst": DEVICE, "correlation": number}
            scene.copy(H2D, at + 4 * US, at + 7 * US, **where)
            if launch:
                begin = at + 7 * US
                scene.launch(GEMM, (at + 5 * US, at + 6 * US), (begin, begin + 1 * US))
            at += 4 * US + pause
        scene.work(GEMM, at, (i + 1) * PERIOD)
    return scene


def test_small_copies_cost_the_time_in_which_the_host_issues_them() -> None:
    """From the first call to the kernel after the last copy: 60 times 16 µs, and its launch."""
    found = hint(issuing().summary(), "R19")
    assert found["evidence"]["runs"] == 20
    assert found["evidence"]["copies_in_runs"] == 1200
    assert found["evidence"]["charged_ns"] == 20 * (60 * 16 + 10) * US
    left = 60 * 4096 * 1e9 / LINK
    assert found["saving_ns"] == pytest.approx(20 * (970 * US - left), rel=0.01)


@pytest.mark.parametrize(
    "change",
    [{"pause": 51 * US}, {"launch": True}, {"threads": 2}],
    ids=["other code between", "a kernel between", "threads in turns"],
)
def test_copies_that_are_not_issued_one_after_another(change: dict[str, Any]) -> None:
    scene = issuing(**change)
    found = hint(scene.summary(), "R19")["evidence"]
    assert found["runs"] == found["copies_in_runs"] == 0
    assert found["charged_ns"] == 20 * 60 * 7 * US


def test_small_copies_under_device_work_are_merged_as_well() -> None:
    """Queued copies, each 2 µs after the one before: one copy would make no such pauses."""
    scene = stepping()
    scene.device()
    for i in STEPS:
        start = i * PERIOD
        scene.work(GEMM, start, start + 4 * MS)
        for place in range(60):
            number, at = 50_000 + i * 100 + place, start + (20 + 12 * place) * US
            scene.api("cudaMemcpyAsync", at, at + 4 * US, correlation=number)
            begin = start + 4 * MS + (2 + 5 * place) * US
            where = {"bytes": 4096, "src": PINNED, "dst": DEVICE, "correlation": number}
            scene.copy(H2D, begin, begin + 3 * US, **where)
        call = start + 800 * US
        scene.launch(GEMM, (call, call + 10 * US), (start + 4_302 * US, start + PERIOD))
    found = hint(scene.summary(), "R19")
    assert found["saving_ns"] == pytest.approx(20 * 300 * US, rel=0.03)


def test_no_work_and_no_calls_leave_nothing_behind() -> None:
    scene = stepping()
    job = jobs.attribute(Trace([scene.build()]).timelines)
    none = np.empty(0, np.int64)
    for calls in ((none, none), (np.array([1 * MS]), np.array([2 * MS]))):
        start, end = lead.lost(job.ranks[0], lead.queue(job.ranks[0]), calls, calls[0])
        assert (start == end).all()


@pytest.mark.parametrize(("reasons", "told"), [([4, 4, 1], True), ([4, 1], False), ([], False)])
def test_a_gpu_at_its_power_limit_is_told_where_idle_time_would_be_saved(
    reasons: list[int], told: bool
) -> None:
    scene = allocate(working(4 * MS, 4_300 * US), (1 * MS, 4_100 * US))
    for place, value in enumerate(reasons):
        scene.sample("gpu.throttle_reasons", place * MS, value, device=0)
    evidence = hint(scene.summary(), "R38")["evidence"]
    assert ("power" in evidence) == told
    assert not told or "in 2 of 3 samples" in evidence["power"]
