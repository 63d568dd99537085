"""Which processes of a timeline work on one device, and which of them run no engine's steps.

A device is told by its UUID. Where that is not known, the number that processes know it by stands
for it, which may be another device's in another process; so two processes count as neighbours then
only where their kernels never ran at one time, as they do not where a device is time-sliced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.device import busy_rows
from rca_llm.table import Ints, Mask, Table, known
from rca_llm.trace import Timeline

AT_ONCE = 0.01
"""Kernels of two processes that run together for more of their time are not those of turns."""

Place = tuple[int, int]
"""A process and the number of a device in it."""


@dataclass(frozen=True)
class SharedDevice:
    """A device of a process that another process, `by`, works on as well.

    `certain` says that its UUID tells so.
    """

    place: Place
    by: Place
    certain: bool


def shared_devices(timeline: Timeline) -> list[SharedDevice]:
    """All devices that several processes of a timeline work on, once for each of two processes."""
    gpu = timeline["gpu"]
    busy = np.flatnonzero(busy_rows(gpu) & known(gpu["start"]))
    processes: list[int] = np.unique(gpu["process"][busy]).tolist()
    if len(processes) < 2:
        return []
    places = [
        (process, int(number))
        for process in processes
        for number in np.unique(gpu["device"][busy[gpu["process"][busy] == process]])
    ]
    named = {(d.process, d.device): d.uuid for d in timeline.devices if d.uuid is not None}
    return list(_pairs(gpu, places, named))


def _pairs(
    gpu: Table, places: list[Place], named: dict[tuple[int | None, int], str]
) -> Iterator[SharedDevice]:
    for one, other in permutations(places, 2):
        if one[0] == other[0]:
            continue
        both = named.get(one), named.get(other)
        if None not in both:
            if both[0] == both[1]:
                yield SharedDevice(one, other, certain=True)
        elif one[1] == other[1] >= 0 and not _at_once(gpu, one, other):
            yield SharedDevice(one, other, certain=False)


def _at_once(gpu: Table, one: Place, other: Place) -> bool:
    """Whether kernels of two places run together for more than a moment of their time."""
    spans = kernels_of(gpu, one), kernels_of(gpu, other)
    shorter = min(int((end - start).sum()) for start, end in spans)
    return intervals.common(*spans) > AT_ONCE * shorter


def kernels_of(gpu: Table, place: Place) -> tuple[Ints, Ints]:
    """When kernels of a process ran on a device of it."""
    rows = rows_at(gpu, place) & busy_rows(gpu)
    return intervals.union(gpu["start"][rows], gpu["end"][rows])


def rows_at(gpu: Table, place: Place) -> Mask:
    """The rows of `gpu` with a time that are of a process and a device of it."""
    process, device = place
    found: Mask = (gpu["process"] == process) & (gpu["device"] == device) & known(gpu["start"])
    return found


def strangers(timeline: Timeline, stepping: Ints, shared: list[SharedDevice]) -> frozenset[int]:
    """The processes that run no step although others, that work on one of their devices, do.

    A process runs steps if they are recorded in it, `stepping`, or if spans of its carry the number
    of a step, as those of an engine's workers do.
    """
    ranges = timeline["ranges"]
    spans = ranges["process"][known(ranges["step"])] if "step" in ranges else stepping[:0]
    members = {*np.unique(stepping).tolist(), *np.unique(spans).tolist()}
    return frozenset(
        one.place[0] for one in shared if one.place[0] not in members and one.by[0] in members
    )


def process_name(timeline: Timeline, process: int) -> str:
    """What a process is called, with its id."""
    table = timeline["processes"]
    codes = table["name"][table["process"] == process]
    name = next((timeline.strings[int(code)] for code in codes if code >= 0), None)
    return f"process {process}" if name is None else f"{name} (process {process})"
