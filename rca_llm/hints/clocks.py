"""Causes in the state of a device: clocks that fall or rise late, slowness without a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.parts import CODE
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, rank_rows
from rca_llm.hints.efficiency import COMPUTE
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.wording import figure, time
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import KERNEL

_NO_REASON = 0x1 | 0x2 | 0x100
"""Throttle reasons that say nothing is wrong: idle, application clocks, display clocks (NVML)."""

_REASONS = (
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal"),
    (0x40, "hardware thermal"),
    (0x80, "power brake"),
)


@dataclass(frozen=True)
class Periods:
    """Times in which a device was slow and in which it was not, and what was sampled in them."""

    slow: Spans
    fast: Spans
    slow_value: float
    fast_value: float
    reasons: int = 0


@rule(
    "R22",
    "GPU-THROTTLE",
    "compute",
    Stage.STATE,
    disproof="kernels that keep their speed while the clock is low",
)
def throttled_clock(case: Case) -> list[Hint]:
    """The clock fell, with a reason, and kernels slowed down with it.

    Symptom: the SM clock below `clock_share` of its own P95 with a throttle reason active, and
    kernel medians that scale with one over the clock within `tolerance`. Source: thread C49.
    Disproof: kernels that keep their speed.
    """
    limits = case.limits("R22")
    found: list[Hint] = []
    for member, device in _devices(case):
        periods = _low_clock(case, device, limits["clock_share"])
        slower = None if periods is None else slowdown(member, device, periods, limits["kernels"])
        if periods is None or slower is None:
            continue
        expected = periods.fast_value / periods.slow_value
        if abs(slower / expected - 1) > limits["tolerance"]:
            continue
        charge = case.charge(COMPUTE, periods.slow)
        reason = ", ".join(text for bit, text in _REASONS if periods.reasons & bit)
        lost = round(charge.ns * (1 - 1 / expected))
        found.append(
            Hint(
                f"Clock of device {device} fell {periods.fast_value:.0f} → {periods.slow_value:.0f}"
                f" MHz ({reason or 'reason ' + hex(periods.reasons)}): kernels run"
                f" {figure(slower, 3)}× as long",
                "high",
                charge,
                {
                    "clock_mhz": periods.slow_value,
                    "usual_clock_mhz": periods.fast_value,
                    "kernel_ratio": slower,
                    "clock_ratio": expected,
                    "throttle_reasons": periods.reasons,
                    "slow_ns": int((periods.slow[1] - periods.slow[0]).sum()),
                },
                saving_ns=lost,
            )
        )
    return found


def _devices(case: Case) -> Iterator[tuple[Member, int]]:
    for member in case.job.ranks:
        gpu = member[0].timeline["gpu"]
        for device in np.unique(gpu["device"][rank_rows(member, gpu)]).tolist():
            yield member, int(device)


def _low_clock(case: Case, device: int, share: float) -> Periods | None:
    """When a device's clock was low for a reason, against the rest of the time."""
    clock = records.samples(case, "gpu.sm_clock_mhz", device)
    reasons = records.samples(case, "gpu.throttle_reasons", device)
    if len(clock) < 2 or not reasons:
        return None
    times, values = _arrays(clock)
    active = _value_at(reasons, times).astype(np.int64) & ~_NO_REASON
    usual = float(np.percentile(values, 95))
    slow = (values < share * usual) & (active != 0)
    if not slow.any() or slow.all():
        return None
    return _periods(times, values, slow, int(np.bitwise_or.reduce(active[slow])))


def _arrays(samples: Sequence[tuple[int, float]]) -> tuple[Ints, Array]:
    return (
        np.array([t for t, _ in samples], np.int64),
        np.array([value for _, value in samples], np.float64),
    )


def _value_at(samples: Sequence[tuple[int, float]], times: Ints) -> Array:
    """The latest value of a metric at each time, its first before that."""
    own, values = _arrays(samples)
    return values[np.maximum(np.searchsorted(own, times, "right") - 1, 0)]


def _periods(times: Ints, values: Array, slow: Mask, reasons: int = 0) -> Periods:
    """Each sample stands for the time until the next one."""
    step = int(np.median(np.diff(times)))
    ends = np.append(times[1:], times[-1] + max(step, 1))
    return Periods(
        intervals.union(times[slow], ends[slow]),
        intervals.union(times[~slow], ends[~slow]),
        float(np.median(values[slow])),
        float(np.median(values[~slow])),
        reasons,
    )


def slowdown(member: Member, device: int, periods: Periods, fewest: float) -> float | None:
    """How much longer kernels last in slow periods: the median ratio over names."""
    ratios = _ratios(member, device, periods, fewest)
    return float(np.median(ratios)) if len(ratios) else None


def _ratios(member: Member, device: int, periods: Periods, fewest: float) -> Array:
    """For every name with enough kernels in both kinds of time, its median's ratio."""
    recording, _ = member
    gpu = recording.timeline["gpu"]
    rows = np.flatnonzero(
        (gpu["kind"] == KERNEL)
        & (gpu["device"] == device)
        & rank_rows(member, gpu)
        & known(gpu["start"])
        & (CODE["communication.collective"] != recording.gpu_parts)
    )
    slow = _inside(gpu["start"][rows], periods.slow)
    fast = _inside(gpu["start"][rows], periods.fast)
    lasting, names = (gpu["end"] - gpu["start"])[rows], gpu["name"][rows]
    found: list[float] = []
    for code in np.unique(names).tolist():
        mine = names == code
        one, two = lasting[mine & slow], lasting[mine & fast]
        if min(len(one), len(two)) >= fewest and np.median(two) > 0:
            found.append(float(np.median(one) / np.median(two)))
    return np.array(found)


def _inside(times: Ints, spans: Spans) -> Mask:
    pieces = intervals.Pieces(*spans, np.zeros(len(spans[0]), np.int64))
    return np.asarray(intervals.at(pieces, times) >= 0)


@rule(
    "R44",
    "HIDDEN-SLOW-STATE",
    "compute",
    Stage.STATE,
    disproof="a throttle reason, a lower clock, or kernels that kept their speed",
)
def hidden_slow_state(case: Case) -> list[Hint]:
    """All kernels slow down by one factor although the clock stays and no reason is given.

    Symptom: power at least `power_drop` lower, the clock within `tolerance`, no throttle reason,
    and every kernel's median slower by the same factor (within `tolerance`), at least `slower`.
    Not called throttling. Source: thread C51. Disproof: a lower clock.
    """
    limits = case.limits("R44")
    found: list[Hint] = []
    for member, device in _devices(case):
        periods = _low_power(case, device, limits["power_drop"], limits["tolerance"])
        if periods is None:
            continue
        ratios = _ratios(member, device, periods, limits["kernels"])
        if len(ratios) < limits["names"]:
            continue
        factor = float(np.median(ratios))
        even = np.all(np.abs(ratios / factor - 1) <= limits["tolerance"])
        if factor < limits["slower"] or not even:
            continue
        charge = case.charge(COMPUTE, periods.slow)
        found.append(
            Hint(
                f"All kernels of device {device} run {figure(factor, 3)}× as long at the same"
                " clock and without a throttle reason; not called throttling",
                "medium",
                charge,
                {
                    "kernel_ratio": factor,
                    "names": len(ratios),
                    "power_w": periods.slow_value,
                    "usual_power_w": periods.fast_value,
                },
                saving_ns=round(charge.ns * (1 - 1 / factor)),
            )
        )
    return found


def _low_power(case: Case, device: int, drop: float, tolerance: float) -> Periods | None:
    """When a device drew far less power than usual at the same clock and without a reason."""
    power = records.samples(case, "gpu.power_w", device)
    clock = records.samples(case, "gpu.sm_clock_mhz", device)
    if len(power) < 2 or not clock:
        return None
    times, values = _arrays(power)
    usual = float(np.percentile(values, 90))
    slow = values <= (1 - drop) * usual
    if not slow.any() or slow.all():
        return None
    clocks = _value_at(clock, times)
    reasons = records.samples(case, "gpu.throttle_reasons", device)
    active = _value_at(reasons, times).astype(np.int64) & ~_NO_REASON if reasons else 0 * slow
    low, high = float(np.median(clocks[slow])), float(np.median(clocks[~slow]))
    flat = high > 0 and abs(low - high) <= tolerance * high
    return _periods(times, values, slow) if flat and not np.any(active[slow]) else None


@rule(
    "R23",
    "CLOCK-RAMP-AFTER-IDLE",
    "scheduling",
    Stage.STATE,
    disproof="a clock that was high from the first step on",
)
def clock_ramp(case: Case) -> Hint | None:
    """The first steps after a pause are slow while the clock rises.

    Symptom: no step for `idle_ns`, then at least `steps` steps of `ratio` times the median while
    sampled clocks rise. Source: thread C50. Disproof: a high clock from the start.
    """
    limits = case.limits("R23")
    for number, member in enumerate(case.job.ranks):
        recording, partition = member
        rows = partition.steps
        if len(rows) < 2 * limits["steps"]:
            continue
        start, end = recording.steps.start[rows], partition.step_end[rows]
        usual = float(np.median(end - start))
        reach = np.maximum.accumulate(end)
        for place in (np.flatnonzero(start[1:] - reach[:-1] >= limits["idle_ns"]) + 1).tolist():
            slow = _first_slow(end[place:] - start[place:], limits["ratio"] * usual)
            if slow < limits["steps"]:
                continue
            rise = _rise(case, int(start[place]), int(end[place + slow - 1]))
            if rise is None or rise[1] <= rise[0]:
                continue
            mine = rows[place : place + slow]
            lost = (end - start)[place : place + slow] - round(usual)
            where = next(n for n, r in enumerate(case.job.recordings) if r is recording)
            excess = {
                (where, row): ns for row, ns in zip(mine.tolist(), lost.tolist(), strict=True)
            }
            idle = int(start[place] - reach[place - 1])
            return Hint(
                f"The first {slow} steps after {time(idle)} without work pay the clock ramp"
                f" ({rise[0]:.0f} → {rise[1]:.0f} MHz)",
                "medium",
                case.charge_steps(excess, case.of_steps(()).total),
                {
                    "idle_ns": idle,
                    "slow_steps": slow,
                    "median_step_ns": round(usual),
                    "slowest_step_ns": int((end - start)[place : place + slow].max()),
                    "clock_before_mhz": rise[0],
                    "clock_after_mhz": rise[1],
                    "rank": case.job.ranks[number][1].rank.number,
                },
            )
    return None


def _first_slow(lasting: Ints, limit: float) -> int:
    """How many steps from the first on last at least as long."""
    fast = np.flatnonzero(lasting < limit)
    return int(fast[0]) if len(fast) else len(lasting)


def _rise(case: Case, start: int, end: int) -> tuple[float, float] | None:
    """The first clock sampled in some time, and the last in it or the next after it."""
    clock = records.samples(case, "gpu.sm_clock_mhz")
    inside = [value for t, value in clock if start <= t <= end]
    after = [value for t, value in clock if t > end][:1]
    return (inside[0], max([inside[-1], *after])) if inside else None
