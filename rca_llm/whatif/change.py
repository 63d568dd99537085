"""What a replay changes: the durations of some parts, in some places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rca_llm import intervals
from rca_llm.attribute.parts import PARTS
from rca_llm.intervals import Pieces
from rca_llm.table import Array, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """What a replay changes: the time of some parts, by a factor each, where `within` says.

    `within` are starts and ends of disjoint, ascending intervals, ns; None: everywhere. `merged`
    says that device work which changes becomes part of other work: the pauses before it shrink with
    it.
    """

    factors: Mapping[str, float]
    within: tuple[Ints, Ints] | None = None
    merged: bool = False

    @property
    def scale(self) -> Floats:
        """The factor of every part."""
        return np.array([self.factors.get(part, 1.0) for part in PARTS])

    def changed(self, pieces: Pieces, base: int) -> tuple[Pieces, Floats]:
        """Those of some pieces that take another time, cut to where they do, and their factors.

        Times of the pieces are counted from `base`.
        """
        scale = self.scale
        found = pieces.take(np.flatnonzero((scale != 1)[pieces.label]))
        if self.within is not None:
            start, end = self.within
            found = intervals.within(found, (start - base, end - base))
        return found, scale[found.label]

    def inside(self, start: Array, end: Array, base: int = 0) -> Floats:
        """The fraction of some intervals that changes; of an instant, whether it does."""
        if self._pieces is None:
            return np.ones(len(start))
        begin, stop = start + base, end + base
        common = intervals.covered(self._pieces, begin, stop)
        found = common / np.maximum(end - start, 1)
        instants = np.flatnonzero(end <= start)
        found[instants] = intervals.at(self._pieces, begin[instants]) >= 0
        return np.asarray(found, np.float64)

    @cached_property
    def _pieces(self) -> Pieces | None:
        """Where the change is, as pieces."""
        if self.within is None:
            return None
        return Pieces(*self.within, np.zeros(len(self.within[0]), np.int64))

    def factor(self, part: Array, start: Array, end: Array, base: int = 0) -> Floats:
        """The factor of some intervals, each of one part."""
        scale = self.scale[part]
        found = np.ones(len(scale))
        rows = np.flatnonzero(scale != 1)  # what does not change needs no look at where it is
        found[rows] -= (1 - scale[rows]) * self.inside(start[rows], end[rows], base)
        return found
