"""How much of every life is charged to some parts, from sums over what the lives share.

The requests of a batch share every piece of its steps, so the time of some parts is summed once
over the pieces that a rank shows its requests, and a stretch of a life is two places in that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.life import Life
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import NO_PART
from rca_llm.attribute.stretches import Shared
from rca_llm.intervals import Measure, Pieces
from rca_llm.table import Ints

Charged = tuple[int, int, int, int]
"""Of a life (an index): the time charged, ns, and the first and last instant of its pieces."""


@dataclass(frozen=True)
class Population:
    """The stretches of many lives, one after another; `owner` is the life of each (an index)."""

    lives: Sequence[Life]

    @cached_property
    def owner(self) -> Ints:
        """The life of every stretch (an index)."""
        return np.repeat(np.arange(len(self.lives)), [len(start) for start, _, _ in self._columns])

    @cached_property
    def _columns(self) -> list[tuple[Ints, Ints, Ints]]:
        return [_told(life) for life in self.lives]

    @cached_property
    def stretches(self) -> tuple[Ints, Ints, Ints]:
        """Start, end and part of every stretch, `NO_PART` where it is as the rank has it."""
        empty = intervals.EMPTY.label
        start, end, part = (
            np.concatenate([own[n] for own in self._columns] or [empty]) for n in range(3)
        )
        return start, end, part

    @cached_property
    def ranks(self) -> list[tuple[Shared, Ints]]:
        """What the ranks show their requests, each with the stretches that are as it has them."""
        told = [None if life.stretches is None else life.stretches.shared for life in self.lives]
        number = {id(one): place for place, one in enumerate(told) if one is not None}
        of_life = np.array([number.get(id(one), -1) for one in told], np.int64)
        own = np.where(self.stretches[2] == NO_PART, of_life[self.owner], -1)
        found = [(told[place], np.flatnonzero(own == place)) for place in number.values()]
        return [(one, rows) for one, rows in found if one is not None]

    def charged(self, wanted: Ints, within: Pieces | None) -> list[Charged]:
        """The lives with time of wanted parts (within pieces, where given), and how much."""
        start, end, part = self.stretches
        own = np.flatnonzero(among(part, wanted.tolist()))
        ns, first, last = np.zeros(len(start), np.int64), np.array(start), np.array(start)
        ns[own] = _common(within, start[own], end[own])
        for shared, rows in self.ranks:
            sums = _Sums(shared.pieces, wanted, within)
            low, high = sums.until(start[rows]), sums.until(end[rows])
            ns[rows] = high - low
            first[rows] = np.maximum(sums.begin_after(low), start[rows])
            last[rows] = np.maximum(sums.begin_before(high), start[rows])
        return self._by_life(ns, first, last)

    def _by_life(self, ns: Ints, first: Ints, last: Ints) -> list[Charged]:
        """The sums of lives that have any, with the edges of the pieces at some instants."""
        totals = intervals.sum_by(self.owner, ns, len(self.lives))
        rows = np.flatnonzero(ns)
        charged = np.flatnonzero(totals)
        one = rows[np.searchsorted(self.owner[rows], charged, "left")] if len(rows) else rows
        other = rows[np.searchsorted(self.owner[rows], charged, "right") - 1] if len(rows) else rows
        numbers: list[int] = charged.tolist()
        begins: list[int] = first[one].tolist()
        stops: list[int] = last[other].tolist()
        found: list[Charged] = []
        for number, begin, stop in zip(numbers, begins, stops, strict=True):
            pieces = self.lives[number].pieces
            row = int(np.searchsorted(pieces.start, begin, "right")) - 1
            until = int(np.searchsorted(pieces.start, stop, "right")) - 1
            edges = int(pieces.start[row]), int(pieces.end[until])
            found.append((number, int(totals[number]), *edges))
        return found


class _Sums:
    """The time of wanted parts before any instant, within some pieces where those are given."""

    def __init__(self, pieces: Pieces, wanted: Ints, within: Pieces | None) -> None:
        self._pieces = pieces
        self._mine = among(pieces.label, wanted.tolist())
        self._within = None if within is None else Measure(within)
        start, end = pieces.start, pieces.end
        lasting = np.zeros(len(pieces), np.int64)
        rows = np.flatnonzero(self._mine)
        lasting[rows] = _common(within, start[rows], end[rows])
        self._before = np.concatenate([[0], np.cumsum(lasting)])

    def _lasting(self, start: Ints, end: Ints) -> Ints:
        if self._within is None:
            return end - start
        return self._within.until(end) - self._within.until(start)

    def until(self, times: Ints) -> Ints:
        """The time before each instant within the pieces, ns."""
        row = np.searchsorted(self._pieces.start, times, "right") - 1
        inside = self._lasting(self._pieces.start[row], np.minimum(times, self._pieces.end[row]))
        return self._before[row] + np.where(self._mine[row], inside, 0)

    def begin_after(self, sums: Ints) -> Ints:
        """When the piece begins in which more time comes than each sum, if there is one."""
        row = np.searchsorted(self._before, sums, "right") - 1
        return self._pieces.start[np.minimum(row, len(self._pieces) - 1)]

    def begin_before(self, sums: Ints) -> Ints:
        """When the piece begins that fills each sum, if there is one."""
        row = np.searchsorted(self._before, sums, "left") - 1
        return self._pieces.start[np.maximum(row, 0)]


def _told(life: Life) -> tuple[Ints, Ints, Ints]:
    """The stretches of a life; without them its pieces."""
    found = life.stretches
    if found is None:
        return life.pieces.start, life.pieces.end, life.pieces.label
    return found.start, found.end, found.part


def _common(within: Pieces | None, start: Ints, end: Ints) -> Ints:
    return end - start if within is None else intervals.covered(within, start, end)
