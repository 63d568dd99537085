"""Collectives: every rank's part of each, matched across ranks, with who waited for whom."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import device
from rca_llm.attribute.device import Activity
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.ranks import Rank
from rca_llm.table import UNKNOWN, Ints, Table, known, optional
from rca_llm.trace import COPY_KINDS, KERNEL, MEMCPY, Timeline

_OP_IN_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce",
    re.I,
)
_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}

_BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
"""Bus bandwidth over algorithm bandwidth for n ranks (nccl-tests, doc/PERFORMANCE.md)."""


@dataclass(frozen=True)
class Part:
    """One rank's part in a collective; `gpu_row` and `row` lead to the tables, -1 for none."""

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


@dataclass(frozen=True)
class Collective:
    """One collective with the parts of all ranks that were found."""

    parts: tuple[Part, ...]
    complete: bool

    @property
    def arrived(self) -> int | None:
        """When the last rank had come, None where parts are missing."""
        return max(part.start for part in self.parts) if self.complete else None


def parts_of(recording: Recording, rank: Rank) -> list[Part]:
    """A rank's collectives: the records, and the kernels that no record speaks of."""
    timeline = recording.timeline
    table = timeline["collectives"]
    rows = np.flatnonzero(_belongs(table, rank, timeline))
    kernel_of = _kernels(timeline, rank, table["correlation"][rows])
    found = [
        _recorded(timeline, table, int(row), rank, int(gpu))
        for row, gpu in zip(rows, kernel_of, strict=True)
    ]
    told = set(kernel_of.tolist())
    found += _from_kernels(recording, rank, told)
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
    )


def _op(name: str | None) -> str | None:
    """The operation in one spelling, whatever the library calls it."""
    match = _OP_IN_NAME.search(name or "")
    return _OPS[match.group().lower().replace("_", "")] if match else name


def _from_kernels(recording: Recording, rank: Rank, told: set[int]) -> list[Part]:
    timeline = recording.timeline
    gpu = timeline["gpu"]
    communication = [CODE["communication.collective"], CODE["communication.p2p"]]
    rows = np.flatnonzero(
        (gpu["kind"] == KERNEL)
        & among(recording.gpu_parts, communication)
        & among(gpu["process"], [*rank.processes])
        & known(gpu["start"])
    )
    names, start, end = gpu["name"], gpu["start"], gpu["end"]
    return [
        Part(
            rank.number,
            None,
            _op(timeline.strings[int(names[row])]),
            None,
            int(start[row]),
            int(end[row]),
            gpu_row=row,
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


def match(ranks: Sequence[Sequence[Part]]) -> list[Collective]:
    """Bring the parts of one collective together.

    The key is communicator, operation and sequence number; where no number was recorded, the
    place in the order of the communicator, which is the same on every rank.
    """
    groups: dict[tuple[object, ...], list[Part]] = defaultdict(list)
    for parts in ranks:
        for key, part in _keyed(parts):
            groups[key].append(part)
    found = [_collective(parts, len(ranks)) for parts in groups.values()]
    return sorted(found, key=lambda c: min(part.start for part in c.parts))


def _keyed(parts: Iterable[Part]) -> Iterable[tuple[tuple[object, ...], Part]]:
    places: dict[tuple[object, ...], int] = defaultdict(int)
    for part in parts:
        stem = (part.comm, part.op, part.seq)
        place = places[stem]
        places[stem] += 1
        yield (*stem, place), part


def _collective(parts: list[Part], ranks: int) -> Collective:
    sizes = [part.group_size for part in parts if part.group_size is not None]
    expected = max(sizes) if sizes else ranks
    return Collective(tuple(parts), complete=1 < len(parts) == expected)


def arrivals(collectives: Iterable[Collective], rank: int) -> tuple[dict[int, int], dict[int, int]]:
    """When the last rank came, by the `gpu` row and by the record of a rank's own part."""
    by_gpu: dict[int, int] = {}
    by_row: dict[int, int] = {}
    for collective in collectives:
        arrived = collective.arrived
        for part in collective.parts:
            if arrived is not None and part.rank == rank:
                target, key = (by_gpu, part.gpu_row) if part.gpu_row >= 0 else (by_row, part.row)
                target[key] = arrived
    return by_gpu, by_row


def add_to(
    activity: Activity,
    parts: Sequence[Part],
    collectives: Iterable[Collective],
    rank: int,
) -> Activity:
    """A rank's activities with its collectives: those without a kernel, and all arrivals."""
    by_gpu, by_row = arrivals(collectives, rank)
    bare = [part for part in parts if part.gpu_row < 0]
    extra = device.bare(
        np.array([part.start for part in bare], np.int64),
        np.array([part.end for part in bare], np.int64),
        CODE["communication.collective"],
    )
    rows = np.array([part.row for part in bare], np.int64)
    joined = device.join([activity, replace(extra, collective_row=rows)])
    arrived = np.array(joined.arrived, np.int64)
    for place in np.flatnonzero(joined.layer == device.COMMUNICATION).tolist():
        gpu_row, row = int(joined.gpu_row[place]), int(joined.collective_row[place])
        arrived[place] = by_gpu.get(gpu_row, UNKNOWN) if gpu_row >= 0 else by_row.get(row, UNKNOWN)
    return replace(joined, arrived=arrived)


def summary_row(collective: Collective) -> dict[str, object]:
    """The contract's `collectives` row."""
    parts = collective.parts
    first, arrived = parts[0], collective.arrived
    start, end = min(p.start for p in parts), max(p.end for p in parts)
    transfer = None if arrived is None else max(end - arrived, 0)
    last = None
    if arrived is not None:
        latest = [part.rank for part in parts if part.start == arrived]
        last = latest[0] if len(latest) == 1 else None
    size = _first(part.bytes for part in parts)
    return {
        "comm": first.comm,
        "op": first.op,
        "seq": first.seq,
        "bytes": size,
        "dtype": first.dtype,
        "ranks": sorted({part.rank for part in parts}),
        "start_ns": start,
        "end_ns": end,
        "wait_ns": None
        if arrived is None
        else {str(part.rank): arrived - part.start for part in parts},
        "transfer_ns": transfer,
        "last_rank": last,
        "busbw_bytes_s": _bus_bandwidth(first.op, size, transfer, len(parts)),
        "algo": _first(part.algo for part in parts),
        "proto": _first(part.proto for part in parts),
        "contended_ns": _longest(part.contended_ns for part in parts),
    }


def _first(values: Iterable[object]) -> object:
    return next((value for value in values if value is not None), None)


def _longest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _bus_bandwidth(op: str | None, size: object, transfer: int | None, ranks: int) -> int | None:
    """Bytes a second over the bus, None where size or transfer time is not known."""
    factor = _BUS_FACTOR.get(op or "")
    if factor is None or not isinstance(size, int) or not transfer:
        return None
    total = size * ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else size
    return round(total * factor(ranks) * 1_000_000_000 / transfer)
