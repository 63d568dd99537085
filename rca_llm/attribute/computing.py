"""What threads do within their compute spans, on an engine that computes on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.innermost import innermost
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Array, Ints, RowsBy, Table

COMPUTE = CODE["compute.cpu"]


@dataclass(frozen=True)
class Computing:
    """Pieces of compute spans, disjoint on each thread: who, when, for whom, and what was done.

    `part` is `compute.cpu`, or that of the innermost record within the span: a thread that waits
    for a CPU, or collects garbage, does not compute. `request` is a text code, -1 for none.
    """

    thread: Ints
    start: Ints
    end: Ints
    part: Ints
    request: Ints

    def take(self, rows: Array) -> Computing:
        """A selection."""
        columns = self.thread, self.start, self.end, self.part, self.request
        return Computing(*(column[rows] for column in columns))

    def within(self, start: int, end: int) -> Computing:
        """The pieces that overlap [start, end)."""
        return self.take((self.start < end) & (self.end > start))

    def layers(self) -> list[Pieces]:
        """When any thread computed, which hides the other layer: what kept threads from it."""
        on = self.part == COMPUTE
        start, end = intervals.union(self.start[on], self.end[on])
        delays = intervals.earliest_wins(self.start[~on], self.end[~on])
        computed = Pieces(start, end, np.full(len(start), COMPUTE, np.int64))
        return [computed, delays.relabel(self.part[~on])]


def find(
    of_thread: RowsBy,
    columns: tuple[Ints, Ints, Ints, Ints],
    range_thread: Ints,
    ranges: Table,
    spans: Ints,
) -> Computing:
    """The pieces of the compute spans, rows of `ranges`; `columns` of records: start, end, part,
    and the request that they name, -1 for none: what is done for one is not told of another's span.

    `of_thread` finds the records of a thread, as a server may have a thread for each request.
    """
    found = [Computing(*(np.empty(0, np.int64) for _ in range(5)))]
    spans = spans[np.argsort(range_thread[spans], kind="stable")]
    for run in intervals.runs(range_thread[spans]):
        rows, number = spans[run], int(range_thread[spans[run.start]])
        start, end, part, named = (column[of_thread[number]] for column in columns)
        inside = intervals.innermost_wins(ranges["start"][rows], ranges["end"][rows])
        foreign = (named >= 0) & (part != COMPUTE)
        if foreign.any():
            until = _until(inside.relabel(ranges["request"][rows]), start, named)
            end = np.where(foreign, np.minimum(end, until), end)
            start, end, part = (column[end > start] for column in (start, end, part))
        gaps = intervals.union(inside.start, inside.end)
        told = intervals.cut(innermost(start, end, part, gaps), _edges(inside))
        row = intervals.at(inside, told.start)
        told, row = told.take(row >= 0), rows[inside.label[row[row >= 0]]]
        who = np.full(len(told), number, np.int64)
        whose = ranges["request"][row] if "request" in ranges else np.full(len(row), UNKNOWN)
        found.append(Computing(who, told.start, told.end, told.label, whose))
    names = Computing.__dataclass_fields__
    return Computing(*(np.concatenate([getattr(one, name) for one in found]) for name in names))


def _until(inside: Pieces, start: Ints, named: Ints) -> Ints:
    """Until when from its start on a record is within spans of the request that it names."""
    last = np.flatnonzero(
        np.append((inside.start[1:] != inside.end[:-1]) | (np.diff(inside.label) != 0), True)
    )
    row = intervals.at(inside, start)
    run = np.minimum(np.searchsorted(last, row), len(last) - 1)
    mine = (row >= 0) & (inside.label[row] == named)
    return np.where(mine, inside.end[last[run]], start)


def _edges(pieces: Pieces) -> Ints:
    return intervals.distinct(np.concatenate([pieces.start, pieces.end]))
