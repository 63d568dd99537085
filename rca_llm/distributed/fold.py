"""Folding: a partition with few pieces that has the same sums between given cuts."""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.partition import Segments
from rca_llm.intervals import Pieces
from rca_llm.table import Ints


def fold(segments: Segments, cuts: Ints) -> Segments:
    """One piece for each part and step between two cuts, in the order of the parts.

    Where a piece lies between two cuts is lost, how long each part lasts there is not: sums over
    any window that begins and ends at cuts are exact.
    """
    if not len(segments):
        return segments
    whole = Pieces(segments.start, segments.end, np.arange(len(segments)))
    pieces = intervals.cut(whole, intervals.distinct(cuts))
    region = np.searchsorted(cuts, pieces.start, "right")
    step, part = segments.step[pieces.label], segments.part[pieces.label]
    order = np.lexsort([part, step, region])
    key = np.stack([region, step, part])[:, order]
    first = np.flatnonzero(np.any(np.diff(key, axis=1, prepend=key[:, :1] - 1) != 0, axis=0))
    lasting = np.add.reduceat((pieces.end - pieces.start)[order], first)
    end = segments.start[0] + np.cumsum(lasting)
    nobody = np.full(len(first), -1, np.int64)
    return Segments(end - lasting, end, key[2, first], key[1, first], nobody)
