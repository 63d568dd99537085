"""Matrix products against the roof: what shapes say, and when a rule judges them."""

from __future__ import annotations

from typing import Any

import pytest

from rca_llm.readers.kineto_products import Shapes, product
from rca_llm.trace import NUMBER_FORMATS
from tests.scenes import GEMM, MS, Scene, hint, ids

PEAK, MEMORY = 989.4e12, 4.8e12


def multiplying(reached: float, *, computing: bool = True, **device: Any) -> Scene:
    """Twenty steps of one product that reaches a fraction of the H200's roof in 8 of 10 ms."""
    scene = Scene()
    scene.device(**device)
    seconds = 8e-3 * reached
    flops = PEAK * seconds if computing else 1e9
    moved = 1e6 if computing else MEMORY * seconds
    tokens = []
    for i in range(20):
        t = i * 10 * MS
        scene.step(i, t, t + 10 * MS, R="decode" if i else "prefill")
        shape = {"flops": int(flops), "moved": int(moved), "format": 0}
        scene.kernel(GEMM, t + MS, t + 9 * MS, **shape)
        tokens.append(t + 10 * MS)
    scene.request("R", 0, tokens)
    return scene


@pytest.mark.parametrize("computing", [True, False])
@pytest.mark.parametrize("reached, fires", [(0.5, True), (0.74, True), (0.8, False)])
def test_products_below_the_roof(reached: float, fires: bool, computing: bool) -> None:
    summary = multiplying(reached, computing=computing).summary()
    assert ("R25" in ids(summary)) == fires
    if fires:
        found = hint(summary, "R25")
        assert found["evidence"]["reached_share"] == pytest.approx(reached, rel=0.01)
        assert found["evidence"]["bound_by_operations_share"] == float(computing)
        saved = 20 * 8 * MS * (1 - reached / 0.75)
        assert found["saving_ns"] == pytest.approx(saved, rel=0.02)


FLOPS, MOVED = 0.5e12, 1.667e9  # of the slow product: 0.51 ms by operations, 0.35 ms by bytes
LEAST = FLOPS / PEAK


def beside(count: int, reached: float, **other: float) -> dict[str, Any]:
    """R25 of 20 steps with a slow product each, at 0.1, and `count` others that reach more."""
    flops, moved = other.pop("flops", 2 * FLOPS), other.pop("moved", 2 * MOVED)
    scene, tokens = Scene(), list[int]()
    scene.device()
    for i in range(20):
        t = i * 20 * MS
        scene.step(i, t, t + 20 * MS, R="decode" if i else "prefill")
        slow: dict[str, Any] = {"flops": int(FLOPS), "moved": int(MOVED), "format": 0}
        scene.kernel(GEMM, t, t + round(LEAST / 0.1 * 1e9), **slow)
        if i < count:
            roof = max(flops / PEAK, moved / MEMORY)
            like = {"flops": int(flops), "moved": int(moved), "format": 0} | other
            scene.kernel(GEMM, t + 6 * MS, t + 6 * MS + round(roof / reached * 1e9), **like)
        tokens.append(t + 20 * MS)
    scene.request("R", 0, tokens)
    return hint(scene.summary(), "R25")


def test_others_like_them_are_the_yardstick() -> None:
    found = beside(20, 0.9)
    assert found["title"].endswith("where others like it reach 90 %")
    assert found["evidence"]["yardstick_share"] == pytest.approx(0.9, rel=0.01)
    assert found["evidence"]["yardstick"].startswith("others of the trace")
    saved = 20 * LEAST * 1e9 * (1 / 0.1 - 1 / 0.9)
    assert found["saving_ns"] == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize(
    "count, reached, other",
    [
        (19, 0.9, {}),  # too few
        (20, 0.9, {"moved": 0.78 * MOVED}),  # 2.6 times the operations a byte
        (20, 0.9, {"flops": 11 * FLOPS, "moved": 11 * MOVED}),  # far more work
        (20, 0.9, {"moved": 3.75 * MOVED}),  # bound by memory
        (20, 1.8, {"format": 1}),  # other numbers, whose peak is twice as high
        (20, 0.7, {}),  # below the roof themselves
        (20, 1.3, {}),  # quicker than their numbers allow
    ],
)
def test_else_the_yardstick_is_the_threshold(
    count: int, reached: float, other: dict[str, float]
) -> None:
    found = beside(count, reached, **other)
    assert "others" not in found["title"]
    assert found["evidence"]["yardstick_share"] == 0.75
    assert found["evidence"]["yardstick"].startswith("the threshold")
    saved = 20 * LEAST * 1e9 * (1 / 0.1 - 1 / 0.75)
    rest = 20 * 2 * LEAST * 1e9 * (1 / 0.7 - 1 / 0.75) if reached == 0.7 else 0
    assert found["saving_ns"] == pytest.approx(saved + rest, rel=0.01)


def test_the_peak_is_that_of_the_observed_clock() -> None:
    scene = multiplying(0.7, clock_hz=1_980_000_000)
    for i in range(20):
        scene.sample("gpu.sm_clock_mhz", i * 10 * MS, 990.0, device=0)
    assert "R25" not in ids(scene.summary())


def test_an_unknown_device_has_no_roof() -> None:
    assert "R25" not in ids(multiplying(0.1, name="Unheard of").summary())


def test_without_shapes_nothing_is_judged() -> None:
    scene = Scene()
    scene.device()
    scene.serve()
    summary = scene.summary()
    assert "R25" not in ids(summary)
    assert summary["kernels"][0]["flops"] is None


def test_a_row_of_kernels_tells_operations_and_bytes() -> None:
    row = multiplying(0.5).summary()["kernels"][0]
    assert row["flops"] == pytest.approx(20 * PEAK * 4e-3, rel=1e-6)
    assert row["dram_bytes"] == 20 * 10**6


@pytest.mark.parametrize(
    "name, dims, told",
    [
        ("aten::mm", [[3, 5], [5, 7]], (2 * 3 * 5 * 7, 2 * (15 + 35 + 21))),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], (2 * 3 * 5 * 7, 2 * (15 + 35 + 21))),
        ("aten::bmm", [[2, 3, 5], [2, 5, 7]], (4 * 3 * 5 * 7, 4 * (15 + 35 + 21))),
        ("aten::mm", [[3, 5], [4, 7]], None),
        ("aten::mm", [[3, 5]], None),
        ("aten::mm", [[3, "x"], [5, 7]], None),
        ("aten::mm", None, None),
        ("aten::add", [[3, 5], [5, 7]], None),
    ],
)
def test_what_operators_multiply(name: str, dims: Any, told: tuple[int, int] | None) -> None:
    types = ["c10::BFloat16"] * (len(dims) if dims else 0)
    found = product(name, Shapes(external=1, dims=dims, types=types))
    bf16 = NUMBER_FORMATS.index("bf16")
    assert found == (None if told is None else (*told, bf16))
