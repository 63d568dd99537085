"""One rank's parts in collectives: the records, and the kernels that no record speaks of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.collective_names import OPERATIONS
from rca_llm.attribute.links import among, link
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.ranks import Rank
from rca_llm.table import UNKNOWN, Ints, Table, first_rows, known, optional
from rca_llm.trace import COPY_KINDS, KERNEL, MEMCPY, REFERENCE, Clock, Timeline

_OP_IN_NAME = re.compile(
    r"all_?reduce|cross_device_reduce|quick_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|broadcast|send_?recv|reduce|barrier|\b(?:notify_?|a2a_?)?(?:dispatch|combine)",
    re.I,
)
_OPS = OPERATIONS | {
    "crossdevicereduce": "all_reduce",
    "quickreduce": "all_reduce",
    "dispatch": "dispatch",
    "combine": "combine",
}
"""Operations by what names hold, those of engines' own kernels too. Experts' dispatch and combine
are no all-to-all here: a rank may leave them before all have come, and so they tell nothing of
clocks."""


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in a collective; `gpu_row` and `row` lead to the tables, -1 for none.

    `stream` is that of its kernel, `clock` what its times were taken on. A thread that began
    it (`start`) and went on waited for it from `waited_from`; None: all the time, or nobody knows.
    `issued` is when the host handed it to the device, None where nobody says.
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
    waited_from: int | None = None
    open: bool = False
    """Whether it had not ended when its process did."""
    issued: int | None = None
    cut: bool = False
    """Whether its rank's input ends early: which of its parts are missing nobody knows."""


def parts_of(timeline: Timeline, gpu_parts: Ints, rank: Rank) -> list[Part]:
    """A rank's collectives by start; `gpu_parts` is the part of every `gpu` row."""
    table = timeline["collectives"]
    rows = np.flatnonzero(_belongs(table, rank))
    kernel_of = _kernels(timeline, rank, table["correlation"][rows], table["start"][rows])
    bare = _undescribed(timeline, gpu_parts, rank, kernel_of)
    gpu_rows = np.concatenate([kernel_of, bare])
    rows = np.concatenate([rows, np.full(len(bare), -1, np.int64)])
    start, end = _times(timeline, rows, gpu_rows)
    order = np.argsort(start, kind="stable")
    order = order[known(start[order])]
    gpu_rows, rows = gpu_rows[order], rows[order]
    start, end = start[order], np.maximum(end, start)[order]
    columns = _said(timeline, gpu_rows, rows) | {
        "rank": [rank.number] * len(rows),
        "start": start.tolist(),
        "end": end.tolist(),
        "gpu_row": gpu_rows.tolist(),
        "row": rows.tolist(),
        "contended_ns": _contention(timeline, rank, start, end).tolist(),
        "clock": [timeline.clock] * len(rows),
        "cut": [rank.cut] * len(rows),
    }
    fields = [columns[name] for name in Part.__dataclass_fields__]
    return [Part(*values) for values in zip(*fields, strict=True)]


def _times(timeline: Timeline, rows: Ints, gpu_rows: Ints) -> tuple[Ints, Ints]:
    """Start and end of every part: of its kernel where there is one, else as recorded."""
    found: list[Ints] = []
    for name in ("start", "end"):
        recorded = np.append(timeline["collectives"][name], UNKNOWN)[rows]
        on_device = np.append(timeline["gpu"][name], UNKNOWN)[gpu_rows]
        found.append(np.where(gpu_rows >= 0, on_device, recorded))
    return found[0], found[1]


def _said(timeline: Timeline, gpu_rows: Ints, rows: Ints) -> dict[str, list[Any]]:
    """What records, or else the names of kernels, say of some parts: values by field of `Part`."""
    table, gpu, strings = timeline["collectives"], timeline["gpu"], timeline.strings
    texts: list[str | None] = [*strings.texts, None]

    nothing: list[Any] = [None] * len(rows)

    def text(name: str) -> list[Any]:
        if name not in table:
            return nothing
        return [texts[code] for code in np.append(table[name], -1)[rows].tolist()]

    def number(source: Table, name: str, places: Ints) -> list[Any]:
        if name not in source:
            return nothing
        values: list[int] = np.append(source[name], UNKNOWN)[places].tolist()
        return [None if value == UNKNOWN else value for value in values]

    names = np.append(gpu["name"], -1)[gpu_rows]
    named: list[int] = np.where(rows >= 0, np.append(table["op"], -1)[rows], names).tolist()
    ops = {code: _op(texts[code]) for code in set(named)}
    return {
        "op": [ops[code] for code in named],
        **{name: text(name) for name in ("comm", "dtype", "algo", "proto")},
        **{name: number(table, name, rows) for name in _NUMBERS},
        "stream": number(gpu, "stream", gpu_rows),
        "open": (np.append(table["open"], -1)[rows] == 1).tolist(),
        "issued": [optional(time) for time in _issued(timeline, gpu_rows, rows).tolist()],
    }


def _issued(timeline: Timeline, gpu_rows: Ints, rows: Ints) -> Ints:
    """When each part was handed to the device: as its record says, else when it was launched."""
    told: Ints = np.append(timeline["collectives"]["issued"], UNKNOWN)[rows]
    lacking = np.flatnonzero((gpu_rows >= 0) & ~known(told))
    gpu, api = timeline["gpu"].take(gpu_rows[lacking]), timeline["api"]
    if len(lacking) and len(api):
        calls = api.take(np.flatnonzero(np.isin(api["correlation"], gpu["correlation"])))
        told[lacking] = link(gpu, calls).of_api(calls["start"])
    return told


_NUMBERS = ("seq", "bytes", "group_size", "waited_from")


def _belongs(table: Table, rank: Rank) -> Ints:
    """The records of a rank: of its number where they state one, else of its processes."""
    stated = known(table["rank"])
    mine = among(table["process"], [*rank.processes, UNKNOWN])
    return np.asarray(np.where(stated, table["rank"] == rank.number, mine))


def _kernels(timeline: Timeline, rank: Rank, wanted: Ints, starts: Ints) -> Ints:
    """The rank's `gpu` row with each wanted correlation id, -1 where there is none.

    The kernels of a graph replay share an id: of several the one that began with the record.
    """
    gpu = timeline["gpu"]
    mine = among(gpu["process"], [*rank.processes])
    kernels = np.flatnonzero((gpu["kind"] == KERNEL) & mine)
    ids = gpu["correlation"][kernels]
    first = first_rows(ids, wanted)
    same = _with_start(ids, gpu["start"][kernels], wanted, starts)
    row = np.where(same >= 0, same, first)
    return np.append(kernels, -1)[np.where(known(wanted), row, -1)]


def _with_start(ids: Ints, starts: Ints, wanted_ids: Ints, wanted_starts: Ints) -> Ints:
    """The place of each wanted pair of id and start, -1 where it does not occur."""
    count = len(ids)
    if not count:
        return np.full(len(wanted_ids), -1, np.int64)
    all_ids, all_starts = np.append(ids, wanted_ids), np.append(starts, wanted_starts)
    order = np.lexsort([np.arange(len(all_ids)), all_starts, all_ids])
    latest = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
    found = np.full(len(all_ids), -1, np.int64)
    found[order] = np.where(latest >= 0, order[latest], -1)
    near = found[count:]
    same = (near >= 0) & (ids[near] == wanted_ids) & (starts[near] == wanted_starts)
    return np.where(same, near, -1)


def _op(name: str | None) -> str | None:
    """The operation in one spelling, whatever the library calls it."""
    match = _OP_IN_NAME.search(name or "")
    if match is None:
        return name
    word = match.group().lower().replace("_", "")
    return _OPS[word.removeprefix("notify").removeprefix("a2a")]


def _undescribed(timeline: Timeline, gpu_parts: Ints, rank: Rank, told: Ints) -> Ints:
    """The rows of communication kernels that no record speaks of."""
    gpu = timeline["gpu"]
    communication = [CODE["communication.collective"], CODE["communication.p2p"]]
    rows = np.flatnonzero(
        (gpu["kind"] == KERNEL)
        & among(gpu_parts, communication)
        & among(gpu["process"], [*rank.processes])
        & known(gpu["start"])
    )
    return rows[np.isin(rows, told, invert=True)]


def _contention(timeline: Timeline, rank: Rank, start: Ints, end: Ints) -> Ints:
    """How long peer copies ran on the rank's devices during each of its collectives, ns."""
    gpu = timeline["gpu"]
    peer = np.flatnonzero(
        (gpu["kind"] == MEMCPY)
        & (gpu["copy"] == COPY_KINDS.index("P2P"))
        & among(gpu["process"], [*rank.processes])
        & known(gpu["start"])
    )
    begun, ended = intervals.union(gpu["start"][peer], gpu["end"][peer])
    copies = intervals.Pieces(begun, ended, np.zeros(len(begun), np.int64))
    return intervals.sums_in(copies, start, end, 1)[:, 0]
