"""Hints about ranks and links: late peers, unstable collectives, hand-overs, uneven experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.scenes import GEMM, MS, US, Scene, hint, ids, job

PERIOD = 10 * MS
Late = Callable[[int, int], int]
"""How late a rank (first) comes to the collective of a step (second), ns."""


def ranks(
    late: Late,
    *,
    count: int = 2,
    steps: int = 30,
    transfer: Callable[[int], int] = lambda step: 500 * US,
    size: int = 1 << 20,
    **header: Any,
) -> list[Scene]:
    """Ranks that compute 5 ms, meet in an all-reduce, and compute until 9 ms."""
    scenes = []
    for rank in range(count):
        scene = Scene(rank=rank, world_size=count, host="h0", **header)
        t, tokens = 0, []
        for i in range(steps):
            last = max(late(r, i) for r in range(count))
            arrive = t + 5 * MS + late(rank, i)
            done = t + 5 * MS + last + transfer(i)
            end = done + 4 * MS
            scene.step(i, t, end, R="decode" if i else "prefill")
            scene.work(GEMM, t, t + 5 * MS)
            scene.meet(i, arrive, done, bytes=size)
            scene.work("add_kernel", done, end)
            t = end
            tokens.append(t)
        if rank == 0:
            scene.request("R", 0, tokens)
        scenes.append(scene)
    return scenes


def habit(rank: int, ns: int) -> Late:
    """One rank is always late."""
    return lambda r, _: ns if r == rank else 0


def test_a_rank_that_is_always_late() -> None:
    found = hint(job(*ranks(habit(1, 3 * MS))), "R05")
    assert found["class"] == "scheduling"
    assert "waiting for rank 1" in found["title"]
    assert found["evidence"]["wait_ns"] == 30 * 3 * MS
    assert found["evidence"]["transfer_ns"] == 30 * 500 * US
    assert found["evidence"]["last_share"] == 1
    assert found["saving_ns"] == 30 * 3 * MS


def test_waiting_is_not_called_jitter() -> None:
    summary = job(*ranks(lambda r, i: 3 * MS if r == 1 and i % 10 == 0 else 0))
    assert "R06" not in ids(summary)


@pytest.mark.parametrize(
    "late",
    [habit(1, 600 * US), lambda r, i: 3 * MS if r == i % 2 else 0],
    ids=["55 % waiting", "each late in turn"],
)
def test_waiting_without_one_late_rank(late: Late) -> None:
    assert "R05" not in ids(job(*ranks(late)))


def test_a_late_rank_with_a_cause_claims_no_more_than_it() -> None:
    scenes = ranks(habit(1, 25 * MS), steps=30)
    for row in scenes[1].rows["collectives"]:
        scenes[1].span("gc", row["start"] - 24 * MS, row["start"], name="gc gen 2")
    summary = job(*scenes)
    cause, effect = hint(summary, "R08"), hint(summary, "R05")
    assert "rank 1" in cause["title"]
    assert effect["saving_ns"] <= cause["saving_ns"]
    assert effect["evidence"]["late_rank_does"] == "scheduling.gc"
    assert summary["hints"][0]["id"] == "R08"


def launch_bound(lag: Callable[[int], int], *, told: bool = True, steps: int = 12) -> list[Scene]:
    """Ranks that launch eight all-reduces a step, 300 us apart; the second one's host is behind.

    `lag` is by how much at each of a step's all-reduces. The devices have nothing else to do.
    """
    scenes = []
    for rank in range(2):
        scene = Scene(rank=rank, world_size=2, host="h0")
        for step in range(steps):
            begin = done = step * PERIOD
            for i in range(8):
                issued = [begin + (i + 1) * 300 * US, begin + (i + 1) * 300 * US + lag(i)]
                start, done = max(issued[rank] + 5 * US, done), max(issued) + 25 * US
                row = {"issued": issued[rank]} if told else {}
                scene.meet(8 * step + i, start, done, **row)
            scene.step(step, begin, begin + 9 * MS, R="decode" if step else "prefill")
            scene.work("add_kernel", begin + 8 * MS, begin + 9 * MS)
        scene.request("R", 0, [step * PERIOD + 9 * MS for step in range(steps)])
        scenes.append(scene)
    return scenes


def test_a_lag_that_is_only_carried_on_names_nobody() -> None:
    """The host is 200 us behind in every step, from its second all-reduce on."""
    scenes = launch_bound(lambda i: 200 * US if i else 0)
    assert "R05" not in ids(job(*scenes))


def test_a_lag_that_grows_names_the_rank() -> None:
    found = hint(job(*launch_bound(lambda i: (i + 1) * 700 * US)), "R05")["evidence"]
    assert found["rank"] == 1
    assert found["wait_ns"] == 12 * 8 * 700 * US
    assert found["carried_ns"] == 12 * 7 * (300 - 20) * US


def test_a_delay_at_the_start_of_a_step_counts_once() -> None:
    found = hint(job(*launch_bound(lambda i: 5 * MS)), "R05")["evidence"]
    assert found["wait_ns"] == 12 * 5 * MS
    assert found["carried_ns"] == 12 * 7 * (300 - 20) * US


def test_all_waiting_counts_where_nobody_tells_when_a_collective_was_issued() -> None:
    found = hint(job(*launch_bound(lambda i: 5 * MS, told=False)), "R05")["evidence"]
    assert found["wait_ns"] == 12 * (5 * MS + 7 * (300 - 20) * US)
    assert found["carried_ns"] == 0


def test_ranks_are_not_compared_while_one_is_missing() -> None:
    scenes = ranks(habit(1, 3 * MS))
    for scene in scenes:
        scene.timeline.header.world_size = 4
    summary = job(*scenes)
    assert "G1" in ids(summary)
    assert not ids(summary) & {"R05", "R06", "R31"}


def tail(factor: int) -> Callable[[int], int]:
    """Every tenth transfer is slow."""
    return lambda step: 100 * US * (factor if step % 10 == 9 else 1)


def test_a_collective_that_is_unstable_by_itself() -> None:
    found = hint(job(*ranks(habit(1, 2 * US), transfer=tail(6), nccl="2.28.9")), "R06")
    assert found["class"] == "communication"
    assert found["evidence"]["p99_ns"] == 602 * US
    assert found["evidence"]["p50_ns"] == 102 * US
    assert "2.28.9" in found["title"]
    assert found["evidence"]["report"] is None
    assert found["saving_ns"] == 3 * 500 * US


def test_a_tail_below_its_threshold() -> None:
    assert "R06" not in ids(job(*ranks(habit(1, 2 * US), transfer=tail(4))))


def test_few_calls_are_no_distribution() -> None:
    assert "R06" not in ids(job(*ranks(habit(1, 2 * US), transfer=tail(6), steps=19)))


def test_one_rank_alone_cannot_tell_jitter_from_waiting() -> None:
    assert not ids(job(ranks(habit(1, 0), transfer=tail(9))[0])) & {"R05", "R06"}


def test_a_report_is_cited_only_for_its_version_and_condition() -> None:
    eight = ranks(habit(7, 2 * US), count=8, transfer=tail(6), nccl="2.29.3", steps=30)
    for scene in eight:
        scene.device(name="NVIDIA H100 80GB HBM3", memory_bytes=85_000_000_000)
    found = hint(job(*eight), "R06")
    assert "regression was reported for NCCL 2.29 " in found["evidence"]["report"]
    two = ranks(habit(1, 2 * US), transfer=tail(6), nccl="2.29.3")
    assert hint(job(*two), "R06")["evidence"]["report"] is None


def contended(slow: int, copy: int = 300 * US) -> list[Scene]:
    """Every third all-reduce runs under a peer copy and takes `slow`."""
    scenes = ranks(habit(1, 0), transfer=lambda i: slow if i % 3 == 0 else 500 * US)
    for scene in scenes:
        for row in scene.rows["collectives"]:
            if row["seq"] % 3 == 0:
                scene.copy(3, row["start"], row["start"] + copy, bytes=1 << 26)
    return scenes


def test_a_link_shared_with_peer_copies() -> None:
    found = hint(job(*contended(800 * US)), "R24")
    assert found["class"] == "communication"
    assert found["evidence"]["median_with_copies_ns"] == 800 * US
    assert found["evidence"]["median_without_ns"] == 500 * US
    assert found["saving_ns"] == 10 * 300 * US


@pytest.mark.parametrize(("slow", "copy"), [(620 * US, 300 * US), (800 * US, 100 * US)])
def test_a_link_hardly_shared(slow: int, copy: int) -> None:
    assert "R24" not in ids(job(*contended(slow, copy)))


def test_collectives_of_unknown_size_are_not_compared() -> None:
    """A long one beside a copy may simply be a large one."""
    scenes = contended(800 * US)
    for scene in scenes:
        for row in scene.rows["collectives"]:
            del row["bytes"]
    assert "R24" not in ids(job(*scenes))


def handed_over(length: int, *, moved: int = 1 << 26, pieces: int = 100, post: int = 0) -> Scene:
    """A KV hand-over at the beginning of a request that has its first token after 100 ms."""
    scene = Scene()
    scene.step(0, 0, 100 * MS, R="prefill")
    scene.work(GEMM, length, 100 * MS)
    scene.span(
        "kv_transfer",
        0,
        length,
        request="R",
        bytes=moved,
        pieces=pieces,
        post_ns=post,
        link_bytes_s=50_000_000_000,
    )
    for i in range(1, 20):
        scene.step(i, 90 * MS + i * PERIOD, 100 * MS + i * PERIOD, R="decode")
        scene.work(GEMM, 90 * MS + i * PERIOD, 100 * MS + i * PERIOD)
    scene.request("R", 0, [100 * MS + i * PERIOD for i in range(20)], scheduled=0)
    return scene


def test_a_slow_hand_over() -> None:
    found = hint(handed_over(25 * MS).summary(), "R21")
    assert found["saving_ns"] == 25 * MS
    assert found["evidence"]["rate_bytes_s"] == pytest.approx((1 << 26) / 0.025)
    assert "posting" not in found["title"]


def test_a_hand_over_in_tiny_pieces_names_posting() -> None:
    found = hint(handed_over(25 * MS, pieces=8192, post=20 * MS).summary(), "R21")
    assert "posting them takes 80 %" in found["title"]


def test_a_quick_hand_over_near_the_link() -> None:
    assert "R21" not in ids(handed_over(15 * MS, moved=400_000_000).summary())


def test_a_hand_over_far_below_its_link() -> None:
    assert "R21" in ids(handed_over(15 * MS, moved=200_000_000).summary())


def experts(times: Sequence[int], steps: int = 12) -> list[Scene]:
    """Ranks whose expert kernels last differently before an all-to-all."""
    scenes = []
    for rank, own in enumerate(times):
        scene = Scene(rank=rank, world_size=len(times), host="h0")
        t, tokens = 0, []
        for i in range(steps):
            done = t + max(times) + 200 * US
            scene.step(i, t, done + 2 * MS, R="decode" if i else "prefill")
            scene.work("fused_moe_kernel", t, t + own)
            scene.meet(i, t + own, done, comm="ep", op="all_to_all")
            scene.work(GEMM, done, done + 2 * MS)
            t = done + 2 * MS
            tokens.append(t)
        if rank == 0:
            scene.request("R", 0, tokens)
        scenes.append(scene)
    return scenes


def test_one_rank_with_more_expert_work() -> None:
    found = hint(job(*experts([4 * MS, 4 * MS, 4 * MS, 8 * MS])), "R31")
    assert "Rank 3" in found["title"]
    assert found["evidence"]["more_than_mean"] == pytest.approx(0.6, abs=0.01)
    assert found["saving_ns"] == 12 * 4 * MS


def test_nearly_even_experts() -> None:
    assert "R31" not in ids(job(*experts([4 * MS, 4 * MS, 4 * MS, 5_500 * US])))


def test_large_collectives_far_below_a_direct_link_are_only_possible() -> None:
    scenes = ranks(habit(1, 0), transfer=lambda i: 10 * MS, size=1 << 28)
    for scene in scenes:
        scene.device()
    found = hint(job(*scenes), "R20")
    assert found["confidence"] == "low"
    assert found["saving_ns"] is None


def test_an_unknown_device_has_no_link() -> None:
    scenes = ranks(habit(1, 0), transfer=lambda i: 10 * MS, size=1 << 28)
    for scene in scenes:
        scene.device(name="Unknown Accelerator")
    assert "R20" not in ids(job(*scenes))
