"""One rank's parts in collectives: the records, and the kernels that no record speaks of."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.ranks import Rank
from rca_llm.table import UNKNOWN, Ints, Table, known, optional
from rca_llm.trace import COPY_KINDS, KERNEL, MEMCPY, REFERENCE, Clock, Timeline

_OP_IN_NAME = re.compile(
    r"all_?reduce|cross_device_reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast"
    r"|send_?recv|reduce",
    re.I,
)
_OPS = {
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}


@dataclass(frozen=True)
class Part:
    """One rank's part in a collective; `gpu_row` and `row` lead to the tables, -1 for none.

    `stream` is that of its kernel, `clock` the one that its times were taken on.
    """

    rank: int
    comm: str | None
    op: str | None
    seq: int | None
    start: int
    end: int
    bytes: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    algo: str | None = None
    proto: str | None = None
    gpu_row: int = -1
    row: int = -1
    contended_ns: int | None = None
    stream: int | None = None
    clock: Clock = REFERENCE


def parts_of(timeline: Timeline, gpu_parts: Ints, rank: Rank) -> list[Part]:
    """A rank's collectives by start; `gpu_parts` is the part of every `gpu` row."""
    table = timeline["collectives"]
    rows = np.flatnonzero(_belongs(table, rank, timeline))
    kernel_of = _kernels(timeline, rank, table["correlation"][rows])
    found = [
        _recorded(timeline, table, int(row), rank, int(gpu))
        for row, gpu in zip(rows, kernel_of, strict=True)
    ]
    told = set(kernel_of.tolist())
    found += _from_kernels(timeline, gpu_parts, rank, told)
    found = [part for part in found if part.start != UNKNOWN]
    return _with_contention(timeline, rank, sorted(found, key=lambda part: part.start))


def _belongs(table: Table, rank: Rank, timeline: Timeline) -> Ints:
    """The records of a rank: of its number where they state one, else of its processes."""
    stated = known(table["rank"])
    mine = among(table["process"], [*rank.processes, UNKNOWN])
    return np.asarray(np.where(stated, table["rank"] == rank.number, mine))


def _kernels(timeline: Timeline, rank: Rank, wanted: Ints) -> Ints:
    """The rank's `gpu` row with each wanted correlation id, -1 where there is none."""
    gpu = timeline["gpu"]
    mine = among(gpu["process"], [*rank.processes])
    kernels = np.flatnonzero((gpu["kind"] == KERNEL) & mine)
    ids = gpu["correlation"][kernels]
    order = np.argsort(ids, kind="stable")
    if not len(order):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(ids[order], wanted), len(order) - 1)
    hit = known(wanted) & (ids[order][place] == wanted)
    return np.where(hit, kernels[order[place]], -1)


def _recorded(timeline: Timeline, table: Table, row: int, rank: Rank, gpu_row: int) -> Part:
    gpu = timeline["gpu"]
    times = (gpu, gpu_row) if gpu_row >= 0 else (table, row)
    start, end = int(times[0]["start"][times[1]]), int(times[0]["end"][times[1]])
    return Part(
        rank=rank.number,
        comm=timeline.text(int(table["comm"][row])),
        op=_op(timeline.text(int(table["op"][row]))),
        seq=optional(table["seq"][row]),
        start=start,
        end=max(end, start),
        bytes=optional(table["bytes"][row]),
        dtype=timeline.text(int(table["dtype"][row])),
        group_size=optional(table["group_size"][row]),
        algo=timeline.text(int(table["algo"][row])),
        proto=timeline.text(int(table["proto"][row])),
        gpu_row=gpu_row,
        row=row,
        stream=optional(gpu["stream"][gpu_row]) if gpu_row >= 0 else None,
        clock=timeline.clock,
    )


def _op(name: str | None) -> str | None:
    """The operation in one spelling, whatever the library calls it."""
    match = _OP_IN_NAME.search(name or "")
    return _OPS[match.group().lower().replace("_", "")] if match else name


def _from_kernels(timeline: Timeline, gpu_parts: Ints, rank: Rank, told: set[int]) -> list[Part]:
    gpu = timeline["gpu"]
    communication = [CODE["communication.collective"], CODE["communication.p2p"]]
    rows = np.flatnonzero(
        (gpu["kind"] == KERNEL)
        & among(gpu_parts, communication)
        & among(gpu["process"], [*rank.processes])
        & known(gpu["start"])
    )
    names, start, end, stream = (gpu[name] for name in ("name", "start", "end", "stream"))
    return [
        Part(
            rank.number,
            None,
            _op(timeline.strings[int(names[row])]),
            None,
            int(start[row]),
            int(end[row]),
            gpu_row=row,
            stream=optional(stream[row]),
            clock=timeline.clock,
        )
        for row in rows.tolist()
        if row not in told
    ]


def _with_contention(timeline: Timeline, rank: Rank, parts: list[Part]) -> list[Part]:
    """How long peer copies ran on the rank's devices during each of its collectives."""
    gpu = timeline["gpu"]
    peer = np.flatnonzero(
        (gpu["kind"] == MEMCPY)
        & (gpu["copy"] == COPY_KINDS.index("P2P"))
        & among(gpu["process"], [*rank.processes])
    )
    start, end = intervals.union(gpu["start"][peer], gpu["end"][peer])
    copies = intervals.Pieces(start, end, np.zeros(len(start), np.int64))
    starts = np.array([part.start for part in parts], np.int64)
    ends = np.array([part.end for part in parts], np.int64)
    shared = intervals.sums_in(copies, starts, ends, 1)[:, 0].tolist()
    return [replace(part, contended_ns=n) for part, n in zip(parts, shared, strict=True)]
