"""Hints about the host: each on its clean-cut symptom, below its threshold, and explained away."""

from __future__ import annotations

from typing import Any

import pytest

from rca_llm.table import UNKNOWN
from tests.scenes import MS, US, S, Scene, hint, ids, spread
from tests.timelines import THREAD

STEPS = range(1, 20)
PERIOD = 10 * MS


def serving(length: int, offset: int = 2 * MS) -> Scene:
    """A scene whose steps all have one idle time."""
    scene = Scene()
    scene.serve(idle=spread(STEPS, offset, length))
    return scene


def fill(scene: Scene, kind: str, length: int, offset: int = 2 * MS, **more: object) -> None:
    """A span in the idle time of every step."""
    for i in STEPS:
        start = i * PERIOD + offset
        scene.span(kind, start, start + length, **more)


def test_nothing_is_said_of_a_run_without_idle_time() -> None:
    scene = Scene()
    scene.serve()
    assert ids(scene.summary()) == set()


def test_gc_pause_is_charged_to_the_request_that_it_stops() -> None:
    scene = Scene()
    scene.serve(steps=20, period=100 * MS, idle={9: [(10 * MS, 60 * MS)]})
    scene.span("gc", 910 * MS, 970 * MS, name="gc gen 2")
    found = hint(scene.summary(), "R08")
    assert found["saving_ns"] == 60 * MS
    assert found["evidence"]["generation"] == 2
    assert found["requests"] == ["R"]


def test_short_collections_are_no_pause() -> None:
    scene = Scene()
    scene.serve(steps=20, period=100 * MS, idle={9: [(10 * MS, 19 * MS)]})
    scene.span("gc", 910 * MS, 929 * MS, name="gc gen 2")
    assert "R08" not in ids(scene.summary())


def test_a_collection_under_device_work_delays_nothing() -> None:
    scene = Scene()
    scene.serve(steps=20, period=100 * MS)
    scene.span("gc", 910 * MS, 970 * MS, name="gc gen 2")
    assert "R08" not in ids(scene.summary())


@pytest.mark.parametrize(("waiting", "fires"), [(2_100 * US, True), (1_700 * US, False)])
def test_run_queue_delay_from_a_fifth_of_the_steps(waiting: int, fires: bool) -> None:
    scene = serving(waiting)
    for i in STEPS:
        start = i * PERIOD + 2 * MS
        scene.state("runnable", start, start + waiting)
        scene.state("running", start, start + waiting, thread=99)
    scene.row("threads", process=1, thread=99, name="grammar")
    scene.row("processes", process=1, name="engine")
    scene.timeline.header.extra["neighbours"] = {"7": "backup"}
    scene.sample("cpu.neighbour", 3 * PERIOD, 0.9, process=7)
    summary = scene.summary()
    assert ("R07" in ids(summary)) == fires
    if fires:
        found = hint(summary, "R07")
        assert found["saving_ns"] == waiting * len(STEPS)
        rivals = found["evidence"]["competing_threads"]
        assert "grammar" in rivals
        assert "backup (process 7, outside the trace)" in rivals
        assert not ids(summary) & {"R09", "R03"}


def test_cgroup_throttling_without_thread_states_is_only_possible() -> None:
    scene = Scene()
    scene.serve()
    scene.sample("cpu.throttled_ns", 0, 0.0)
    scene.sample("cpu.throttled_ns", 200 * MS, 20.0 * MS)
    found = hint(scene.summary(), "R07")
    assert found["confidence"] == "low"
    assert found["saving_ns"] is None
    assert "ossible" in found["title"]


def test_host_work_between_steps_is_split_by_ranges() -> None:
    scene = Scene()
    scene.serve(idle=spread(range(20), 7 * MS, 3 * MS))
    for i in range(20):
        scene.span("host", i * PERIOD + 7 * MS, i * PERIOD + 9 * MS, name="schedule")
        scene.span("host", i * PERIOD + 9 * MS, i * PERIOD + 10 * MS, name="sample")
    found = hint(scene.summary(), "R09")
    assert found["confidence"] == "medium"
    assert "schedule" in found["title"]
    assert found["evidence"]["step_share"] == pytest.approx(0.3, abs=0.01)


def test_host_work_below_a_fifth_of_the_step_is_normal() -> None:
    scene = Scene()
    scene.serve(idle=spread(range(20), 8_100 * US, 1_900 * US))
    for i in range(20):
        scene.span("host", i * PERIOD + 8_100 * US, (i + 1) * PERIOD, name="schedule")
    assert "R09" not in ids(scene.summary())


def test_a_collection_between_steps_is_not_host_overhead() -> None:
    scene = Scene()
    scene.serve(steps=20, period=100 * MS, idle=spread(range(20), 70 * MS, 30 * MS))
    for i in range(20):
        scene.span("gc", i * 100 * MS + 70 * MS, (i + 1) * 100 * MS, name="gc gen 2")
    summary = scene.summary()
    assert "R08" in ids(summary)
    assert "R09" not in ids(summary)


@pytest.mark.parametrize(("waiting", "fires"), [(1_600 * US, True), (1_400 * US, False)])
def test_waiting_for_the_lock_names_who_holds_it(waiting: int, fires: bool) -> None:
    scene = serving(waiting)
    for i in STEPS:
        start = i * PERIOD + 2 * MS
        scene.state("gil", start, start + waiting)
        scene.state("running", start, start + waiting, thread=7)
    scene.row("threads", process=1, thread=7, name="detokenizer")
    summary = scene.summary()
    assert ("R10" in ids(summary)) == fires
    if fires:
        found = hint(summary, "R10")
        assert "detokenizer" in found["evidence"]["holder"]
        assert found["saving_ns"] == waiting * len(STEPS)


@pytest.mark.parametrize(("share", "fires"), [(0.25, True), (0.15, False)])
def test_tokenising_of_the_time_to_first_token(share: float, fires: bool) -> None:
    scene = Scene()
    scene.serve(steps=20)
    wait = round(PERIOD * share / (1 - share))
    scene.rows["requests"][0] |= {"arrival": -wait, "scheduled": 0}
    scene.span("tokenize", -wait, 0, request="R", thread=5)
    summary = scene.summary()
    assert ("R11" in ids(summary)) == fires
    assert "R01" not in ids(summary)


def test_detokenising_after_the_last_token() -> None:
    scene = Scene()
    scene.serve(steps=20)
    scene.rows["requests"][0]["finished"] = 280 * MS
    scene.span("detokenize", 200 * MS, 280 * MS, request="R", thread=5)
    found = hint(scene.summary(), "R11")
    assert found["saving_ns"] == 80 * MS
    assert "after its tokens" in found["title"]
    assert found["evidence"]["after_first_token_ns"] == 270 * MS
    assert found["evidence"]["share"] == pytest.approx(80 / 270)


def told_by_spans(first_token: int | None, **spans: tuple[int, int]) -> dict[str, Any]:
    """A request of 100 ms without an engine, of which spans tell."""
    scene = Scene()
    first = UNKNOWN if first_token is None else first_token
    times = {"arrival": 0, "finished": 100 * MS, "first_token": first}
    scene.row("requests", id="R", status="finished", **times)
    for kind, (start, end) in spans.items():
        scene.span(kind, start, end, request="R")
    return scene.summary()


def test_detokenising_before_the_first_token_is_of_the_whole_request() -> None:
    first = 100 * MS - 100 * US  # stamped when the text left
    found = hint(told_by_spans(first, compute=(0, 70 * MS), detokenize=(70 * MS, 100 * MS)), "R11")
    assert found["title"] == "Detokenising takes 30 ms per request, 30 % of the latency"
    assert found["evidence"]["share"] == pytest.approx(0.3)
    summary = told_by_spans(first, compute=(0, 85 * MS), detokenize=(85 * MS, 100 * MS))
    assert "R11" not in ids(summary)


def test_detokenising_that_costs_next_to_nothing_is_no_hint() -> None:
    after = 100 * MS - 400 * US
    summary = told_by_spans(after, compute=(0, after), detokenize=(after, 100 * MS))
    assert "R11" not in ids(summary)  # all of the time after the first token, 0.4 % of the latency


@pytest.mark.parametrize(("length", "fires"), [(25 * MS, True), (15 * MS, False)])
def test_tokenising_where_no_first_token_is_known(length: int, fires: bool) -> None:
    summary = told_by_spans(None, tokenize=(0, length), compute=(length, 100 * MS))
    assert ("R11" in ids(summary)) == fires
    if fires:
        title = "Tokenising takes 25 ms of 100 ms per request"
        assert hint(summary, "R11")["title"] == title


def test_tokenising_after_the_first_token_is_not_of_the_time_before_it() -> None:
    summary = told_by_spans(10 * MS, compute=(0, 90 * MS), tokenize=(90 * MS, 100 * MS))
    assert "R11" not in ids(summary)


def synchronising(scene: Scene, blocked: int, *, tiny: bool = True) -> None:
    """In every step a synchronisation ends when the device stops, 2 ms after the step's start."""
    for i in STEPS:
        stop = i * PERIOD + 2 * MS
        if tiny:
            scene.copy(1, stop - 2 * US, stop, bytes=4, src=2, dst=1, correlation=10_000 + i)
        scene.api("cudaStreamSynchronize", stop - blocked, stop)


def test_a_synchronisation_inside_a_step_that_drains_the_device() -> None:
    scene = serving(1 * MS)
    synchronising(scene, 1_500 * US)
    for i in STEPS:
        start = i * PERIOD
        scene.span(None, start, start + 5 * MS, name="sampler", domain="nvtx")
    found = hint(scene.summary(), "R15")
    assert found["evidence"]["range"] == "sampler"
    assert found["evidence"]["calls"] == len(STEPS)
    assert found["evidence"]["calls_after_tiny_copy"] == len(STEPS)
    assert found["saving_ns"] == pytest.approx(len(STEPS) * 1 * MS, rel=0.02)


def test_a_synchronisation_under_a_tenth_of_the_step_is_small() -> None:
    scene = serving(1 * MS)
    synchronising(scene, 900 * US)
    assert "R15" not in ids(scene.summary())


def test_the_wait_at_the_end_of_a_step_is_normal() -> None:
    scene = Scene()
    scene.serve(idle=spread(range(20), 9 * MS, 1 * MS))
    for i in range(20):
        scene.api("cudaStreamSynchronize", i * PERIOD + 1 * MS, i * PERIOD + 9 * MS)
    assert "R15" not in ids(scene.summary())


def test_a_synchronisation_under_queued_work_costs_nothing() -> None:
    scene = Scene()
    scene.serve()
    for i in STEPS:
        scene.api("cudaStreamSynchronize", i * PERIOD + 1 * MS, i * PERIOD + 5 * MS)
    assert "R15" not in ids(scene.summary())


@pytest.mark.parametrize(("calls", "fires"), [(1, True), (2, True)])
def test_allocations_in_every_step(calls: int, fires: bool) -> None:
    scene = serving(1 * MS)
    for i in STEPS:
        start = i * PERIOD + 2 * MS
        for j in range(calls):
            scene.api("cudaMalloc", start + j * 400 * US, start + (j + 1) * 400 * US)
    summary = scene.summary()
    assert ("R38" in ids(summary)) == fires
    assert hint(summary, "R38")["saving_ns"] == calls * 400 * US * len(STEPS)


def test_one_short_allocation_is_no_churn() -> None:
    scene = serving(1 * MS)
    scene.api("cudaMalloc", 9 * PERIOD + 2 * MS, 9 * PERIOD + 2_900 * US)
    assert "R38" not in ids(scene.summary())


def test_stream_ordered_allocations_do_not_count() -> None:
    scene = serving(1 * MS)
    for i in STEPS:
        scene.api("cudaMallocAsync", i * PERIOD + 2 * MS, i * PERIOD + 2_500 * US)
    assert "R38" not in ids(scene.summary())


def test_a_spinning_thread_is_told_and_not_blamed() -> None:
    scene = Scene()
    scene.serve()
    for i in range(20):
        start, end = i * PERIOD + 1 * MS, i * PERIOD + 9 * MS
        scene.api("cudaStreamSynchronize", start, end)
        scene.state("running", start, end)
    summary = scene.summary()
    found = hint(summary, "R45")
    assert found["saving_ns"] is None
    assert found["confidence"] != "high"
    assert not ids(summary) & {"R09", "R10", "R15"}


def test_a_blocked_thread_does_not_spin() -> None:
    scene = Scene()
    scene.serve()
    for i in range(20):
        start, end = i * PERIOD + 1 * MS, i * PERIOD + 9 * MS
        scene.api("cudaStreamSynchronize", start, end)
        scene.state("blocked", start, end)
    assert "R45" not in ids(scene.summary())


@pytest.mark.parametrize(("length", "fires"), [(600 * US, True), (400 * US, False)])
def test_serialisation_from_a_twentieth_of_the_latency(length: int, fires: bool) -> None:
    scene = serving(length)
    fill(scene, "serialize", length)
    summary = scene.summary()
    assert ("R48" in ids(summary)) == fires
    if fires:
        assert hint(summary, "R48")["class"] == "communication"
        assert hint(summary, "R48")["saving_ns"] == length * len(STEPS)


@pytest.mark.parametrize(("length", "fires"), [(600 * US, True), (400 * US, False)])
def test_files_read_in_steps(length: int, fires: bool) -> None:
    scene = serving(length)
    fill(scene, "file", length, path="/cache/kv.bin")
    summary = scene.summary()
    assert ("R49" in ids(summary)) == fires
    if fires:
        assert "/cache/kv.bin" in hint(summary, "R49")["title"]


@pytest.mark.parametrize(("length", "fires"), [(300 * US, True), (150 * US, False)])
def test_log_writes_on_the_loop_thread(length: int, fires: bool) -> None:
    scene = serving(length)
    fill(scene, "log", length, path="/var/log/engine.log")
    summary = scene.summary()
    assert ("R37" in ids(summary)) == fires
    assert "R49" not in ids(summary)
    if fires:
        assert hint(summary, "R37")["class"] == "io"


def test_one_long_log_write_counts_by_itself() -> None:
    scene = Scene()
    scene.serve(steps=20, period=100 * MS, idle={9: [(10 * MS, 12 * MS)]})
    scene.span("log", 910 * MS, 922 * MS, path="stdout")
    found = hint(scene.summary(), "R37")
    assert found["saving_ns"] == 12 * MS


def test_log_writes_of_another_thread_delay_nothing() -> None:
    scene = serving(3 * MS)
    fill(scene, "log", 3 * MS, thread=THREAD + 1)
    assert "R37" not in ids(scene.summary())


@pytest.mark.parametrize(("per_second", "fires"), [(15, True), (8, False)])
def test_major_faults_in_steady_state(per_second: int, fires: bool) -> None:
    scene = Scene()
    scene.serve(steps=20, period=S)
    for second in range(21):
        scene.sample("process.major_faults", second * S, float(second * per_second), process=1)
    summary = scene.summary()
    assert ("R43" in ids(summary)) == fires


@pytest.mark.parametrize("waiting", [True, False])
def test_time_between_steps_counts_only_while_a_request_waits(waiting: bool) -> None:
    scene, t, tokens = Scene(), 0, []
    for i in range(20):
        scene.step(i, t, t + 7 * MS, **{"R" if waiting else f"r{i}": "decode"})
        scene.work("nvjet_gemm", t, t + 7 * MS, graph=True)
        tokens.append(t + 7 * MS)
        if not waiting:
            scene.request(f"r{i}", t, [t + 7 * MS])
        scene.span("host", t + 7 * MS, t + 10 * MS, name="poll")
        t += 10 * MS
    if waiting:
        scene.request("R", 0, tokens)
    assert ("R09" in ids(scene.summary())) == waiting


def test_starvation_between_steps_counts_too() -> None:
    scene, t, tokens = Scene(), 0, []
    for i in range(20):
        scene.step(i, t, t + 7 * MS, R="decode" if i else "prefill")
        scene.work("nvjet_gemm", t, t + 7 * MS, graph=True)
        tokens.append(t + 7 * MS)
        scene.state("runnable", t + 7 * MS, t + 10 * MS)
        t += 10 * MS
    scene.request("R", 0, tokens)
    summary = scene.summary()
    assert hint(summary, "R07")["saving_ns"] == 19 * 3 * MS
    assert "R09" not in ids(summary)
