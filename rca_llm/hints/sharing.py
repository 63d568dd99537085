"""Causes in who else has a device: processes that take turns on it, and slices of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rca_llm import hardware, intervals
from rca_llm.attribute import neighbours
from rca_llm.attribute.device import busy_rows
from rca_llm.attribute.partition import Recording
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, over
from rca_llm.hints.clocks import Periods, slowdown
from rca_llm.hints.efficiency import COMPUTE
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.wording import figure, name, percent, time
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, known
from rca_llm.trace import KERNEL


@rule(
    "R29",
    "CONTEXT-SWITCH",
    "scheduling",
    Stage.STATE,
    disproof="kernels of both processes at one time, as MPS allows",
)
def shared_device(case: Case) -> list[Hint]:
    """Processes take turns on one device.

    Symptom: two processes run kernels on one device, and work that one has queued waits for those
    of the other for `waited` of the time; or kernel medians are `ratio` times those of times
    without the other; or, where nothing tells when work was queued, the device changes hands
    `switches` times with a median gap of `gap_ns`. Of a process outside of the trace NVML's samples
    say only that it kept `outside_sm` of a device busy: that is named, and what it cost nobody
    knows. Source: thread C64. Disproof: kernels that run together.
    """
    limits = case.limits("R29")
    found: list[Hint] = list(_waited(case, limits["waited"]))
    for recording in case.job.recordings:
        gpu = recording.timeline["gpu"]
        for device in intervals.distinct(gpu["device"]).tolist():
            rows = np.flatnonzero(
                (gpu["kind"] == KERNEL) & (gpu["device"] == device) & known(gpu["start"])
            )
            if _apart(recording, int(device)):
                continue
            found += list(_contended(case, recording, int(device), rows, limits["ratio"]))
            if not found:
                found += list(_alternating(case, recording, int(device), rows))
        if not found:
            found += list(_outside(case, recording))
    return found


def _waited(case: Case, least: float) -> Iterator[Hint]:
    """Work that was queued and waited for kernels of another process.

    Of several ranks that waited, the one that waited longest is told.
    """
    waiting = [member for member in case.job.ranks if len(member[1].contended)]
    if not waiting:
        return
    recording, partition = max(waiting, key=lambda one: _lasting(one[1].contended))
    held = partition.contended
    charge = _charge(case, [one.contended for _, one in waiting])
    if not charge.ns or (charge.share or 0) < least:
        return
    spent = {pid: _lasting(held.take(held.label == pid)) for pid in np.unique(held.label).tolist()}
    other = max(spent, key=lambda pid: spent[pid])
    shared = [
        one
        for one in recording.shared_devices
        if one.by[0] == other and one.place[0] in partition.rank.processes
    ]
    own, device = shared[0].place
    who = name(neighbours.process_name(recording.timeline, other))
    theirs = intervals.union(*records.joined([_kernels(recording, pid) for pid in spent]))
    waited = _lasting(held)
    yield Hint(
        f"GPU {device} is time-sliced between processes {own} and {other}: queued work waited"
        f" {charge.told} for kernels of {who}",
        "high" if shared[0].certain else "medium",
        charge,
        {
            "neighbour": who,
            "processes": len(spent) + 1,
            "device": device,
            "waits": len(held),
            "waited_ns": waited,
            "mean_wait_ns": waited // len(held),
            "neighbour_kernels_ns": intervals.common((held.start, held.end), theirs),
        },
        # Without its calls a replay cannot tell where the host waits for the device.
        replays=len(recording.timeline["api"]) > 0,
    )


def _lasting(pieces: Pieces) -> int:
    return int((pieces.end - pieces.start).sum())


def _kernels(recording: Recording, process: int) -> Spans:
    """When kernels of a process ran, on whatever device."""
    gpu = recording.timeline["gpu"]
    rows = (gpu["process"] == process) & busy_rows(gpu) & known(gpu["start"])
    return gpu["start"][rows], gpu["end"][rows]


def _charge(case: Case, held: list[Pieces]) -> Charge:
    """The time that requests, or without any a rank, waited for another process."""
    spans = intervals.union(*records.joined([(one.start, one.end) for one in held]))
    if not case.lives:
        return case.charge(("scheduling.queue",), spans)
    found = [
        (life, _lasting(life.contended), int(life.contended.start[0]), int(life.contended.end[-1]))
        for life in case.lives
        if len(life.contended)
    ]
    return replace(over(found), parts=("scheduling.queue",), within=spans)


def _apart(recording: Recording, number: int) -> bool:
    """Whether what processes call by one number is known to be as many devices as processes."""
    gpu = recording.timeline["gpu"]
    processes = set(np.unique(gpu["process"][gpu["device"] == number]).tolist())
    told = {d.process: d.uuid for d in recording.timeline.devices if d.device == number and d.uuid}
    own = [told.get(process) for process in processes]
    return None not in own and len(set(own)) == len(own)


def _outside(case: Case, recording: Recording) -> Iterator[Hint]:
    """A process outside of the trace that keeps a device busy while ours compute.

    The driver's process ids are another container's where none of them is one of ours.
    """
    least = case.limits("R29")["outside_sm"]
    samples = records.process_samples(recording, "gpu.process_sm")
    ours = {int(process) for process in intervals.distinct(recording.timeline["gpu"]["process"])}
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
    processes = [int(process) for process in intervals.distinct(gpu["process"][rows])]
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
        periods = Periods(shared, alone, 0, 0)
        ratio = slowdown(member, device, periods, case.limits("R29")["kernels"])
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
