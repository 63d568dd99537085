"""A thread's time outside of its system calls, in which what the scheduler counted is laid out."""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.intervals import Pieces
from rca_llm.table import Ints

Spans = tuple[Ints, Ints]
"""Starts and ends of disjoint, ascending intervals, ns."""

NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))


class Free:
    """A thread's time outside of its system calls, which runs on while they last.

    `spans` are disjoint and ascending.
    """

    def __init__(self, spans: Spans) -> None:
        self.start, self.end = spans
        self._before = np.concatenate([[0], np.cumsum(self.end - self.start)]).astype(np.int64)
        self._at = self.start - self._before[:-1]

    def of(self, time: Ints) -> Ints:
        """The free time at instants."""
        place = np.searchsorted(self.start, time, "right")
        inside = np.where(place > 0, np.append(self.end, 0)[place - 1] - time, 0)
        return time - self._before[place] + np.maximum(inside, 0)

    def placed(self, laid: Pieces) -> Pieces:
        """Pieces of free time as instants, cut where calls come in between."""
        start, end, label = laid.start, laid.end, laid.label
        begin = start + self._before[np.searchsorted(self._at, start, "right")]
        stop = end + self._before[np.searchsorted(self._at, end, "left")]
        pieces = Pieces(begin, stop, label)
        if not len(self.start) or not len(begin):
            return pieces
        pieces = intervals.cut(pieces, intervals.distinct(np.concatenate([self.start, self.end])))
        calls = Pieces(self.start, self.end, np.zeros(len(self.start), np.int64))
        return pieces.take(np.flatnonzero(intervals.at(calls, pieces.start) < 0))
