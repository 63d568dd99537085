"""Causes on the device: launch shapes, unfused attention, clocks, shared and sliced devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import hardware, intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, rank_rows, used
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.shapes import Shape, heavy_shapes
from rca_llm.hints.wording import figure, name, percent, plural, time
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import KERNEL

COMPUTE = tuple(part for part in PARTS if part.startswith("compute."))

BY_DESIGN = ("compute.gemm", "compute.attention", "compute.moe")
"""Classes whose kernels trade occupancy for registers and shared memory on purpose."""


@rule(
    "R27",
    "LOW-OCCUPANCY",
    "compute",
    Stage.DEVICE,
    disproof="memory bandwidth at its roof, or tensor cores busy, in this kernel",
)
def low_occupancy(case: Case) -> list[Hint]:
    """A launch shape leaves most of each multiprocessor empty.

    Symptom: a kernel of at least `step_share` of the steps, not a matrix product or attention,
    has a theoretical occupancy below `occupancy`, or blocks under `threads` threads with more
    blocks than multiprocessors. Low occupancy alone is no defect: confidence stays low. Source:
    thread C68. Disproof: bandwidth or tensor cores at the roof.
    """
    limits = case.limits("R27")
    found: list[Hint] = []
    for shape, loss in heavy_shapes(case, limits["step_share"]):
        if shape.part in BY_DESIGN or not shape.part.startswith("compute."):
            continue
        full = shape.occupancy
        tiny = _tiny_blocks(shape, limits["threads"])
        if not tiny and (full is None or full >= limits["occupancy"]):
            continue
        reached = f"allows only {percent(full)} occupancy" if full is not None else "is tiny"
        found.append(
            Hint(
                f"Possible: block of {shape.threads} threads / {shape.registers} registers"
                f" {reached} in {name(shape.name)}",
                "low",
                case.charge((shape.part,), shape.spans),
                {
                    "kernel": name(shape.name, 200),
                    "threads": shape.threads,
                    "registers": shape.registers,
                    "shared_bytes": shape.shared,
                    "blocks": shape.blocks,
                    "theoretical_occupancy": full,
                    "step_share": loss.share,
                },
                unjudged=True,
            )
        )
    return found


def _tiny_blocks(shape: Shape, least: float) -> bool:
    """Whether blocks have few threads although the grid covers every multiprocessor."""
    sms = shape.limits.get("sms", hardware.most_sms())
    threads, blocks = shape.threads, shape.blocks
    return threads is not None and blocks is not None and threads < least and blocks > sms


@rule(
    "R28",
    "TAIL-WAVE",
    "compute",
    Stage.DEVICE,
    disproof="blocks of very unequal length, or another kernel that fills the empty slots",
)
def tail_wave(case: Case) -> list[Hint]:
    """A grid leaves multiprocessors empty in its only, or in its last, wave.

    Symptom: a kernel of at least `step_share` of the steps has fewer blocks than multiprocessors,
    or under `waves` waves that are filled to less than `efficiency`. Needs the device's limits.
    Source: thread C68; proposal. Disproof: another kernel in the empty slots.
    """
    limits = case.limits("R28")
    found: list[Hint] = []
    for shape, loss in heavy_shapes(case, limits["step_share"]):
        fill = shape.waves
        if fill is None or not shape.part.startswith("compute.") or fill.waves >= limits["waves"]:
            continue
        if fill.efficiency >= limits["efficiency"]:
            continue
        charge = case.charge((shape.part,), shape.spans)
        last = fill.waves - int(fill.waves)
        how = (
            f"fills {fill.busy_sms} of {fill.sms} SMs"
            if fill.blocks < fill.sms
            else f"leaves its last wave {percent(last)} full"
        )
        found.append(
            Hint(
                f"Grid of {plural(fill.blocks, 'block')} {how} in {name(shape.name)}",
                "medium",
                charge,
                {
                    "kernel": name(shape.name, 200),
                    "blocks": fill.blocks,
                    "sms": fill.sms,
                    "waves": fill.waves,
                    "filled_share": fill.efficiency,
                    "step_share": loss.share,
                    "kernel_ns": charge.ns,
                },
                saving_ns=round(charge.ns * (1 - fill.efficiency)),
            )
        )
    return found


_SOFTMAX = re.compile(r"softmax", re.I)
_FUSED = re.compile(r"flash|fmha|paged|mha_|attention(?!.*softmax)|fmha|sdpa|xqa", re.I)
_BETWEEN = ("compute.elementwise", "compute.attention", "compute.other", "compute.memory")


@rule(
    "R26",
    "ATTENTION-UNFUSED",
    "compute",
    Stage.DEVICE,
    disproof="a fused attention kernel in the same layers",
)
def unfused_attention(case: Case) -> Hint | None:
    """Attention runs as matrix product, softmax and matrix product.

    Symptom: this sequence, with nothing but elementwise kernels in between, repeats on a stream
    `repeats` times, takes `prefill_share` of the steps that prefill, and no fused attention kernel
    runs. Source: thread C69. Disproof: a fused kernel in the same layers.
    """
    limits = case.limits("R26")
    best: tuple[int, int, Spans, Spans] | None = None
    for member in case.job.ranks:
        found = _unfused(member)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None or best[1] < limits["repeats"]:
        return None
    whole, repeats, extra, window = best
    total = int((window[1] - window[0]).sum())
    if not total or whole < limits["prefill_share"] * total:
        return None
    charge = case.charge(COMPUTE, extra)
    return Hint(
        f"Attention runs unfused: matrix product, softmax, matrix product {repeats:,} times,"
        f" {percent(whole / total)} of the prefill",
        "medium",
        charge,
        {
            "sequences": repeats,
            "sequence_ns": whole,
            "prefill_ns": total,
            "prefill_share": whole / total,
            "between_products_ns": charge.ns,
        },
    )


def _unfused(member: Member) -> tuple[int, int, Spans, Spans] | None:
    """A rank's unfused attention.

    Its time, how often it runs, the kernels between the products, and the prefill. None
    where a fused kernel runs, or nothing fits.
    """
    recording, _ = member
    gpu, strings = recording.timeline["gpu"], recording.timeline.strings
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & rank_rows(member, gpu) & known(gpu["start"]))
    names = used(gpu["name"][rows])
    soft = [code for code in names if _SOFTMAX.search(strings[code])]
    if not soft or any(_FUSED.search(strings[code]) for code in names if code not in soft):
        return None
    windows = _prefill(member)
    rows = rows[intervals.touching(gpu["start"][rows], gpu["end"][rows], windows)]
    found = [
        found
        for stream in _streams(recording, rows)
        for found in _sequences(recording, stream, soft)
    ]
    if not found:
        return None
    rows = np.concatenate(found)
    whole = int((gpu["end"][rows] - gpu["start"][rows]).sum())
    between = np.concatenate([one[1:-1] for one in found])
    spans = intervals.union(gpu["start"][between], gpu["end"][between])
    return whole, len(found), spans, windows


def _prefill(member: Member) -> Spans:
    """The steps of a rank that prefill; all its time where nobody says."""
    recording, partition = member
    rows = partition.steps[recording.steps.prefill_tokens[partition.steps] > 0]
    if not len(rows):
        return np.array([partition.rank.start]), np.array([partition.rank.end])
    return intervals.union(recording.steps.start[rows], partition.step_end[rows])


def _streams(recording: Recording, rows: Ints) -> list[Ints]:
    stream = recording.timeline["gpu"]["stream"][rows]
    return [rows[stream == one] for one in np.unique(stream).tolist()]


def _sequences(recording: Recording, rows: Ints, soft: Sequence[int]) -> Iterator[Ints]:
    """Rows of one stream from a matrix product over a softmax to the next matrix product."""
    names, parts = recording.timeline["gpu"]["name"][rows], recording.gpu_parts[rows]
    product = parts == CODE["compute.gemm"]
    softmax = among(names, list(soft))
    allowed = softmax | among(parts, [CODE[part] for part in _BETWEEN])
    places = np.flatnonzero(product)
    for begin, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        inner = slice(begin + 1, end)
        if softmax[inner].any() and allowed[inner].all():
            yield rows[begin : end + 1]


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
class _Periods:
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
        slower = None if periods is None else _slower(member, device, periods, limits["kernels"])
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


def _low_clock(case: Case, device: int, share: float) -> _Periods | None:
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


def _periods(times: Ints, values: Array, slow: Mask, reasons: int = 0) -> _Periods:
    """Each sample stands for the time until the next one."""
    step = int(np.median(np.diff(times)))
    ends = np.append(times[1:], times[-1] + max(step, 1))
    return _Periods(
        intervals.union(times[slow], ends[slow]),
        intervals.union(times[~slow], ends[~slow]),
        float(np.median(values[slow])),
        float(np.median(values[~slow])),
        reasons,
    )


def _slower(member: Member, device: int, periods: _Periods, fewest: float) -> float | None:
    """How much longer kernels last in slow periods: the median ratio over names."""
    ratios = _ratios(member, device, periods, fewest)
    return float(np.median(ratios)) if len(ratios) else None


def _ratios(member: Member, device: int, periods: _Periods, fewest: float) -> Array:
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


def _low_power(case: Case, device: int, drop: float, tolerance: float) -> _Periods | None:
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
    flat = abs(float(np.median(clocks[slow]) / np.median(clocks[~slow])) - 1) <= tolerance
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


@rule(
    "R29",
    "CONTEXT-SWITCH",
    "scheduling",
    Stage.STATE,
    disproof="kernels of both processes at one time, as MPS allows",
)
def shared_device(case: Case) -> list[Hint]:
    """Processes take turns on one device.

    Symptom: two processes run kernels on one device; kernel medians are `ratio` times those of
    times without the other, or the device changes hands `switches` times with a median gap of
    `gap_ns`. Of a process outside of the trace NVML's samples say only that it kept `outside_sm` of
    a device busy: that is named, and what it cost nobody knows. Source: thread C64. Disproof:
    kernels that run together.
    """
    limits = case.limits("R29")
    found: list[Hint] = []
    for recording in case.job.recordings:
        gpu = recording.timeline["gpu"]
        for device in np.unique(gpu["device"]).tolist():
            rows = np.flatnonzero(
                (gpu["kind"] == KERNEL) & (gpu["device"] == device) & known(gpu["start"])
            )
            found += list(_contended(case, recording, int(device), rows, limits["ratio"]))
            if not found:
                found += list(_alternating(case, recording, int(device), rows))
        if not found:
            found += list(_outside(case, recording))
    return found


def _outside(case: Case, recording: Recording) -> Iterator[Hint]:
    """A process outside of the trace that keeps a device busy while ours compute.

    The driver's process ids are another container's where none of them is one of ours.
    """
    least = case.limits("R29")["outside_sm"]
    samples = records.process_samples(recording, "gpu.process_sm")
    ours = {int(process) for process in np.unique(recording.timeline["gpu"]["process"])}
    own = ours | {int(process) for process in recording.timeline["processes"]["process"]}
    others = {pid: rows for pid, rows in samples.items() if pid not in own}
    if not ours & set(samples) or not others:
        return
    pid = max(others, key=lambda other: sum(value for _, value in others[other]))
    busy = [(t, value) for t, value in others[pid] if value >= least]
    times = np.array([t for t, _ in busy], np.int64)
    charge = case.charge(COMPUTE, intervals.union(times - SAMPLED_NS, times))
    if not charge.ns:
        return
    share = sum(value for _, value in busy) / len(busy)
    who = records.outsider(recording, pid)
    yield Hint(
        f"{who} kept {percent(share)} of a GPU's multiprocessors busy while the trace computed",
        "low",
        charge,
        {"outside_process": who, "outside_sm": share, "processes": len(others) + 1},
        unjudged=True,
    )


SAMPLED_NS = 1_000_000_000
"""How long before it a sample of a process's share of a GPU may reach back."""


def _contended(
    case: Case, recording: Recording, device: int, rows: Ints, least: float
) -> Iterator[Hint]:
    """Kernels that last longer while another process has the device too."""
    gpu = recording.timeline["gpu"]
    processes = [int(process) for process in np.unique(gpu["process"][rows])]
    for process in processes if len(processes) > 1 else []:
        mine, others = (rows[(gpu["process"][rows] == process) == own] for own in (True, False))
        shared = _stretches(gpu["start"][others], gpu["end"][others])
        own = _stretches(gpu["start"][mine], gpu["end"][mine])
        alone = intervals.complement(*shared, int(own[0][0]), int(own[1][-1]))
        member = next(
            (m for m in case.job.ranks if m[0] is recording and process in m[1].rank.processes),
            None,
        )
        if member is None:
            continue
        periods = _Periods(shared, alone, 0, 0)
        ratio = _slower(member, device, periods, case.limits("R29")["kernels"])
        if ratio is None or ratio < least:
            continue
        charge = case.charge(COMPUTE, shared)
        other = next(p for p in processes if p != process)
        yield Hint(
            f"GPU {device} is time-sliced between processes {process} and {other}: kernels last"
            f" {figure(ratio, 3)}× as long while both have work",
            "medium",
            charge,
            {"kernel_ratio": ratio, "processes": len(processes), "device": device},
            saving_ns=round(charge.ns * (1 - 1 / ratio)),
        )
        return


def _stretches(start: Ints, end: Ints) -> Spans:
    """Times of activity, pauses up to a millisecond included."""
    begins, ends = intervals.union(start, end + 1_000_000)
    return begins, ends - 1_000_000


def _alternating(case: Case, recording: Recording, device: int, rows: Ints) -> Iterator[Hint]:
    """A device that changes hands again and again, standing still each time."""
    limits, gpu = case.limits("R29"), recording.timeline["gpu"]
    rows = rows[np.argsort(gpu["start"][rows], kind="stable")]
    owner = gpu["process"][rows]
    turns = np.flatnonzero(owner[1:] != owner[:-1])
    if len(turns) < limits["switches"]:
        return
    reach = np.maximum.accumulate(gpu["end"][rows])
    gaps = gpu["start"][rows[turns + 1]] - reach[turns]
    if float(np.median(gaps)) < limits["gap_ns"]:
        return
    kept = gaps > 0
    spans = reach[turns[kept]], gpu["start"][rows[turns[kept] + 1]]
    lost = int(gaps[kept].sum())
    both = " and ".join(str(p) for p in np.unique(owner).tolist()[:2])
    total = int(reach[-1] - gpu["start"][rows[0]])
    yield Hint(
        f"GPU {device} is time-sliced between processes {both}: it changes hands {len(turns):,}"
        f" times and stands still {time(float(np.median(gaps)))} each time",
        "medium",
        Charge(lost, total, (), int(spans[0][0]), int(spans[1][-1]), f"device {device}"),
        {"switches": len(turns), "median_gap_ns": int(np.median(gaps)), "device": device},
    )


@rule(
    "R41",
    "PARTITIONED-GPU",
    "compute",
    Stage.SYMPTOM,
    disproof="all multiprocessors of the model visible",
)
def partitioned_device(case: Case) -> list[Hint]:
    """Only a slice of a device was used, so that figures of the whole do not apply.

    Symptom: a MIG profile in the device's name, or fewer multiprocessors than its model has.
    Source: thread C66. Disproof: all multiprocessors visible.
    """
    found: list[Hint] = []
    for recording in case.job.recordings:
        for device in recording.timeline.devices:
            whole, sms = hardware.model(device.name), device.limits.get("sms")
            sliced = whole is not None and sms is not None and sms < whole
            if "MIG" in (device.name or "") or sliced:
                found.append(
                    Hint(
                        f"Device {device.device} is a slice ({name(device.name or '?')},"
                        f" {sms or 'unknown'} of {whole or 'unknown'} SMs); do not compare it with"
                        " the full GPU",
                        "medium",
                        Charge(0, 0, population=f"device {device.device}"),
                        {"sms": sms, "sms_of_the_model": whole},
                        unjudged=True,
                    )
                )
    return found
