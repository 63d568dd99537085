"""What was recorded of NCCL: rows of its profiler plugin, and NVTX ranges with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers.segments import Codes, Segment, coded, packed_rows
from rca_llm.table import Array

ROW_TASK, ROW_CHANNEL = 32, 33
"""Kinds of rows, as `RowKind` in `probes/native/rows.h`."""

_TEXTS = ("comm_name", "func", "datatype", "asked_type", "algo", "proto")

TASK = np.dtype(
    [(name, "<u8") for name in ("start", "end", "launch", "comm", "count")]
    + [("seq", "<i8")]
    + [(name, "<u4") for name in ("plan", "task", *_TEXTS)]
    + [(name, "<i4") for name in ("ranks", "rank", "root", "peer", "channels")]
    + [("thread", "<u4"), ("kind", "u1"), ("capture", "u1"), ("pad", "u1", 6)]
)
"""The layout of `RowNccl`."""

CHANNEL = np.dtype([("begin", "<u8"), ("end", "<u8"), ("task", "<u4"), ("channel", "<u4")])
"""The layout of `RowNcclChannel`."""

_LAYOUTS = {ROW_TASK: TASK, ROW_CHANNEL: CHANNEL}

COLLECTIVE, PEER, COPIES = range(3)
"""`kind` of a task: by a kernel, between two ranks, by copies without a kernel."""

CAPTURED = 2
"""`capture` of a task whose call was captured into a CUDA graph."""

DOMAIN = "NCCL"
"""The NVTX domain of NCCL's own ranges."""

COMM, SIZE, PEER_RANK, RANKS = (
    "NCCL communicator ID",
    "Message size [bytes]",
    "Peer rank",
    "No. of ranks",
)
"""The fields of NCCL's NVTX payloads that are read, as NCCL names them."""


@dataclass
class Call:
    """One NVTX range of an NCCL call: when and where it was made, and its numbers by field."""

    name: str
    start: int
    end: int
    thread: int
    numbers: Mapping[str, int]


@dataclass
class Rows:
    """What was recorded of NCCL in one process."""

    tasks: list[Array] = field(default_factory=list[Array])
    channels: list[Array] = field(default_factory=list[Array])
    calls: list[Call] = field(default_factory=list[Call])

    def add(self, kind: int, row_bytes: int, payload: bytes | memoryview, codes: Codes) -> None:
        """Append a BUFFER cell's rows; `codes` translates NAME ids. Other kinds are passed over."""
        rows = packed_rows(payload, row_bytes, _LAYOUTS.get(kind))
        if rows is None:
            return
        if kind == ROW_CHANNEL:
            self.channels.append(rows)
            return
        for name in _TEXTS:
            rows[name] = coded(codes, rows[name]).astype(np.uint32)
        self.tasks.append(rows)

    def all_tasks(self) -> Array:
        """All tasks by the time at which they were handed over."""
        rows = np.concatenate(self.tasks) if self.tasks else np.zeros(0, TASK)
        return rows[np.argsort(rows["start"], kind="stable")]


def calls_of(segment: Segment) -> list[Call]:
    """NCCL's NVTX ranges in a segment."""
    if DOMAIN not in segment.names.values():
        return []
    places = segment.of(layout.SPAN)
    more, whole = segment.followers(places, layout.MORE)
    domains = [segment.names.get(number) for number in segment.cells["d"][more].tolist()]
    chosen = whole & (np.array(domains, object) == DOMAIN)
    chosen &= (segment.flags[places] & layout.FLAG_NVTX) != 0
    places = places[chosen]
    pairs = zip(places.tolist(), segment.threads(places).tolist(), strict=True)
    return [_call(segment, place, thread) for place, thread in pairs]


def _call(segment: Segment, place: int, thread: int) -> Call:
    cells = segment.cells
    numbers = {
        segment.names.get(int(cells["e"][at]), ""): int(cells["b"][at])
        for at in segment.numbers_behind(place + 1)  # behind its MORE cell
    }
    start, end = int(cells["a"][place]), int(cells["b"][place])
    name = segment.names.get(int(cells["e"][place]), "")
    return Call(name, start, end or start, thread, numbers)
