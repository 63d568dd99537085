"""Lanes of a timeline in levels of detail, small enough for a page and honest at every zoom.

A lane is a row of disjoint, labelled intervals. Its finest level holds at most `cap` pieces: what
is shorter than the level's resolution is joined with its neighbours into one piece, which carries
the label that holds most of its time, the share of it that was busy and how many pieces it stands
for. Longer pieces are never touched, and the busy time of a lane is the same at every level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca_llm.intervals import Pieces
from rca_llm.table import Array, Ints

FACTOR = 4
"""How many times fewer pieces each level has than the one before."""

FLOOR = 250
"""Below so many pieces no coarser level is worth its bytes."""


class Labels:
    """The distinct labels of all lanes: a text and the kind of work it belongs to."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], int] = {}

    def code(self, text: str, kind: str) -> int:
        """The number of a label, new if need be."""
        return self._codes.setdefault((text, kind), len(self._codes))

    def rows(self) -> list[tuple[str, str]]:
        """All labels in the order of their numbers."""
        return list(self._codes)


@dataclass(frozen=True)
class Level:
    """The pieces of a lane at one resolution: int64 ns, `busy` the covered ns of each piece."""

    start: Ints
    end: Ints
    label: Ints
    busy: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.start)

    def packed(self, origin: int) -> dict[str, list[Any]]:
        """Columns for the page: gap to the end before, duration, label, busy percent, count.

        The last two are left out where every piece is whole.
        """
        before = np.concatenate([[origin], self.end[:-1]])
        length = self.end - self.start
        columns = {"gap": self.start - before, "length": length, "label": self.label}
        if bool(np.any(self.count > 1)):
            percent = np.rint(self.busy * 100 / np.maximum(length, 1)).astype(np.int64)
            columns |= {"busy": percent, "count": self.count}
        return {name: values.tolist() for name, values in columns.items()}


@dataclass(frozen=True)
class Lane:
    """A named lane whose pieces are labelled with codes of `Labels`."""

    name: str
    about: str
    pieces: Pieces
    rank: int | None = None

    def packed(self, low: int, high: int, cap: int) -> dict[str, Any]:
        """The lane between two instants with its levels, finest first; times relative to `low`."""
        levels = levels_of(self.pieces.clip(low, high), low, high, cap)
        packed = [level.packed(low) for level in levels]
        return {"name": self.name, "about": self.about, "rank": self.rank, "levels": packed}


def levels_of(pieces: Pieces, low: int, high: int, cap: int) -> list[Level]:
    """A lane's levels, finest first; every one covers the same busy time."""
    length = pieces.end - pieces.start
    level = Level(pieces.start, pieces.end, pieces.label, length, np.ones(len(pieces), np.int64))
    levels = [_coarser(level, low, high, cap)]
    while len(levels[-1]) > FLOOR * 2:
        levels.append(_coarser(levels[-1], low, high, max(len(levels[-1]) // FACTOR, FLOOR)))
    return levels


def _coarser(level: Level, low: int, high: int, cap: int) -> Level:
    """At most about `cap` pieces: the short ones joined within the cells of a grid."""
    if len(level) <= cap:
        return level
    cell = max((high - low) * 2 // cap, 1)
    short = level.end - level.start < cell
    at = np.where(short, (level.start - low) // cell, -1)
    opens = np.concatenate([[True], (at[1:] != at[:-1]) | ~short[1:]])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:] - 1, [len(level) - 1]])
    run = np.cumsum(opens) - 1
    return Level(
        level.start[first],
        level.end[last],
        _heaviest(run, level.label, level.busy),
        np.add.reduceat(level.busy, first),
        np.add.reduceat(level.count, first),
    )


def _heaviest(run: Ints, label: Ints, weight: Ints) -> Ints:
    """The label that holds most weight in each run of pieces."""
    order = np.lexsort([label, run])
    run, label, weight = run[order], label[order], weight[order]
    opens = np.concatenate([[True], (run[1:] != run[:-1]) | (label[1:] != label[:-1])])
    first = np.flatnonzero(opens)
    sums = np.add.reduceat(weight, first)
    heaviest_last = np.lexsort([sums, run[first]])
    runs = run[first][heaviest_last]
    ends = np.flatnonzero(np.concatenate([runs[1:] != runs[:-1], [True]]))
    return np.asarray(label[first][heaviest_last][ends])


def pack_labels(labels: Labels, kinds: Sequence[str]) -> list[tuple[str, int]]:
    """The labels as (text, index into `kinds`)."""
    index = {kind: number for number, kind in enumerate(kinds)}
    return [(text, index[kind]) for text, kind in labels.rows()]


def in_order(start: Array, end: Array, label: Array) -> Pieces:
    """Intervals as disjoint pieces: sorted, the empty ones and what overlaps the one before cut."""
    order = np.argsort(start, kind="stable")
    start, end, label = start[order], end[order], label[order]
    if len(start):
        start = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
    keep = end > start
    return Pieces(start[keep], end[keep], label[keep])
