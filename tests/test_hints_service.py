"""Without steps, rules judge the time of requests, not a window in which nobody asked."""

from __future__ import annotations

import pytest

from tests.scenes import GEMM, MS, US, S, Scene, hint, ids

H2D, PAGEABLE, DEVICE = 0, 0, 2
PEAK = 989.4e12
REQUESTS = range(4)
LASTING = 100 * MS


def asked() -> Scene:
    """Four requests of 100 ms in ten seconds, of which nothing tells but they themselves."""
    scene = Scene()
    scene.device()
    scene.work(GEMM, 0, MS)
    for n in REQUESTS:
        begin = (n + 1) * 2 * S
        scene.request(f"r{n}", begin, [begin + LASTING])
    scene.work(GEMM, 10 * S, 10 * S + MS)
    return scene


def _copy(scene: Scene, start: int, end: int, number: int) -> None:
    scene.api("cudaMemcpy", start, end, correlation=number)
    own = {"bytes": 80_000_000, "src": PAGEABLE, "dst": DEVICE, "correlation": number}
    scene.copy(H2D, start, end, **own)


def test_pageable_copies_are_held_against_the_requests() -> None:
    scene = asked()
    for n in REQUESTS:
        begin = (n + 1) * 2 * S
        _copy(scene, begin + MS, begin + 11 * MS, 1000 + n)
        _copy(scene, begin + S, begin + S + 10 * MS, 2000 + n)  # while nobody asks
    found = hint(scene.summary(), "R18")
    assert found["evidence"]["copies"] == len(REQUESTS)
    assert found["evidence"]["request_share"] == pytest.approx(0.1)
    assert "step_share" not in found["evidence"]


def test_copies_while_nobody_asks_are_no_cause() -> None:
    scene = asked()
    for n in REQUESTS:
        begin = (n + 1) * 2 * S
        _copy(scene, begin + MS, begin + 5 * MS, 1000 + n)  # 4 % of each request
        _copy(scene, begin + S, begin + 2 * S - MS, 2000 + n)
    assert "R18" not in ids(scene.summary())


def test_products_of_requests_alone_are_held_against_the_roof() -> None:
    scene = asked()
    for n in REQUESTS:
        begin = (n + 1) * 2 * S
        for start, lasting, reached in ((MS, 50 * MS, 0.5), (S, 900 * MS, 1.0)):
            flops = int(PEAK * lasting / S * reached)
            shape = {"flops": flops, "moved": 1, "format": 0}
            scene.kernel(GEMM, begin + start, begin + start + lasting, **shape)
    found = hint(scene.summary(), "R25")["evidence"]
    assert found["products"] == len(REQUESTS)
    assert found["reached_share"] == pytest.approx(0.5, rel=0.01)
    assert found["request_share"] == pytest.approx(0.5)


def test_kernels_are_held_against_the_requests() -> None:
    scene = asked()
    for n in REQUESTS:
        begin = (n + 1) * 2 * S + MS
        shape = {"grid_x": 33, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}
        scene.kernel("uneven", begin, begin + 20 * MS, registers=32, shared=0, **shape)
        scene.kernel("even", begin + S, begin + S + 900 * MS)  # while nobody asks
    found = hint(scene.summary(), "R28")
    assert found["evidence"]["kernel"] == "uneven"
    assert found["evidence"]["request_share"] == pytest.approx(0.2)


@pytest.mark.parametrize(("every", "confidence"), [(1, "medium"), (4, None)])
def test_allocations_are_counted_by_requests(every: int, confidence: str | None) -> None:
    scene = asked()
    for n in REQUESTS:
        begin = (n + 1) * 2 * S
        call = begin + (MS if n % every == 0 else S)  # else while nobody asks
        scene.api("cudaMalloc", call, call + 900 * US)
        scene.api("cudaMalloc", call + 2 * MS, call + 2_900 * US)
    summary = scene.summary()
    if confidence is None:
        assert "R38" not in ids(summary)
        return
    found = hint(summary, "R38")
    assert found["confidence"] == confidence
    assert found["evidence"]["calls"] == found["evidence"]["calls_per_request"] * 4 == 8
    assert found["evidence"]["idle_in_calls_ns"] == 8 * 900 * US


@pytest.mark.parametrize(("served", "fires"), [(95 * MS, True), (60 * MS, False)])
def test_a_queue_without_steps_is_one_while_others_are_served(served: int, fires: bool) -> None:
    scene = Scene()
    scene.request("first", 0, [served])
    for n in REQUESTS:
        scene.request(f"r{n}", 0, [180 * MS], scheduled=100 * MS)
    summary = scene.summary()
    assert ("R01" in ids(summary)) == fires
    if fires:
        found = hint(summary, "R01")
        assert found["confidence"] == "low"
        assert found["evidence"]["nobody_served_share"] == pytest.approx(0.05)
        assert "others were served meanwhile" in found["title"]


def test_what_nothing_tells_of_is_judged_over_the_window() -> None:
    scene = Scene()
    scene.work(GEMM, 0, MS)
    for n in range(10):
        _copy(scene, (10 * n + 2) * MS, (10 * n + 4) * MS, 1000 + n)
    scene.work(GEMM, 99 * MS, 100 * MS)
    found = hint(scene.summary(), "R18")["evidence"]
    assert found["copies"] == 10
    assert found["step_share"] == pytest.approx(0.2)
