"""What the devices of a rank do: one activity a record, one winner an instant (rule 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import kernel_parts
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.attribute.ranks import Rank, rows_of
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Ints, Mask, Strings, Table, known
from rca_llm.trace import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMSET, Timeline

COMPUTE, COMMUNICATION, HAND_OVER, COPY, MEMORY = range(5)
"""The layers of rule 3: an earlier one hides a later one."""

LAYERS = 5

_COPY_PART = {
    "H2D": "io.h2d",
    "D2H": "io.d2h",
    "D2D": "compute.memory",
    "P2P": "communication.p2p",
    "H2H": "io.h2d",
}


@dataclass(frozen=True)
class Activity:
    """Everything that occupied a rank's devices, one row a record with a time.

    `gpu_row` and `collective_row` lead to the tables, -1 where the record is of another kind;
    `step` is a row of the rank's steps, -1 for none; `arrived` is when the last rank had come to
    the collective, `UNKNOWN` where that is not known or not needed.
    """

    start: Ints
    end: Ints
    part: Ints
    layer: Ints
    tie: Ints
    gpu_row: Ints
    collective_row: Ints
    step: Ints
    arrived: Ints

    def __len__(self) -> int:
        return len(self.start)


def _layer_of_part() -> Ints:
    layers = np.full(len(CODE), COMPUTE, np.int64)
    for name, code in CODE.items():
        if name == "communication.kv_transfer":
            layers[code] = HAND_OVER
        elif name.startswith("communication."):
            layers[code] = COMMUNICATION
        elif name.startswith("io."):
            layers[code] = COPY
    return layers


_LAYER_OF_PART = _layer_of_part()


def gpu_parts(gpu: Table, strings: Strings) -> Ints:
    """The part of every device record while it is the one that counts."""
    kind, copy = gpu["kind"], gpu["copy"]
    parts = kernel_parts(strings, gpu["name"])
    parts[kind == GRAPH] = CODE["compute.graph"]
    parts[kind == MEMSET] = CODE["compute.memory"]
    by_copy = np.array([*(CODE[_COPY_PART[c]] for c in COPY_KINDS), CODE["compute.memory"]])
    copies = kind == MEMCPY
    parts[copies] = by_copy[copy[copies]]
    return parts


def activities(timeline: Timeline, rank: Rank, parts: Ints, steps: Ints) -> Activity:
    """The device work of a rank; `parts` and `steps` belong to the rows of `gpu`."""
    gpu = timeline["gpu"]
    rows = rows_of(gpu, rank)
    rows = rows[known(gpu["start"][rows])]
    kind, part, launch = gpu["kind"][rows], parts[rows], gpu["correlation"][rows]
    on_device = (kind == MEMSET) | ((kind == MEMCPY) & (part == CODE["compute.memory"]))
    own = Activity(
        gpu["start"][rows],
        gpu["end"][rows],
        part,
        np.where(on_device, MEMORY, _LAYER_OF_PART[part]),
        np.where(known(launch), launch, UNKNOWN + part),
        rows,
        np.full(len(rows), -1, np.int64),
        steps[rows],
        np.full(len(rows), UNKNOWN, np.int64),
    )
    return join([own, _hand_overs(timeline, rank)])


def _hand_overs(timeline: Timeline, rank: Rank) -> Activity:
    """KV hand-overs that a host span tells of."""
    ranges = timeline["ranges"]
    kind = timeline.strings.find("kv_transfer")
    rows = rows_of(ranges, rank)
    rows = rows[(ranges["kind"][rows] == kind) & (kind >= 0)]
    return bare(ranges["start"][rows], ranges["end"][rows], CODE["communication.kv_transfer"])


def bare(start: Ints, end: Ints, part: int) -> Activity:
    """Activities of one part that no `gpu` row tells of."""
    nowhere = np.full(len(start), -1, np.int64)
    unknown = np.full(len(start), UNKNOWN, np.int64)
    parts = np.full(len(start), part, np.int64)
    layers = _LAYER_OF_PART[parts]
    return Activity(start, end, parts, layers, unknown, nowhere, nowhere, nowhere, unknown)


def join(several: list[Activity]) -> Activity:
    """Several sets of activities as one."""
    fields = Activity.__dataclass_fields__
    return Activity(*(np.concatenate([getattr(a, name) for a in several]) for name in fields))


def occupied(activity: Activity, rank: Rank) -> Pieces:
    """Which activity counts at each instant of the window; -1 where the devices are idle."""
    layers: list[Pieces] = []
    for number in range(LAYERS):
        rows = np.flatnonzero(activity.layer == number)
        found = intervals.earliest_wins(
            activity.start[rows], activity.end[rows], activity.tie[rows]
        )
        layers.append(found.relabel(rows))
    busy = [layer for layer in layers if len(layer)]
    if not busy:
        return intervals.overlay([], rank.start, rank.end)[0]
    return intervals.overlay(busy, rank.start, rank.end)[0]


def split_waits(pieces: Pieces, activity: Activity) -> tuple[Pieces, Ints]:
    """Cut pieces of collectives where the last rank arrived; the pieces and the part of each."""
    arrived = activity.arrived[activity.part == CODE["communication.collective"]]
    edges = arrived[known(arrived)]
    if len(edges):
        pieces = intervals.cut(pieces, intervals.distinct(edges))
    part = np.append(activity.part, NO_PART)[pieces.label]
    last = np.append(activity.arrived, UNKNOWN)[pieces.label]
    waiting = (part == CODE["communication.collective"]) & known(last) & (pieces.end <= last)
    return pieces, np.where(waiting, CODE["communication.wait"], part)


def busy_rows(gpu: Table) -> Mask:
    """Which `gpu` rows keep a device busy: kernels, and graph replays recorded as one piece."""
    kind = gpu["kind"]
    return np.asarray((kind == KERNEL) | (kind == GRAPH))
