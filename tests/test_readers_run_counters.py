"""Samples of hardware counters are put where they fit the kernels that they watched."""

from __future__ import annotations

import numpy as np
import pytest

from rca_llm.readers import run_counters
from rca_llm.trace import Timeline
from tests.timelines import Builder

MS = 1_000_000
FINE = run_counters.FINE_NS


def _watched(late: int, *, noise: float = 0.0, others: bool = False) -> Timeline:
    """Kernels of odd lengths, and a sample a millisecond that tells of the one that ends then."""
    rng, builder = np.random.default_rng(7), Builder()
    start, busy = 1_000 * MS, np.zeros(400 * 1000)  # in units of a microsecond
    for _ in range(40):
        begin, lasting = start + int(rng.integers(1, 8) * 700_000), int(rng.integers(200, 4_000))
        end = begin + lasting * 1000
        builder.kernel("gemm", begin, end)
        busy[(begin - 1_000 * MS) // 1000 : (end - 1_000 * MS) // 1000] = 1
        start = end
    for number in range(1, 300):
        told = float(busy[(number - 1) * 1000 : number * 1000].mean()) if not others else 0.5
        value = told + noise * float(rng.normal())
        for metric, one in (("gpu.sm_active", value), ("gpu.dram_read", value / 2)):
            builder.row("samples", t=1_000 * MS + number * MS + late, metric=metric, value=one,
                        device=0)  # fmt: skip
    builder.row("samples", t=1_234 * MS, metric="gpu.power_w", value=400.0, device=0)
    return builder.build()


@pytest.mark.parametrize("late", [0, 375_000, 9_550_000, -800_000])
def test_samples_are_moved_to_their_kernels(late: int) -> None:
    timeline = _watched(late, noise=0.03)
    before = timeline["samples"]["t"].copy()
    run_counters.align(timeline)
    moved = before - timeline["samples"]["t"]
    assert abs(int(moved[0]) - late) <= 4 * FINE
    assert set(moved[:-1].tolist()) == {int(moved[0])}  # every counter of the device
    assert moved[-1] == 0  # NVML's own samples are on our clock
    told = [(f.code, f.count) for f in timeline.findings]
    assert told == ([("counters_moved", 598)] if moved[0] else [])


@pytest.mark.parametrize("how", ["others", "none", "noise"])
def test_what_does_not_fit_stays(how: str) -> None:
    timeline = _watched(5 * MS, others=how == "others", noise=3.0 if how == "noise" else 0.0)
    if how == "none":
        timeline.tables["gpu"] = timeline["gpu"].take(np.zeros(0, np.int64))
    before = timeline["samples"]["t"].copy()
    run_counters.align(timeline)
    assert timeline["samples"]["t"].tolist() == before.tolist()
    assert not timeline.findings
