"""Attribution is a partition, whatever the events; and it does not depend on their order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca_llm.trace import Trace
from tests.timelines import Builder, findings

US = 1_000
BASE = 1_700_000_000_000_000_000

times = st.integers(0, 400)
span_kinds = st.sampled_from([None, "host", "gc", "file", "network", "serialize", "kv_transfer"])
kernels = st.sampled_from(
    ["gemm_x", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "flash_fwd_kernel", "add_kernel"]
)


@st.composite
def events(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Calls of builder methods, as (method, arguments)."""
    found: list[tuple[str, dict[str, Any]]] = []
    for _ in range(draw(st.integers(1, 14))):
        start, length = draw(times), draw(st.integers(0, 120))
        begin, end = BASE + start * US, BASE + (start + length) * US
        kind = draw(st.sampled_from(["kernel", "copy", "launch", "span", "api", "step", "state"]))
        found.append(_event(draw, kind, begin, end))
    for id in draw(st.sets(st.sampled_from("AB"))):
        found.append(_request(draw, id))
    return found


def _event(draw: st.DrawFn, kind: str, begin: int, end: int) -> tuple[str, dict[str, Any]]:
    if kind == "kernel":
        return kind, {"name": draw(kernels), "start": begin, "end": end}
    if kind == "copy":
        return kind, {"kind": draw(st.integers(0, 4)), "start": begin, "end": end}
    if kind == "launch":
        call = begin - draw(st.integers(0, 20)) * US
        spans = {"call": (call, call + 3 * US), "kernel": (begin, end)}
        return kind, {"name": draw(kernels), **spans}
    if kind == "span":
        return kind, {"kind": draw(span_kinds), "start": begin, "end": end}
    if kind == "api":
        name = draw(st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "cudaGraphLaunch"]))
        return kind, {"name": name, "start": begin, "end": end}
    if kind == "step":
        phases = draw(
            st.dictionaries(st.sampled_from("AB"), st.sampled_from(["prefill", "decode"]))
        )
        return kind, {"id": draw(st.integers(0, 5)), "start": begin, "end": end, **phases}
    state = draw(st.sampled_from(["running", "runnable", "blocked", "gil"]))
    return "row", {
        "table": "states",
        "process": 1,
        "thread": 1,
        "start": begin,
        "end": end,
        "state": state,
    }


def _request(draw: st.DrawFn, id: str) -> tuple[str, dict[str, Any]]:
    marks = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    names = ("arrival", "scheduled", "first_token", "finished")
    known = {n: BASE + t * US for n, t in zip(names, marks, strict=True) if draw(st.booleans())}
    return "row", {"table": "requests", "id": id, **known}


def summary_of(found: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    builder = Builder()
    for method, arguments in found:
        getattr(builder, method)(**arguments)
    return builder.summary()


def check_partition(window: dict[str, Any], total: int | None) -> None:
    if window["shares"] is None:
        return
    if total is not None:
        assert sum(window["shares"].values()) == total
    for name, share in window["shares"].items():
        parts = [v for part, v in window.get("parts", {}).items() if part.startswith(name + ".")]
        assert share >= 0
        assert "parts" not in window or sum(parts) == share


def check_partitions(summary: dict[str, Any]) -> None:
    """Every window of a summary, requests, steps and ranks included."""
    check_partition(summary, summary["window"]["span_ns"])
    for request in summary["requests"]:
        check_partition(request, request["latency_ns"])
    for step in [*summary["steps"], *summary["windows"]]:
        check_partition(step, step["end_ns"] - step["start_ns"])
    for rank in summary["ranks"]:
        check_partition(rank, rank["span_ns"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events())
def test_the_parts_of_every_window_add_up(found: list[tuple[str, dict[str, Any]]]) -> None:
    summary = summary_of(found)
    check_partitions(summary)
    for device in summary["devices"]:
        assert device["busy_ns"] is None or 0 <= device["busy_ns"] <= device["span_ns"]
        assert device["utilization"] is None or 0 <= device["utilization"] <= 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events(), st.randoms(use_true_random=False))
def test_the_order_of_records_changes_nothing(
    found: list[tuple[str, dict[str, Any]]], generator: random.Random
) -> None:
    steps = [event for event in found if event[0] == "step"]
    distinct = {(event[1]["start"], event[1]["id"]) for event in steps}
    calls = [event for event in found if event[0] == "launch"]
    rest = [event for event in found if event[0] not in ("launch", "step")]
    if len(distinct) < len(steps):
        steps = steps[:1]
    shuffled = generator.sample(rest, len(rest))
    one, other = summary_of([*calls, *steps, *rest]), summary_of([*calls, *steps, *shuffled])
    for key in ("shares", "parts", "hidden", "window", "totals", "steps"):
        assert one[key] == other[key]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events())
def test_records_outside_a_request_change_nothing_in_it(
    found: list[tuple[str, dict[str, Any]]],
) -> None:
    request = {"arrival": BASE, "scheduled": BASE, "finished": BASE + 600 * US}
    inside = [*found, ("row", {"table": "requests", "id": "R", **request})]
    far = BASE + 10_000 * US
    outside = [("kernel", {"name": "late", "start": far, "end": far + US})]
    one = [row for row in summary_of(inside)["requests"] if row["id"] == "R"]
    other = [row for row in summary_of(inside + outside)["requests"] if row["id"] == "R"]
    assert one[0]["latency_ns"] == other[0]["latency_ns"] == 600 * US
    assert one[0]["shares"]["communication"] == other[0]["shares"]["communication"]
    assert one[0]["shares"]["compute"] == other[0]["shares"]["compute"]


def test_a_copy_hides_behind_a_kernel() -> None:
    builder = Builder()
    builder.kernel("gemm_x", BASE, BASE + 100)
    builder.copy(0, BASE + 50, BASE + 150)
    summary = builder.summary()
    assert summary["parts"] == {"compute.gemm": 100, "io.h2d": 50}
    assert summary["hidden"]["io"] == 50


def test_idle_time_goes_to_the_innermost_record_of_the_launching_thread() -> None:
    builder = Builder()
    builder.launch("gemm_x", (BASE, BASE + 5), (BASE + 10, BASE + 20))
    builder.span("host", BASE + 20, BASE + 100)
    builder.span("gc", BASE + 40, BASE + 60)
    builder.span("file", BASE + 20, BASE + 100, thread=2)
    builder.launch("gemm_x", (BASE + 100, BASE + 105), (BASE + 110, BASE + 120))
    parts = builder.summary()["parts"]
    assert parts["scheduling.gc"] == 20
    assert parts["scheduling.host"] == 60
    assert "io.file" not in parts


def test_a_request_waits_is_preempted_and_computes_again() -> None:
    builder = Builder()
    builder.row("requests", id="A", arrival=BASE, scheduled=BASE + 100, finished=BASE + 900)
    builder.step(0, BASE + 100, BASE + 300, A="prefill")
    builder.row("marks", t=BASE + 300, name="preempted", request="A")
    builder.step(1, BASE + 300, BASE + 500, B="decode")
    builder.row("marks", t=BASE + 500, name="resumed", request="A")
    builder.step(2, BASE + 500, BASE + 700, A="recompute")
    builder.step(3, BASE + 700, BASE + 900, A="decode")
    for start in (100, 300, 500, 700):
        builder.kernel("gemm_x", BASE + start, BASE + start + 200)
    row = builder.summary()["requests"][0]
    assert row["parts"] == {
        "scheduling.queue": 100,
        "compute.gemm": 400,
        "scheduling.preempt": 200,
        "scheduling.recompute": 200,
    }
    assert row["status"] == "finished"


@pytest.mark.parametrize("launches", [1, 20])
def test_a_process_that_launches_and_shows_no_kernel_is_not_traced(launches: int) -> None:
    builder = Builder()
    for i in range(launches):
        builder.api("cudaLaunchKernel", BASE + i * 10, BASE + i * 10 + 4, correlation=i)
    summary = builder.summary()
    assert summary["shares"]["unknown"] == summary["window"]["span_ns"]
    assert summary["devices"][0]["status"] == "not_traced"
    assert summary["devices"][0]["idle_ns"] is None
    assert findings(summary, "not_traced")


def test_two_files_of_one_rank_are_told_apart_from_copies() -> None:
    first, second = Builder(rank=0), Builder(rank=0)
    for builder in (first, second):
        builder.kernel("gemm_x", BASE, BASE + 100)
    summary = Trace([first.build(), second.build()]).attribute().summary
    assert summary["totals"]["kernels"] == 1
    assert findings(summary, "duplicate_rank")[0]["count"] == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events(), st.randoms(use_true_random=False))
def test_splitting_a_file_in_two_changes_nothing(
    found: list[tuple[str, dict[str, Any]]], generator: random.Random
) -> None:
    found = [event for event in found if event[0] not in ("launch", "step")]
    halves = [Builder(rank=0), Builder(rank=0)]
    for method, arguments in found:
        getattr(generator.choice(halves), method)(**arguments)
    split = Trace([builder.build() for builder in halves]).attribute().summary
    whole = summary_of(found)
    for key in ("shares", "parts", "hidden", "window", "totals", "latency"):
        assert whole[key] == split[key]


def test_a_record_that_occurs_twice_counts_once() -> None:
    builder = Builder()
    for _ in range(2):
        builder.kernel("gemm_x", BASE, BASE + 100, correlation=1)
    summary = builder.summary()
    assert summary["totals"]["kernels"] == 1
    assert findings(summary, "duplicate_records")[0]["count"] == 1


def test_a_request_that_is_told_twice_is_one() -> None:
    builder = Builder()
    builder.row("requests", id="A", arrival=BASE)
    builder.row("requests", id="A", arrival=BASE, finished=BASE + 500)
    builder.kernel("gemm_x", BASE, BASE + 400)
    rows = builder.summary()["requests"]
    assert [(row["id"], row["latency_ns"], row["status"]) for row in rows] == [
        ("A", 500, "finished")
    ]


def test_a_request_that_no_step_takes_waits_to_be_admitted() -> None:
    builder = Builder()
    builder.row("requests", id="C", arrival=BASE + 20)
    builder.step(0, BASE, BASE + 100, A="prefill")
    builder.kernel("gemm_x", BASE, BASE + 100)
    row = builder.summary()["requests"][0]
    assert row["status"] == "unfinished"
    assert row["parts"] == {"scheduling.queue": 80}


def test_admission_in_the_middle_of_an_idle_piece_ends_the_queue_there() -> None:
    builder = Builder()
    builder.row("requests", id="A", arrival=BASE, scheduled=BASE + 40, finished=BASE + 300)
    builder.step(0, BASE + 100, BASE + 300, A="prefill")
    builder.kernel("gemm_x", BASE + 100, BASE + 300)
    parts = builder.summary()["requests"][0]["parts"]
    assert parts == {"scheduling.queue": 40, "scheduling.other": 60, "compute.gemm": 200}


def test_a_long_queue_is_one_piece() -> None:
    builder = Builder()
    builder.row("requests", id="A", arrival=BASE, scheduled=BASE + 10_000, finished=BASE + 10_100)
    for start in range(0, 10_100, 20):
        builder.kernel("gemm_x", BASE + start, BASE + start + 10)
    found = Trace([builder.build()]).attribute().request_segments["A"]
    assert (found.start[0], found.end[0]) == (BASE, BASE + 10_000)


def test_a_worker_that_waits_is_explained_by_the_engine_of_another_process() -> None:
    builder = Builder()
    builder.step(1, BASE, BASE + 100, A="decode")
    builder.span("host", BASE, BASE + 100)
    builder.span("compute", BASE + 20, BASE + 70, process=2, thread=2)
    worker = {"table": "states", "process": 2, "thread": 2, "state": "running"}
    builder.row(**worker, start=BASE, end=BASE + 100)
    builder.span("detokenize", BASE + 100, BASE + 110)
    parts = builder.summary()["parts"]
    assert {name: ns for name, ns in parts.items() if ns} == {
        "compute.cpu": 50,
        "scheduling.host": 50,
        "scheduling.detokenize": 10,
    }
