"""Rows about devices: `devices`, `kernels`, `copies`, and the counts of device records."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import device
from rca_llm.attribute.classify import classify_all
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.ranks import Rank
from rca_llm.hardware import occupancy
from rca_llm.table import UNKNOWN, Array, Ints, Strings, Table, concat, known
from rca_llm.trace import (
    COPY_KINDS,
    GPU,
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


def kernel_rows(recordings: list[Recording]) -> list[dict[str, Any]]:
    """The `kernels` rows: one for each name and launch shape, the longest total first."""
    strings, table, limits = _all_kernels(recordings)
    if not len(table):
        return []
    group, first = table.grouped(("name", *SHAPE))
    duration = np.where(known(table["start"]), table["end"] - table["start"], 0)
    totals = intervals.sum_by(group, duration, len(first))
    counts = np.bincount(group, minlength=len(first))
    whole = int(totals.sum())
    classes = dict(zip(*_classes(strings, table["name"][first]), strict=True))
    rows: list[dict[str, Any]] = []
    for number in np.argsort(-totals, kind="stable").tolist():
        row = int(first[number])
        total = int(totals[number])
        rows.append(
            _kernel_row(table, row, strings)
            | {
                **classes[int(table["name"][row])],
                "count": int(counts[number]),
                "total_ns": total,
                "share": total / whole if whole else None,
                "occupancy": _occupancy(table, row, limits),
            }
        )
    return rows


def _kernel_row(table: Table, row: int, strings: Strings) -> dict[str, Any]:
    shape = [int(table[name][row]) for name in SHAPE]
    return {
        "name": strings[int(table["name"][row])],
        "class": None,
        "also": None,
        "count": 0,
        "total_ns": 0,
        "share": None,
        "grid": shape[:3] if shape[0] >= 0 else None,
        "block": shape[3:6] if shape[3] >= 0 else None,
        "registers": shape[6] if shape[6] >= 0 else None,
        "shared_bytes": shape[7] if shape[7] >= 0 else None,
        "occupancy": None,
    }


def _classes(strings: Strings, codes: Array) -> tuple[list[int], list[dict[str, Any]]]:
    names = np.unique(codes).tolist()
    found = classify_all([strings[code] for code in names])
    return names, [{"class": kernel.part, "also": kernel.also} for kernel in found]


def _all_kernels(
    recordings: list[Recording],
) -> tuple[Strings, Table, dict[str, int] | None]:
    """The kernels of all timelines with common text codes, and the limits of their device."""
    strings = Strings()
    tables: list[Table] = []
    devices: list[Device] = []
    for recording in recordings:
        gpu = recording.timeline["gpu"]
        kernels = gpu.take(gpu["kind"] == KERNEL)
        codes = np.append(strings.codes(recording.timeline.strings.texts), -1)
        tables.append(kernels.with_columns(name=codes[kernels["name"]]))
        devices += recording.timeline.devices
    return strings, concat(GPU, tables), _common_limits(devices)


def _common_limits(devices: list[Device]) -> dict[str, int] | None:
    """The limits that all devices share; None where they differ or none are known."""
    known_limits = [device.limits for device in devices if device.limits]
    same = known_limits and all(limits == known_limits[0] for limits in known_limits)
    return known_limits[0] if same else None


def _occupancy(table: Table, row: int, limits: dict[str, int] | None) -> float | None:
    block = [int(table[name][row]) for name in ("block_x", "block_y", "block_z")]
    registers, shared = int(table["registers"][row]), int(table["shared"][row])
    if limits is None or min(*block, registers, shared) < 0:
        return None
    return occupancy(block[0] * block[1] * block[2], registers, shared, limits)


def copy_rows(recordings: list[Recording]) -> list[dict[str, Any]]:
    """The `copies` rows: one for each direction and kind of host memory."""
    found: dict[tuple[str | None, str | None], list[int]] = {}
    for recording in recordings:
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
