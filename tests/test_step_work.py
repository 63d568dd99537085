"""Launches and kernels belong to the step that launched them, however steps overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.attribute import partition as engine
from tests.timelines import PROCESS, Builder

WORKER = 1


def _work(builder: Builder) -> tuple[engine.Recording, engine.RankPartition]:
    recording = engine.prepare(builder.build())
    rank = recording.ranks[0]
    activity, work = engine.activities(recording, rank)
    return recording, engine.partition(recording, rank, activity, work)


def _ids(recording: engine.Recording, rows: np.ndarray) -> list[int | None]:
    return [int(recording.steps.id[row]) if row >= 0 else None for row in rows.tolist()]


def _numbered(builder: Builder, step: int, start: int, end: int, **where: Any) -> None:
    builder.span("compute", start, end, name="execute_model", step=step, **where)


def test_a_launch_after_the_next_step_is_scheduled_belongs_to_its_own_step() -> None:
    """The engine schedules step 2 at 10; the worker still launches for step 1 until 30."""
    builder = Builder()
    builder.step(1, 0, 60, A="decode")
    builder.step(2, 10, 90, B="decode")
    _numbered(builder, 1, 5, 30, thread=2)
    _numbered(builder, 2, 35, 50, thread=2)
    builder.launch("gemm", (20, 22), (24, 40))
    builder.rows["api"][-1]["thread"] = 2
    builder.launch("gemm", (40, 42), (44, 80))
    builder.rows["api"][-1]["thread"] = 2
    recording, found = _work(builder)
    assert _ids(recording, found.step_of) == [1, 2]
    rows = builder.summary()["steps"]
    assert [(row["launches"], row["kernels"]) for row in rows] == [(1, 1), (1, 1)]


def test_launches_between_two_spans_belong_to_the_earlier_and_helpers_follow_their_process() -> (
    None
):
    builder = Builder()
    builder.step(1, 0, 60, A="decode")
    builder.step(2, 10, 90, A="decode")
    _numbered(builder, 1, 5, 30, thread=2)
    _numbered(builder, 2, 35, 50, thread=2)
    for thread, call in ((2, 32), (2, 55), (9, 12), (9, 40), (2, 3), (2, 95)):
        builder.launch("gemm", (call, call + 1), (call + 1, call + 2))
        builder.rows["api"][-1]["thread"] = thread
    recording, found = _work(builder)
    # 3: before any span, so by time; 95: after the last step has ended.
    assert _ids(recording, found.step_of) == [1, 2, 1, 2, 1, None]


def test_every_kernel_of_a_graph_replay_belongs_to_the_step_of_its_launch() -> None:
    builder = Builder()
    builder.step(1, 0, 60, A="decode")
    builder.step(2, 10, 90, A="decode")
    _numbered(builder, 1, 5, 30)
    builder.api("cudaGraphLaunch", 28, 30, correlation=7)
    for node in range(3):
        builder.kernel("gemm", 40 + node, 41 + node, correlation=7, graph_node=node + 1)
    recording, found = _work(builder)
    assert _ids(recording, found.step_of) == [1, 1, 1]
    row = builder.summary()["steps"][0]
    assert (row["launches"], row["kernels"], row["mode"]) == (1, 3, "graph")


def test_without_calls_a_kernel_belongs_to_the_step_in_which_it_was_queued() -> None:
    """As when only kernels are recorded: the last one starts long after step 2 was scheduled."""
    builder = Builder()
    builder.step(1, 0, 60, A="decode")
    builder.step(2, 10, 90, A="decode")
    _numbered(builder, 1, 5, 30, thread=2)
    _numbered(builder, 2, 35, 50, thread=2)
    builder.kernel("gemm", 8, 12, queued=6)
    builder.kernel("gemm", 40, 42, queued=28)
    builder.kernel("gemm", 44, 50, queued=36)
    builder.kernel("gemm", 52, 60)  # not known: by its own start
    recording, found = _work(builder)
    assert _ids(recording, found.step_of) == [1, 1, 2, 2]


def test_what_a_record_says_of_its_step_is_preferred_to_when_it_was_queued_and_began() -> None:
    """As markers tell it, where no call is recorded and the engine schedules ahead."""
    builder = Builder()
    builder.step(1, 0, 60, A="decode")
    builder.step(2, 10, 90, B="decode")
    builder.kernel("gemm", 44, 50, step=1, queued=12)
    builder.kernel("gemm", 50, 80, step=2, queued=5)
    builder.kernel("gemm", 80, 85, queued=5)
    recording, found = _work(builder)
    assert _ids(recording, found.step_of) == [1, 2, 1]


def test_numbers_that_occur_twice_mean_the_engine_that_runs() -> None:
    """An engine that was started anew counts from 1 again."""
    builder = Builder()
    builder.step(1, 0, 40, A="decode")
    builder.step(1, 100, 140, B="decode")
    _numbered(builder, 1, 10, 20)
    _numbered(builder, 1, 110, 120)
    builder.launch("gemm", (15, 16), (17, 18))
    builder.launch("gemm", (115, 116), (117, 118))
    _, found = _work(builder)
    assert found.step_of.tolist() == [0, 1]


def test_a_span_that_names_an_unknown_step_tells_nothing() -> None:
    builder = Builder()
    builder.step(1, 0, 40, A="decode")
    _numbered(builder, 99, 5, 30)
    builder.launch("gemm", (15, 16), (17, 18))
    _, found = _work(builder)
    assert found.step_of.tolist() == [0]


@st.composite
def pipelines(draw: st.DrawFn) -> list[dict[str, int]]:
    """Steps of an engine that schedules up to `depth` ahead of its worker; times of each."""
    depth, clock, steps = draw(st.integers(1, 3)), 0, list[dict[str, int]]()
    device = 0
    for number in range(draw(st.integers(1, 12))):
        if number >= depth:  # the output of an earlier step is awaited first
            clock = max(clock, steps[number - depth]["end"])
        scheduled = clock = clock + draw(st.integers(1, 5))
        begun = clock = clock + draw(st.integers(1, 5))
        launches = draw(st.integers(1, 4))
        clock += 4 * launches + draw(st.integers(1, 9))
        device = max(device, clock) + draw(st.integers(1, 60))
        told = {"scheduled": scheduled, "begun": begun, "left": clock, "launches": launches}
        steps.append(told | {"end": device + draw(st.integers(1, 4))})
    return steps


@settings(deadline=None, max_examples=30)
@given(pipelines(), st.booleans())
def test_work_of_overlapping_steps_is_told_apart(steps: list[dict[str, int]], graph: bool) -> None:
    builder, truth = Builder(), list[int]()
    device = 0
    for number, step in enumerate(steps, 1):
        builder.step(number, step["scheduled"], step["end"], A="decode")
        _numbered(builder, number, step["begun"], step["left"], thread=WORKER)
        for index in range(step["launches"]):
            builder.calls += 1
            call = step["begun"] + 4 * index
            name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
            builder.api(name, call, call + 2, correlation=builder.calls)
            device = max(device, call + 2) + 1
            builder.kernel("gemm", device, device + 3, correlation=builder.calls)
            truth.append(number)
    recording, found = _work(builder)
    assert _ids(recording, found.step_of) == truth
    summary = builder.summary()
    assert [row["kernels"] for row in summary["steps"]] == [step["launches"] for step in steps]
    assert sum(summary["parts"].values()) == summary["window"]["span_ns"]
    assert {row["process"] for row in summary["devices"]} <= {PROCESS}
