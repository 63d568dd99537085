"""A request's time as stretches of what all requests of its rank see, which is kept once.

The requests of a batch share every instant of its steps. What differs is long: a queue, steps of
others, the time after the last token. So a life is told in a few stretches, each either as the
rank has it or of one part, and the pieces of the rank are looked up where they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.attribute.steps import NO_STEP
from rca_llm.intervals import Pieces
from rca_llm.table import NEVER, Ints, Mask

OTHER = CODE["scheduling.other"]


@dataclass(frozen=True)
class Shared:
    """What all requests of a rank see, without gaps: pieces of one part and one step.

    `edges` are those of the segments that the pieces were joined from.
    """

    pieces: Pieces
    step: Ints
    edges: Ints

    @cached_property
    def turns(self) -> Ints:
        """When the step changes, the begin included, ns."""
        new = np.ones(len(self.step), bool)
        new[1:] = self.step[1:] != self.step[:-1]
        return self.pieces.start[new]

    def next_edge(self, time: int, others: Ints) -> int:
        """The first edge from a time on, of the segments or of others; `NEVER` after the last."""
        found = np.append(self.edges[np.searchsorted(self.edges, time) :][:1], others)
        found = found[found >= time]
        return int(found.min(initial=NEVER))


def shared(pieces: Pieces, step: Ints) -> Shared:
    """What a rank's segments, labelled with their parts, show its requests.

    Where no segment is, time is unexplained.
    """
    if np.any(pieces.start[1:] != pieces.end[:-1]):
        rows = Pieces(pieces.start, pieces.end, np.arange(len(pieces)))
        whole, _ = intervals.overlay([rows], int(pieces.start[0]), int(pieces.end[-1]))
        part = np.append(pieces.label, OTHER)[whole.label]
        step = np.append(step, NO_STEP)[whole.label]
        pieces = Pieces(whole.start, whole.end, part)
    return Shared(*_joined(pieces, step), np.append(pieces.start, pieces.end[-1:]))


@dataclass(frozen=True)
class Stretches:
    """A life without gaps: disjoint, ascending stretches, each of one part.

    Where `part` is `NO_PART` a stretch is as the rank has it, and `step` holds for its begin only.
    """

    shared: Shared
    start: Ints
    end: Ints
    part: Ints
    step: Ints

    def __len__(self) -> int:
        return len(self.start)

    def cut(self, times: Ints) -> Stretches:
        """The same stretches, cut at these times as well."""
        if not len(self):
            return self
        inside = times[(times > self.start[0]) & (times < self.end[-1])]
        start = intervals.distinct(np.concatenate([self.start, inside]))
        row = np.searchsorted(self.start, start, "right") - 1
        end = np.append(start[1:], self.end[-1:])
        return Stretches(self.shared, start, end, self.part[row], self.step[row])

    def after(self, start: int, end: int, part: int) -> Stretches:
        """The same stretches with [start, end) of a part in front, which has no step."""
        if end <= start:
            return self
        columns = (start, self.start), (end, self.end), (part, self.part), (NO_STEP, self.step)
        return Stretches(self.shared, *(np.append([first], column) for first, column in columns))

    def told(self, told: Pieces, over: Sequence[int] | None = None) -> Stretches:
        """Give time the parts that others tell, where its own is among `over`; None: everywhere."""
        if not len(told) or not len(self):
            return self
        found = self.cut(intervals.distinct(np.concatenate([told.start, told.end])))
        if over is not None:
            found = found.opened(_told_at(told, found.start) != NO_PART)
        part = _told_at(told, found.start)
        known = (part != NO_PART) & (True if over is None else among(found.part, [*over]))
        return replace(found, part=np.where(known, part, found.part))

    def opened(self, rows: Mask) -> Stretches:
        """Those of some stretches that are as the rank has them, as its pieces."""
        rows = rows & (self.part == NO_PART)
        if not rows.any():
            return self
        pieces = self.shared.pieces
        first = np.where(rows, np.searchsorted(pieces.start, self.start, "right") - 1, 0)
        last = np.where(rows, np.searchsorted(pieces.start, self.end, "left") - 1, 0)
        count = last - first + 1
        until = np.cumsum(count)
        place = until - count
        row: Ints = np.arange(int(until[-1])) + np.repeat(first - place, count)
        start, end = pieces.start[row], pieces.end[row]
        start[place], end[until - 1] = self.start, self.end
        part, step = pieces.label[row], self.shared.step[row]
        part[place[~rows]], step[place[~rows]] = self.part[~rows], self.step[~rows]
        return Stretches(self.shared, start, end, part, step)

    def joined(self) -> Stretches:
        """Neighbours that the rank tells, or of one part and one step, as one stretch."""
        if len(self) < 2:
            return self
        alike = (self.part[1:] == NO_PART) | (self.step[1:] == self.step[:-1])
        first, last = _runs((self.part[1:] == self.part[:-1]) & alike)
        part, step = self.part[first], self.step[first]
        return Stretches(self.shared, self.start[first], self.end[last], part, step)

    def pieces(self) -> tuple[Pieces, Ints]:
        """The pieces, each of one part, its label, and one step; and the step of each."""
        whole = self.opened(np.ones(len(self), bool))
        return _joined(Pieces(whole.start, whole.end, whole.part), whole.step)


def between(shared: Shared, begin: int, end: int, times: Ints) -> Stretches:
    """The stretches of [begin, end), cut at every change of the step and at these times.

    What lies beyond the segments of the rank is unexplained.
    """
    pieces, turns = shared.pieces, shared.turns
    edges = [np.array([begin, end], np.int64), times, pieces.start[:1], pieces.end[-1:]]
    edges.append(turns[np.searchsorted(turns, begin) : np.searchsorted(turns, end)])
    start = intervals.distinct(np.clip(np.concatenate(edges), begin, max(begin, end)))
    start, stop = start[:-1], start[1:]
    row = np.searchsorted(pieces.start, start, "right") - 1
    seen = (row >= 0) & (start < pieces.end[-1] if len(pieces) else False)
    step = np.full(len(start), NO_STEP, np.int64)
    step[seen] = shared.step[row[seen]]
    return Stretches(shared, start, stop, np.where(seen, NO_PART, OTHER), step)


def _told_at(told: Pieces, times: Ints) -> Ints:
    """The part that is told of each time, `NO_PART` where none is."""
    return np.append(told.label, NO_PART)[intervals.at(told, times)]


def _joined(pieces: Pieces, step: Ints) -> tuple[Pieces, Ints]:
    """Neighbours of one part and one step as one piece, so that a life stays small."""
    same = (pieces.label[1:] == pieces.label[:-1]) & (step[1:] == step[:-1])
    if not same.any():
        return pieces, step
    first, last = _runs(same)
    return Pieces(pieces.start[first], pieces.end[last], pieces.label[first]), step[first]


def _runs(same: Mask) -> tuple[Ints, Ints]:
    """The first and last row of every run, from whether each row is like the one before it."""
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    return first, np.append(first[1:] - 1, len(same))
