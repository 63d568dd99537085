"""Hints about waiting: clients, queues, prefill of others, preemption, objectives."""

from __future__ import annotations

import pytest

from rca_llm import hints
from rca_llm.attribute import job as jobs
from rca_llm.attribute.life import life as life_of
from rca_llm.attribute.requests import requests_of
from rca_llm.attribute.view import engine_view
from rca_llm.hints.thresholds import load
from rca_llm.whatif import Model
from tests.scenes import GEMM, MS, US, S, Scene, hint, ids

PERIOD = 10 * MS


def crowd(waits: list[int], own: int = 100 * MS, *, pause: int = 0) -> Scene:
    """An engine that works without end; each request waits, then gets its first token after `own`.

    `pause` is left free at the end of every step of 10 ms.
    """
    scene = Scene()
    last = max(waits) + 2 * own
    for i in range(last // PERIOD + 1):
        start = i * PERIOD
        scene.step(
            i, start, start + PERIOD - pause, **{f"r{n}": "decode" for n in range(len(waits))}
        )
        scene.work(GEMM, start, start + PERIOD - pause, graph=True)
    for n, wait in enumerate(waits):
        tokens = [wait + own, wait + 2 * own]
        scene.request(f"r{n}", 0, tokens, scheduled=wait)
    return scene


def test_requests_that_wait_while_the_engine_works() -> None:
    found = hint(crowd([80 * MS] * 5).summary(), "R01")
    assert found["class"] == "scheduling"
    assert found["evidence"]["requests_waiting"] == 5
    assert found["evidence"]["mean_queue_ns"] == 80 * MS
    assert found["evidence"]["queue_share"] == pytest.approx(80 / 180)
    assert found["saving_ns"] == 5 * 80 * MS


@pytest.mark.parametrize(
    "waits",
    [[60 * MS] * 5, [80 * MS, *[0] * 9]],
    ids=["37.5 % of the time to first token", "a tenth of the requests"],
)
def test_queueing_below_its_thresholds(waits: list[int]) -> None:
    assert "R01" not in ids(crowd(waits).summary())


def test_an_engine_that_stands_still_is_not_the_queue() -> None:
    assert "R01" not in ids(crowd([80 * MS] * 5, pause=2 * MS).summary())


def client(submitted: int, ttft: int = 100 * MS, *, growing: bool = False) -> Scene:
    """Six requests that arrive one after another and were submitted `submitted` before."""
    scene = Scene()
    for n in range(6):
        arrival = n * 500 * MS
        first = arrival + (ttft * (n + 1) if growing else ttft)
        scene.step(n, arrival, arrival + 400 * MS, **{f"r{n}": "prefill"})
        scene.work(GEMM, arrival, arrival + 400 * MS, graph=True)
        held = submitted * (n + 1) // 3
        scene.request(f"r{n}", arrival, [first, arrival + 400 * MS], client_submit=arrival - held)
    return scene


def test_a_client_that_holds_requests_back() -> None:
    found = hint(client(60 * MS).summary(), "R14")
    assert found["evidence"]["most_in_flight"] == 1
    assert found["evidence"]["client_share"] == pytest.approx(420 / 1020, abs=1e-5)
    assert found["saving_ns"] == 420 * MS


def test_a_client_just_below_the_threshold() -> None:
    assert "R14" not in ids(client(36 * MS).summary())


def test_a_server_that_grows_with_the_wait_is_not_the_client() -> None:
    assert "R14" not in ids(client(200 * MS, 50 * MS, growing=True).summary())


def starved(prefills: int, length: int = 50 * MS) -> Scene:
    """Request A decodes ten times, stalls behind prefill steps of B, and goes on."""
    scene, t, tokens = Scene(), 0, []
    for i in range(20 + prefills):
        foreign = 10 <= i < 10 + prefills
        lasting = length if foreign else PERIOD
        work = {"B": "prefill"} if foreign else {"A": "decode" if i else "prefill"}
        scene.step(i, t, t + lasting, **work)
        scene.work(GEMM, t, t + lasting, graph=True)
        t += lasting
        if not foreign:
            tokens.append(t)
    scene.request("A", 0, tokens)
    scene.request("B", 100 * MS, [100 * MS + prefills * length], scheduled=100 * MS)
    return scene


def test_a_decode_behind_the_prefill_of_another() -> None:
    found = hint(starved(4).summary(), "R02")
    assert "request B (64 tokens in 4 chunks)" in found["title"]
    assert found["saving_ns"] == 200 * MS
    assert found["requests"] == ["A"]
    assert found["evidence"]["longest_itl_ns"] == 210 * MS


def test_one_long_prefill_step_counts_by_the_time_between_tokens() -> None:
    assert "R02" in ids(starved(1, 60 * MS).summary())


def test_two_short_prefill_steps_are_normal() -> None:
    assert "R02" not in ids(starved(2, 15 * MS).summary())


def test_waiting_for_prefill_before_the_first_token_is_queueing() -> None:
    scene = Scene()
    for i in range(5):
        scene.step(i, i * PERIOD, (i + 1) * PERIOD, B="prefill")
        scene.work(GEMM, i * PERIOD, (i + 1) * PERIOD, graph=True)
    scene.step(5, 50 * MS, 60 * MS, A="prefill")
    scene.work(GEMM, 50 * MS, 60 * MS, graph=True)
    scene.request("A", 0, [60 * MS], scheduled=0)
    scene.request("B", 0, [50 * MS])
    assert "R02" not in ids(scene.summary())


def preempted(recomputed: int, *, usage: float | None = None) -> Scene:
    """Request A is preempted for 50 ms after ten steps and computes some tokens again."""
    scene, tokens = Scene(), [(i + 1) * PERIOD for i in range(10)]
    for i in range(10):
        scene.step(i, i * PERIOD, (i + 1) * PERIOD, A="decode" if i else "prefill", B="decode")
        scene.work(GEMM, i * PERIOD, (i + 1) * PERIOD, graph=True)
    for i in range(10, 15):
        scene.step(i, i * PERIOD, (i + 1) * PERIOD, B="decode")
        scene.work(GEMM, i * PERIOD, (i + 1) * PERIOD, graph=True)
    scene.step(15, 150 * MS, 170 * MS, A="recompute")
    scene.rows["batch"][-1]["tokens"] = recomputed
    scene.work(GEMM, 150 * MS, 170 * MS, graph=True)
    scene.mark("preempted", 100 * MS, "A")
    scene.mark("resumed", 150 * MS, "A")
    scene.request("A", 0, [*tokens, 170 * MS], scheduled=0)
    scene.request("B", 0, [*tokens, 150 * MS], scheduled=0)
    if usage is not None:
        scene.sample("kv.usage", 99 * MS, usage)
    return scene


def test_preemption_counts_waiting_and_repeated_work() -> None:
    found = hint(preempted(26, usage=0.99).summary(), "R13")
    assert found["confidence"] == "high"
    assert found["evidence"]["recomputed_tokens"] == 26
    assert found["evidence"]["waiting_ns"] == 50 * MS
    assert found["evidence"]["recompute_ns"] == 20 * MS
    assert found["saving_ns"] == 70 * MS
    assert "lost 26 computed tokens" in found["title"]


def test_few_repeated_tokens_are_no_finding() -> None:
    assert "R13" not in ids(preempted(1).summary())


def test_preemption_with_free_blocks_is_possibly_fragmentation() -> None:
    summary = preempted(26, usage=0.6).summary()
    assert hint(summary, "R13")["confidence"] == "low"
    assert hint(summary, "R35")["confidence"] == "low"
    assert hint(summary, "R35")["saving_ns"] is None


def test_preemption_with_a_full_cache_is_not_fragmentation() -> None:
    assert "R35" not in ids(preempted(26, usage=0.97).summary())


def objective(slow: int, minutes: int, each: int = 20) -> Scene:
    """`each` requests a minute, of which one is slow."""
    scene = Scene()
    for n in range(minutes * each):
        arrival = n * 60 * S // each
        lasting = slow if n % each == 0 else 100 * MS
        scene.request(f"r{n}", arrival, [arrival + lasting])
    return scene


def test_an_objective_missed_for_five_minutes() -> None:
    found = hint(objective(900 * MS, 6).summary(), "R33")
    assert found["evidence"]["highest_p99_ns"] == 900 * MS
    assert found["evidence"]["consecutive_windows"] == 6
    assert found["saving_ns"] is None


@pytest.mark.parametrize(
    ("slow", "minutes", "each"), [(900 * MS, 4, 20), (790 * MS, 6, 20), (900 * MS, 6, 19)]
)
def test_an_objective_needs_five_windows_with_enough_requests(
    slow: int, minutes: int, each: int
) -> None:
    assert "R33" not in ids(objective(slow, minutes, each).summary())


def test_windows_can_be_shorter_by_configuration() -> None:
    timeline = objective(900 * MS, 4).build()
    summary = __import__("rca_llm.trace", fromlist=["Trace"]).Trace([timeline]).attribute().summary
    job = jobs.attribute([timeline])
    view = engine_view(job.ranks, 0, job.collectives)
    lives = [
        life
        for request in requests_of(timeline)
        if (life := life_of(request, *job.ranks[0], view)) is not None
    ]
    limits = {id: dict(rows) for id, rows in load().items()}
    limits["R33"]["windows"] = 3
    hints.explain(summary, Model(job, lives), limits)
    assert "R33" in ids(summary)


@pytest.mark.parametrize(("length", "fires"), [(1_200 * US, True), (900 * US, False)])
def test_guided_decoding(length: int, fires: bool) -> None:
    scene = Scene()
    scene.serve(idle={i: [(2 * MS, length)] for i in range(20)})
    for i in range(20):
        start = i * PERIOD + 2 * MS
        scene.span("host", start, start + length, name="xgrammar.fill_bitmask")
    summary = scene.summary()
    assert ("R39" in ids(summary)) == fires


@pytest.mark.parametrize(("tokens", "fires"), [(1, True), (2, False)])
def test_rejected_drafts(tokens: int, fires: bool) -> None:
    scene, times = Scene(), [PERIOD]
    scene.step(0, 0, PERIOD, A="prefill")
    scene.work(GEMM, 0, PERIOD, graph=True)
    for i in range(1, 20):
        start = i * PERIOD
        scene.step(i, start, start + PERIOD, A="decode")
        scene.rows["batch"][-1]["tokens"] = 4
        scene.span("host", start, start + 3 * MS, name="draft_model.propose")
        scene.work(GEMM, start, start + PERIOD, graph=True)
        times += [start + PERIOD] * tokens
    scene.request("A", 0, times, scheduled=0)
    summary = scene.summary()
    assert ("R40" in ids(summary)) == fires
    if fires:
        assert hint(summary, "R40")["evidence"]["accepted_length"] == 1


@pytest.mark.parametrize(("length", "fires"), [(50 * MS, True), (15 * MS, False)])
def test_a_client_that_reads_slowly(length: int, fires: bool) -> None:
    scene = Scene()
    scene.serve()
    scene.rows["requests"][0]["finished"] = 200 * MS + length
    scene.span("network", 200 * MS, 200 * MS + length, name="answer.write", request="R", thread=9)
    scene.call("send", 200 * MS, 200 * MS + length, thread=9)
    scene.state("blocked", 200 * MS, 200 * MS + length, thread=9)
    summary = scene.summary()
    assert ("R50" in ids(summary)) == fires
    assert "R30" not in ids(summary)
    if fires:
        found = hint(summary, "R50")
        assert (found["confidence"], found["saving_ns"]) == ("high", length)
        assert found["title"].startswith("Socket writes block")


def test_writes_are_charged_what_requests_lose_by_them_and_no_more() -> None:
    """The spans hold work too, and sends under which the engine still computed for the request."""
    scene = Scene()
    scene.serve()
    scene.rows["requests"][0]["finished"] = 300 * MS
    scene.span("network", 100 * MS, 290 * MS, name="send", request="R", thread=9)
    for begin in (100, 240):
        scene.call("sendmsg", begin * MS, (begin + 40) * MS, thread=9)
    scene.call("recv", 285 * MS, 289 * MS, thread=9)
    summary = scene.summary()
    found = hint(summary, "R50")
    lost = summary["requests"][0]["parts"]["io.network"]
    assert found["evidence"]["writes"] == 2
    assert found["saving_ns"] == found["evidence"]["write_ns"] == 40 * MS <= lost


def test_a_span_alone_says_no_more_than_it_is_called() -> None:
    scene = Scene()
    scene.serve()
    scene.rows["requests"][0]["finished"] = 250 * MS
    scene.span("network", 200 * MS, 250 * MS, name="send", request="R", thread=9)
    scene.call("send", 200 * MS, 250 * MS, thread=8)  # of another thread
    found = hint(scene.summary(), "R50")
    assert found["confidence"] == "low"
    assert found["title"] == (
        "Possible: Spans of the network (send) take 50 ms after the first token; no socket write"
        " that blocked was recorded in them"
    )


def test_a_wait_for_a_socket_of_asyncio_is_a_recorded_write() -> None:
    scene = Scene()
    scene.serve()
    scene.rows["requests"][0]["finished"] = 250 * MS
    scene.span("network", 200 * MS, 250 * MS, name="drain", request="R", thread=9)
    assert hint(scene.summary(), "R50")["confidence"] == "medium"


def test_a_front_end_whose_thread_is_busy() -> None:
    scene = Scene()
    scene.serve()
    scene.rows["requests"][0]["finished"] = 300 * MS
    scene.span("network", 200 * MS, 300 * MS, name="http response", request="R", thread=9)
    scene.state("running", 200 * MS, 300 * MS, thread=9)
    summary = scene.summary()
    assert hint(summary, "R30")["evidence"]["on_cpu_share"] == 1
    assert "R50" not in ids(summary)
