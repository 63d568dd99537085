"""Hints about memory that grows."""

from __future__ import annotations

import pytest

from tests.scenes import S, Scene, hint, ids

MINUTE = 60 * S
MB = 1_000_000


def growing(per_hour: float, minutes: int = 40, *, start: float = 2e9) -> Scene:
    """A process whose anonymous memory is sampled every minute."""
    scene = Scene()
    scene.row("processes", process=1, name="EngineCore", rank=0)
    scene.kernel("nvjet_gemm", 0, S)
    for minute in range(minutes + 1):
        value = start + per_hour * minute / 60
        scene.sample("process.rss_anon_bytes", minute * MINUTE, value, process=1)
    return scene


def test_a_process_that_grows() -> None:
    scene = growing(150 * MB)
    for n in range(10):
        scene.request(f"r{n}", n * MINUTE, [n * MINUTE + S])
    found = hint(scene.summary(), "R34")
    assert found["class"] == "scheduling"
    assert found["evidence"]["bytes_per_hour"] == pytest.approx(150 * MB, rel=0.001)
    assert found["evidence"]["bytes_per_request"] == pytest.approx(10 * MB, rel=0.001)
    assert "EngineCore" in found["title"]


@pytest.mark.parametrize(("rate", "minutes"), [(110 * MB, 40), (150 * MB, 25)])
def test_growth_that_is_slow_or_short(rate: int, minutes: int) -> None:
    assert "R34" not in ids(growing(rate, minutes).summary())


def test_warm_up_that_levels_off_is_no_leak() -> None:
    scene = Scene()
    scene.kernel("nvjet_gemm", 0, S)
    for minute in range(41):
        value = 2e9 + min(minute, 18) * 50 * MB
        scene.sample("process.rss_anon_bytes", minute * MINUTE, value, process=1)
    assert "R34" not in ids(scene.summary())


def test_pages_moved_to_swap_still_count() -> None:
    scene = growing(0)
    for minute in range(41):
        scene.sample("process.swap_bytes", minute * MINUTE, minute * 3.0 * MB, process=1)
    found = hint(scene.summary(), "R34")
    assert found["evidence"]["bytes_per_hour"] == pytest.approx(180 * MB, rel=0.001)


def test_memory_that_only_moves_to_swap_does_not_grow() -> None:
    scene = growing(-180 * MB)
    for minute in range(41):
        scene.sample("process.swap_bytes", minute * MINUTE, minute * 3.0 * MB, process=1)
    assert "R34" not in ids(scene.summary())


def test_a_device_that_fills_up() -> None:
    scene = Scene()
    scene.kernel("nvjet_gemm", 0, S)
    for minute in range(41):
        scene.sample("gpu.memory_used_bytes", minute * MINUTE, 1e10 + minute * 4.0 * MB, device=0)
    found = hint(scene.summary(), "R34")
    assert found["class"] == "compute"
    assert found["saving_ns"] is None
