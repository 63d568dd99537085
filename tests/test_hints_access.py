"""Hints from hardware counters: bank conflicts in shared memory, and strided loads."""

from __future__ import annotations

import pytest

from tests.scenes import GEMM, MS, Scene, hint, ids

KERNEL = "columns(float*, int, int)"


def counting(
    metric: str, during: float, else_: float, *, kernel: int = 5 * MS, heavy: str = KERNEL
) -> Scene:
    """Steps of 10 ms, of which one kernel takes `kernel`; a counter sampled every millisecond."""
    scene, tokens = Scene(), list[int]()
    for i in range(12):
        start = i * 10 * MS
        scene.step(i, start, start + 10 * MS, R="decode" if i else "prefill")
        scene.kernel(heavy, start, start + kernel)
        scene.kernel(GEMM, start + kernel, start + 10 * MS)
        tokens.append(start + 10 * MS)
        for ms in range(1, 11):
            scene.sample(
                metric, start + ms * MS, during if (ms - 1) * MS < kernel else else_, device=0
            )
    scene.request("R", 0, tokens)
    return scene


def test_bank_conflicts_of_one_kernel() -> None:
    found = hint(counting("gpu.bank_conflicts", 0.6, 0.01).summary(), "R46")
    assert found["class"] == "compute"
    assert found["evidence"]["kernel"] == KERNEL
    assert found["evidence"]["conflict_share"] == pytest.approx(0.6)
    assert found["evidence"]["samples"] == 12 * 5
    assert found["saving_ns"] == pytest.approx(0.6 * 12 * 5 * MS)


def test_strided_loads_of_one_kernel() -> None:
    found = hint(counting("gpu.load_sectors", 32, 4).summary(), "R47")
    assert found["evidence"]["sectors_per_load"] == pytest.approx(32)
    assert found["evidence"]["saving_if_16_bytes_ns"] == pytest.approx(0.5 * 12 * 5 * MS)
    assert found["saving_ns"] == pytest.approx(0.875 * 12 * 5 * MS)


@pytest.mark.parametrize(
    "scene",
    [
        counting("gpu.bank_conflicts", 0.9, 0.2, kernel=400_000),
        counting("gpu.bank_conflicts", 0.2, 0.2),
        counting("gpu.load_sectors", 16, 16),
        counting("gpu.load_sectors", 27_000, 4),
        counting("gpu.load_sectors", 31, 4, heavy="sm80_xmma_gemm_bf16bf16_bf16f32_nn"),
        counting("gpu.sm_active", 0.9, 0.9),
        counting("gpu.bank_conflicts", 0.9, 0.0, kernel=800_000),
    ],
    ids=[
        "4 % of the step",
        "few conflicts",
        "wide loads",
        "bulk copies",
        "a product",
        "no such counter",
        "never alone",
    ],
)
def test_counters_that_show_nothing(scene: Scene) -> None:
    assert not ids(scene.summary()) & {"R46", "R47"}
