"""What a start-up spent its time on: from the first record to being ready, by phase.

Ready is when the first step begins; without steps, when the first request arrives. A run that has
neither does not say when it was ready, and has no such row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import RankPartition, Recording
from rca_llm.attribute.parts import CODE, NO_PART, PARTS
from rca_llm.intervals import Pieces
from rca_llm.table import known

PHASES = {
    "read": ("io.file",),
    "page_fault": ("io.page_fault",),
    "h2d": ("io.h2d",),
    "compile": ("scheduling.jit", "scheduling.graph_capture"),
}
"""Parts of the partition that are phases of a start-up; `cast` comes from spans of that kind."""


def load_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """One row a rank: rank, start_ns, ready_ns, total_ns, and the ns of every phase.

    The phases `read_ns`, `page_fault_ns`, `cast_ns`, `h2d_ns`, `compile_ns` and `other_ns` add up
    to `total_ns`. `files` lists what was read, by bytes.
    """
    return [row for member in members for row in _of_rank(member)]


def _of_rank(member: Member) -> list[dict[str, Any]]:
    recording, partition = member
    start, ready = partition.rank.start, _ready(member)
    if ready is None or ready <= start:
        return []
    pieces = _with_casts(recording, partition).clip(start, ready)
    sums = pieces.sums(len(PARTS) + 1)
    row: dict[str, Any] = {
        "rank": partition.rank.number,
        "start_ns": start,
        "ready_ns": ready,
        "total_ns": ready - start,
        "cast_ns": int(sums[_CAST]),
    }
    for name, parts in PHASES.items():
        row[f"{name}_ns"] = int(sums[[CODE[part] for part in parts]].sum())
    told = row["cast_ns"] + sum(row[f"{name}_ns"] for name in PHASES)
    return [{**row, "other_ns": ready - start - told, "files": _files(recording, ready)}]


_CAST = len(PARTS)


def _ready(member: Member) -> int | None:
    recording, partition = member
    if len(partition.steps):
        return int(recording.steps.start[partition.steps].min())
    arrivals = recording.timeline["requests"]["arrival"]
    arrivals = arrivals[known(arrivals)]
    return int(arrivals.min()) if len(arrivals) else None


def _with_casts(recording: Recording, partition: RankPartition) -> Pieces:
    """The partition, with mere host work inside of conversions told apart."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    code = strings.find("cast")
    own = among(ranges["process"], [*partition.rank.processes])
    rows = np.flatnonzero(own & (ranges["kind"] == code)) if code >= 0 else np.empty(0, np.int64)
    start, end = intervals.union(ranges["start"][rows], ranges["end"][rows])
    pieces = partition.segments.pieces
    if not len(start) or not len(pieces):
        return pieces
    pieces = intervals.cut(pieces, intervals.distinct(np.concatenate([start, end])))
    casts = Pieces(start, end, np.zeros(len(start), np.int64))
    plain = pieces.label == CODE["scheduling.host"]
    inside = plain & (intervals.at(casts, pieces.start) != NO_PART)
    return Pieces(pieces.start, pieces.end, np.where(inside, _CAST, pieces.label))


MOST_FILES = 20


def _files(recording: Recording, ready: int) -> list[dict[str, Any]]:
    """What was read of each file before the engine was ready: path, bytes, ns, calls."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    kinds = [code for kind in ("file", "load") if (code := strings.find(kind)) >= 0]
    rows = np.flatnonzero(
        among(ranges["kind"], kinds) & (ranges["path"] >= 0) & (ranges["start"] < ready)
    )
    rows = rows[known(ranges["bytes"][rows]) & (ranges["bytes"][rows] > 0)]
    path, group, count = np.unique(ranges["path"][rows], return_inverse=True, return_counts=True)
    size = intervals.sum_by(group, ranges["bytes"][rows], len(path))
    ns = intervals.sum_by(group, (ranges["end"] - ranges["start"])[rows], len(path))
    order = np.argsort(-size, kind="stable")[:MOST_FILES]
    return [
        {
            "path": strings[int(path[n])],
            "bytes": int(size[n]),
            "ns": int(ns[n]),
            "calls": int(count[n]),
        }
        for n in order.tolist()
    ]
