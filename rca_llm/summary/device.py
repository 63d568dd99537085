"""Rows about devices: `devices`, `kernels`, `copies`, and the counts of device records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import device
from rca_llm.attribute.classify import classify_all
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.ranks import Rank
from rca_llm.hardware import occupancy
from rca_llm.table import UNKNOWN, Array, Ints, Table, known
from rca_llm.trace import (
    COPY_KINDS,
    KERNEL,
    MEMCPY,
    MEMORY_KINDS,
    Device,
    Timeline,
)

SHAPE = (
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "shared",
)


def device_rows(recording: Recording, rank: Rank) -> list[dict[str, Any]]:
    """The `devices` rows of a rank, one for each device it has or is known to own."""
    gpu = recording.timeline["gpu"]
    mine = among(gpu["process"], [*rank.processes])
    numbers = np.unique(gpu["device"][mine]).tolist()
    if not numbers:
        return _untraced(recording, rank)
    return [
        _device_row(recording, rank, np.flatnonzero(mine & (gpu["device"] == n))) for n in numbers
    ]


def _untraced(recording: Recording, rank: Rank) -> list[dict[str, Any]]:
    """Devices of a rank without device records: nothing is known of their time."""
    if rank.traced:
        return []
    owned = [d for d in recording.timeline.devices if d.process in rank.processes]
    devices = owned or [Device(-1, None)]
    return [
        {
            "rank": rank.number,
            "process": _process(rank.processes[0]),
            "device": d.device if d.device >= 0 else None,
            "name": d.name,
            "status": "not_traced",
            "kernels": 0,
            **dict.fromkeys(("busy_ns", "idle_ns", "copy_ns", "sum_ns")),
            "span_ns": rank.span,
            "utilization": None,
        }
        for d in devices
    ]


def _process(process: int) -> int | None:
    return None if process == UNKNOWN else process


def _device_row(recording: Recording, rank: Rank, rows: Ints) -> dict[str, Any]:
    gpu = recording.timeline["gpu"].take(rows)
    timed = known(gpu["start"])
    start, end, busy = (
        gpu["start"][timed],
        gpu["end"][timed],
        device.busy_rows(gpu)[timed],
    )
    copies = gpu["kind"][timed] == MEMCPY
    busy_ns = intervals.length(start[busy], end[busy])
    busy_ns_or_waiting = intervals.length(start, end)
    number = int(gpu["device"][0])
    return {
        "rank": rank.number,
        "process": _process(int(gpu["process"][0])),
        "device": number if number >= 0 else None,
        "name": _name(recording.timeline, number, rank),
        "status": "traced" if rank.traced else "not_traced",
        "kernels": int(np.count_nonzero(gpu["kind"] == KERNEL)),
        "busy_ns": busy_ns if rank.traced else None,
        "idle_ns": rank.span - busy_ns_or_waiting if rank.traced else None,
        "copy_ns": intervals.length(start[copies], end[copies]),
        "sum_ns": int((end - start)[busy].sum()) if rank.traced else None,
        "span_ns": rank.span,
        "utilization": busy_ns / rank.span if rank.traced and rank.span else None,
    }


def device_of(timeline: Timeline, number: int, processes: tuple[int, ...] = ()) -> Device | None:
    """The description of a device, that of the given processes before any other."""
    found = [d for d in timeline.devices if d.device == number]
    owned = [d for d in found if d.process in processes]
    return next(iter(owned or found), None)


def _name(timeline: Timeline, number: int, rank: Rank) -> str | None:
    found = device_of(timeline, number, rank.processes)
    return found.name if found else None


KernelSums = dict[tuple[str, tuple[int, ...]], tuple[int, int, int, int]]
"""By name and launch shape: how many kernels, and of all their time, ns, their floating-point
operations and the bytes that they must move, `UNKNOWN` unless known of every one."""


def kernel_sums(recording: Recording) -> KernelSums:
    """What one recording adds to the `kernels` rows."""
    gpu, strings = recording.timeline["gpu"], recording.timeline.strings
    kernels = gpu.take(gpu["kind"] == KERNEL)
    group, first = kernels.grouped(("name", *SHAPE))
    duration = np.where(known(kernels["start"]), kernels["end"] - kernels["start"], 0)
    totals = intervals.sum_by(group, duration, len(first)).tolist()
    counts = np.bincount(group, minlength=len(first)).tolist()
    names = [strings[code] for code in kernels["name"][first].tolist()]
    shapes = zip(*(kernels[name][first].tolist() for name in SHAPE), strict=True)
    told = [_known_sum(kernels[name], group, len(first)) for name in ("flops", "moved")]
    sums = zip(counts, totals, *told, strict=True)
    return dict(zip(zip(names, shapes, strict=True), sums, strict=True))


def _known_sum(values: Array, group: Ints, groups: int) -> list[int]:
    """The sum of each group, `UNKNOWN` where one of its values is."""
    told = known(values)
    sums = intervals.sum_by(group, np.where(told, values, 0), groups)
    missing = np.bincount(group[~told], minlength=groups) > 0
    found: list[int] = np.where(missing, UNKNOWN, sums).tolist()
    return found


def kernel_rows(
    several: Iterable[KernelSums], limits: Sequence[Mapping[str, int]]
) -> list[dict[str, Any]]:
    """The `kernels` rows: one for each name and launch shape, the longest total first."""
    found: KernelSums = {}
    for sums in several:
        for key, more in sums.items():
            found[key] = _added(found.get(key, (0, 0, 0, 0)), more)
    names = list(dict.fromkeys(name for name, _ in found))
    classes = dict(zip(names, classify_all(names), strict=True))
    whole = sum(total for _, total, _, _ in found.values())
    same = _common(limits)
    return [
        _kernel_row(name, shape)
        | {
            "class": classes[name].part,
            "also": classes[name].also,
            "count": count,
            "total_ns": total,
            "share": total / whole if whole else None,
            "occupancy": _occupancy(shape, same),
            "flops": None if flops == UNKNOWN else flops,
            "dram_bytes": None if moved == UNKNOWN else moved,
        }
        for (name, shape), (count, total, flops, moved) in sorted(
            found.items(), key=lambda item: -item[1][1]
        )
    ]


def _added(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """Sums over both; what is unknown of either is unknown of both."""
    flops, moved = (
        UNKNOWN if UNKNOWN in (a, b) else a + b for a, b in zip(one[2:], other[2:], strict=True)
    )
    return one[0] + other[0], one[1] + other[1], flops, moved


def _kernel_row(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "class": None,
        "also": None,
        "count": 0,
        "total_ns": 0,
        "share": None,
        "grid": list(shape[:3]) if shape[0] >= 0 else None,
        "block": list(shape[3:6]) if shape[3] >= 0 else None,
        "registers": shape[6] if shape[6] >= 0 else None,
        "shared_bytes": shape[7] if shape[7] >= 0 else None,
        "occupancy": None,
    }


def _common(limits: Sequence[Mapping[str, int]]) -> Mapping[str, int] | None:
    """The limits that all devices share; None where they differ or none are known."""
    told = [own for own in limits if own]
    return told[0] if told and all(own == told[0] for own in told) else None


def _occupancy(shape: tuple[int, ...], limits: Mapping[str, int] | None) -> float | None:
    block, registers, shared = shape[3:6], shape[6], shape[7]
    if limits is None or min(*block, registers, shared) < 0:
        return None
    return occupancy(block[0] * block[1] * block[2], registers, shared, limits)


CopySums = dict[tuple[str | None, str | None], list[int]]
"""By direction and kind of host memory: copies, bytes and ns."""


def copy_sums(recording: Recording) -> CopySums:
    """What one recording adds to the `copies` rows."""
    found: CopySums = {}
    gpu = recording.timeline["gpu"]
    copies = gpu.take(gpu["kind"] == MEMCPY)
    group, first = copies.grouped(("copy", "src", "dst"))
    duration = np.where(known(copies["start"]), copies["end"] - copies["start"], 0)
    for number, row in enumerate(first.tolist()):
        rows = group == number
        key = _copy_kind(copies, row), _memory(copies, row)
        sums = found.setdefault(key, [0, 0, 0])
        size = copies["bytes"][rows]
        sums[0] += int(rows.sum())
        sums[1] += int(size[known(size)].sum())
        sums[2] += int(duration[rows].sum())
    return found


def copy_rows(several: Iterable[CopySums]) -> list[dict[str, Any]]:
    """The `copies` rows: one for each direction and kind of host memory."""
    found: CopySums = {}
    for sums in several:
        for key, own in sums.items():
            before = found.get(key, [0, 0, 0])
            found[key] = [a + b for a, b in zip(before, own, strict=True)]
    return [
        {"kind": kind, "memory": memory, "count": n, "bytes": size, "total_ns": total}
        for (kind, memory), (n, size, total) in sorted(found.items(), key=lambda item: -item[1][2])
    ]


def _copy_kind(copies: Table, row: int) -> str | None:
    kind = int(copies["copy"][row])
    return COPY_KINDS[kind] if kind >= 0 else None


def _memory(copies: Table, row: int) -> str | None:
    """The kind of memory on the host's side; on the device's where both sides are devices."""
    ends = [int(copies[name][row]) for name in ("src", "dst")]
    names = [MEMORY_KINDS[end] for end in ends if end >= 0]
    return next((name for name in names if name != "device"), names[0] if names else None)
