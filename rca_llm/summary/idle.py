"""Why devices were idle: each part of that time by the innermost named range, and by function.

A row says what the thread that launches for the device did, inside which of the program's own
ranges, and, where stacks were sampled, in which function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import RankPartition, Recording
from rca_llm.attribute.parts import CLASS_OF, CLASSES, PARTS
from rca_llm.intervals import Pieces
from rca_llm.summary.ranges import marked
from rca_llm.table import Ints

MOST_ROWS = 100
STACK = "stack"
"""The domain of `ranges` that sampled functions are in."""


def idle_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The `idle` rows, the longest first: rank, part, range, function, ns, count.

    `ns` is device-idle time inside of steps (of the whole window where there are none). `range` and
    `function` are None where the thread was in none, or none was sampled. On an engine without
    devices this is the time in which nothing was computed.
    """
    rows = [row for member in members for row in _of_rank(member)]
    return sorted(rows, key=lambda row: -row["ns"])[:MOST_ROWS]


def _of_rank(member: Member) -> list[dict[str, Any]]:
    recording, partition = member
    pieces = _idle(partition)
    if not len(pieces):
        return []
    thread = _launching_thread(recording, partition)
    named = _innermost(recording, thread, sampled=False)
    function = _innermost(recording, thread, sampled=True)
    edges = [values for found in (named, function) for values in (found.start, found.end)]
    pieces = intervals.cut(pieces, intervals.distinct(np.concatenate(edges)))
    columns = [pieces.label, _label_at(named, pieces.start), _label_at(function, pieces.start)]
    text = recording.timeline.text
    return [
        {
            "rank": partition.rank.number,
            "part": PARTS[part],
            "range": text(name),
            "function": text(called),
            "ns": total,
            "count": count,
        }
        for (part, name, called), total, count in _grouped(columns, pieces.end - pieces.start)
    ]


def _grouped(columns: Sequence[Ints], lasting: Ints) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """The values, the sum and the count of equal rows, in the order in which they come first."""
    order = np.lexsort(columns[::-1])
    ordered = [values[order] for values in columns]
    new = np.any([np.diff(values) != 0 for values in ordered], axis=0)
    begin = np.concatenate([[0], np.flatnonzero(new) + 1])
    sums = np.add.reduceat(lasting[order], begin)
    counts = np.diff(np.append(begin, len(order)))
    for group in np.argsort(order[begin], kind="stable").tolist():
        values = tuple(int(values[begin[group]]) for values in ordered)
        yield values, int(sums[group]), int(counts[group])


def _idle(partition: RankPartition) -> Pieces:
    """The idle time of a rank's devices, labelled with its part."""
    segments = partition.segments
    group = CLASS_OF[segments.part]
    idle = (segments.activity < 0) & ~among(group, [CLASSES.index("compute")])
    idle &= group != CLASSES.index("unknown")
    if len(partition.steps):
        idle &= segments.step >= 0
    return segments.pieces.take(np.flatnonzero(idle))


def _launching_thread(recording: Recording, partition: RankPartition) -> int:
    rows = np.flatnonzero(among(recording.timeline["gpu"]["process"], [*partition.rank.processes]))
    counts = host.launch_counts(recording.host, recording.launched_by[rows])
    return host.main_thread(recording.host, counts, partition.rank.processes)


def _innermost(recording: Recording, thread: int, *, sampled: bool) -> Pieces:
    """The program's own ranges of a thread, or its sampled functions, by name (a text code)."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    mine = recording.host.range_thread == thread
    if sampled:
        rows = np.flatnonzero(mine & (ranges["domain"] == strings.find(STACK)))
        rows = rows if strings.find(STACK) >= 0 else rows[:0]
    else:
        rows = marked(recording.timeline)
        rows = rows[mine[rows] & (ranges["end"][rows] > ranges["start"][rows])]
    found = intervals.innermost_wins(ranges["start"][rows], ranges["end"][rows])
    return found.relabel(ranges["name"][rows])


def _label_at(pieces: Pieces, times: Ints) -> Ints:
    return np.append(pieces.label, -1)[intervals.at(pieces, times)].astype(np.int64)
