"""Vectorised arithmetic on sets of half-open intervals [start, end) of integer ns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm.table import Array, Ints, Mask

NOTHING = -1
"""The label of time that nothing covers."""


@dataclass(frozen=True)
class Pieces:
    """Disjoint, non-empty, labelled intervals in ascending order."""

    start: Ints
    end: Ints
    label: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Array) -> Pieces:
        """The pieces that an ascending selection of rows names."""
        return Pieces(self.start[rows], self.end[rows], self.label[rows])

    def relabel(self, table: Array) -> Pieces:
        """The same pieces, every label replaced by its entry in `table`."""
        return Pieces(self.start, self.end, np.asarray(table)[self.label])

    def clip(self, start: int, end: int) -> Pieces:
        """What lies within [start, end)."""
        if not len(self):
            return self
        first = int(np.searchsorted(self.end, start, "right"))
        last = max(int(np.searchsorted(self.start, end, "left")), first)
        starts = np.maximum(self.start[first:last], start)
        return Pieces(starts, np.minimum(self.end[first:last], end), self.label[first:last])

    def sums(self, labels: int) -> Ints:
        """The time of every label from 0 up to `labels` - 1, ns."""
        return sum_by(self.label, self.end - self.start, labels)


EMPTY = Pieces(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


_NEVER = np.iinfo(np.int64).min


def sum_by(label: Array, weight: Array, labels: int) -> Ints:
    """Exact integer sums of `weight` for every label; negative labels are left out."""
    sums = np.zeros(labels, np.int64)
    seen = label >= 0
    if not seen.all():
        label, weight = label[seen], weight[seen]
    np.add.at(sums, label, weight)
    return sums


def union(start: Array, end: Array) -> tuple[Ints, Ints]:
    """The union as disjoint, ascending intervals that do not touch."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY.start, EMPTY.end
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.flatnonzero(start[1:] > reach[:-1])
    return start[np.append(0, opens + 1)], reach[np.append(opens, len(start) - 1)]


def length(start: Array, end: Array) -> int:
    """The length of the union, ns."""
    begins, ends = union(start, end)
    return int((ends - begins).sum())


def lengths_by(group: Array, start: Array, end: Array, groups: int) -> Ints:
    """The length of the union of every group's own intervals, ns."""
    order = np.lexsort([start, group])
    group, start, end = group[order], start[order], end[order]
    floor = reach_before(group, end)
    return sum_by(group, np.maximum(end - np.maximum(start, floor), 0), groups)


def reach_before(group: Array, end: Array) -> Ints:
    """How far the earlier intervals of the same group reach; the groups lie one after another.

    A running maximum within groups, by doubling the distance that is looked back.
    """
    reach = end.astype(np.int64)
    distance = 1
    while distance < len(end):
        earlier = np.where(group[distance:] == group[:-distance], reach[:-distance], _NEVER)
        if not np.any(earlier > reach[distance:]):
            break
        reach[distance:] = np.maximum(reach[distance:], earlier)
        distance *= 2
    floor = np.full(len(end), _NEVER, np.int64)
    floor[1:] = np.where(group[1:] == group[:-1], reach[:-1], _NEVER)
    return floor


def runs(values: Array) -> list[slice]:
    """The slices of equal neighbours."""
    if not len(values):
        return []
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *cuts.tolist(), len(values)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def complement(start: Array, end: Array, low: int, high: int) -> tuple[Ints, Ints]:
    """What disjoint, ascending intervals leave free of [low, high)."""
    starts = np.concatenate([[low], end]).astype(np.int64)
    ends = np.concatenate([start, [high]]).astype(np.int64)
    starts, ends = np.maximum(starts, low), np.minimum(ends, high)
    keep = ends > starts
    return starts[keep], ends[keep]


def touching(start: Array, end: Array, others: tuple[Ints, Ints]) -> Mask:
    """Which intervals overlap any of some disjoint, ascending others."""
    begins, ends = others
    if not len(begins):
        return np.zeros(len(start), bool)
    after = np.searchsorted(ends, start, "right")
    inside = after < len(begins)
    return np.asarray(inside & (begins[np.minimum(after, len(begins) - 1)] < end))


def meeting(pieces: Pieces, others: tuple[Ints, Ints]) -> Pieces:
    """Those of some pieces that overlap any of far fewer disjoint, ascending intervals.

    The same as by `touching`, but the few are looked for among the many.
    """
    begins, ends = others
    first = np.searchsorted(pieces.end, begins, "right")
    last = np.maximum(np.searchsorted(pieces.start, ends, "left"), first)
    # Two intervals may meet one piece, which is then taken by the former.
    first[1:] = np.maximum(first[1:], last[:-1])
    edges = np.column_stack([first, last]).reshape(-1)
    lengths = np.diff(edges, prepend=0, append=len(pieces))
    return pieces.take(np.flatnonzero(np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)))


def earliest_wins(start: Array, end: Array, ties: Array | None = None) -> Pieces:
    """Who covers each instant first: of those that do, the one with the earliest start.

    Of equal starts the longer wins, then the lower of `ties`. Labels are row numbers.
    """
    rows = np.flatnonzero(end > start)
    start, end = start[rows], end[rows]
    keys = [-end, start] if ties is None else [ties[rows], -end, start]
    order = np.lexsort(keys)
    start, end, rows = start[order], end[order], rows[order]
    floor = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]) if len(end) else end
    begins = np.maximum(start, floor)
    keep = end > begins
    return Pieces(begins[keep], end[keep], rows[keep])


def innermost_wins(start: Array, end: Array) -> Pieces:
    """Who covers each instant last: of those that do, the one with the latest start.

    Of equal starts the shorter wins, then the later row. Labels are row numbers.
    """
    rows = np.flatnonzero(end > start)
    order = rows[np.lexsort([-end[rows], start[rows]])]
    start, end = start[order], end[order]
    if not len(order):
        return EMPTY
    if np.all(end[:-1] <= start[1:]):
        return Pieces(start, end, order)
    around = _by_depth(start, end)
    nested = _contained(end, around)
    pieces = _nested(start, end, around) if nested else _crossing(start, end)
    return pieces.relabel(order)


def parents(start: Array, end: Array) -> Ints:
    """The row of the innermost other interval that contains each, -1 where there is none.

    Sorted by start, longer first. Intervals that cross contain neither the other.
    """
    around = _by_depth(start, end)
    return around if _contained(end, around) else _reaching(end, strict=False)


def _contained(end: Array, around: Ints) -> bool:
    """Whether every interval ends within the one said to be around it."""
    inner = np.flatnonzero(around >= 0)
    return bool(np.all(end[inner] <= end[around[inner]]))


def _by_depth(start: Array, end: Array) -> Ints:
    """The parents of sorted intervals, right if they are properly nested."""
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, "right")
    found = np.full(len(start), NOTHING, np.int64)
    above = np.empty(0, np.int64)
    for level in range(int(depth.max(initial=-1)) + 1):
        here = np.flatnonzero(depth == level)
        if level and len(above):
            found[here] = above[np.maximum(np.searchsorted(above, here) - 1, 0)]
        above = here
    return found


def _reaching(end: Array, *, strict: bool) -> Ints:
    """The nearest earlier row that ends later than each (or at the same time, unless strict).

    Pointers jump: what lies between a row and its pointer never reaches further than the row, so
    following the pointer of a pointer skips nothing.
    """
    pointer = np.arange(-1, len(end) - 1)
    rows = np.flatnonzero(pointer >= 0)
    while len(rows):
        short = end[pointer[rows]] <= end[rows] if strict else end[pointer[rows]] < end[rows]
        rows = rows[short]
        pointer[rows] = pointer[pointer[rows]]
        rows = rows[pointer[rows] >= 0]
    return pointer


def _nested(start: Array, end: Array, around: Ints) -> Pieces:
    """The innermost of properly nested intervals, cut at every edge."""
    closing = np.lexsort([-np.arange(len(end)), end])
    times = np.concatenate([end[closing], start])
    label = np.concatenate([around[closing], np.arange(len(start))])
    opens = np.concatenate([np.zeros(len(end), np.int64), np.ones(len(start), np.int64)])
    order = np.lexsort([opens, times])
    times, label = times[order], label[order]
    keep = (times[1:] > times[:-1]) & (label[:-1] >= 0)
    return Pieces(times[:-1][keep], times[1:][keep], label[:-1][keep])


def _crossing(start: Array, end: Array) -> Pieces:
    """The same for intervals that cross: from the last start back to one that is still open."""
    edges = distinct(np.concatenate([start, end]))
    times = edges[:-1]
    label = np.searchsorted(start, times, "right") - 1
    before = _reaching(end, strict=True)
    closed = np.flatnonzero(end[label] <= times)
    while len(closed):
        label[closed] = before[label[closed]]
        closed = closed[label[closed] >= 0]
        closed = closed[end[label[closed]] <= times[closed]]
    keep = label >= 0
    return join(Pieces(times[keep], edges[1:][keep], label[keep]))


def distinct(values: Array) -> Ints:
    """The distinct values in ascending order (sorting beats NumPy's hashing for long columns)."""
    ordered = np.sort(values)
    keep = np.ones(len(ordered), bool)
    keep[1:] = ordered[1:] != ordered[:-1]
    return ordered[keep]


def join(pieces: Pieces) -> Pieces:
    """Neighbours that touch and have one label, as one piece."""
    if len(pieces) < 2:
        return pieces
    same = (pieces.start[1:] == pieces.end[:-1]) & (pieces.label[1:] == pieces.label[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    last = np.concatenate([first[1:] - 1, [len(pieces) - 1]])
    return Pieces(pieces.start[first], pieces.end[last], pieces.label[first])


def at(pieces: Pieces, times: Array) -> Ints:
    """The row of the piece that covers each time, -1 where none does."""
    row = np.searchsorted(pieces.start, times, "right") - 1
    if not len(pieces):
        return np.asarray(row, np.int64)
    covered = (row >= 0) & (pieces.end[np.maximum(row, 0)] > times)
    return np.where(covered, row, NOTHING)


def cut(pieces: Pieces, edges: Array) -> Pieces:
    """The same pieces, cut at these times as well."""
    inside = edges[at(pieces, edges) >= 0]
    times = distinct(np.concatenate([pieces.start, inside]))
    row = np.searchsorted(pieces.start, times, "right") - 1
    following = np.concatenate([times[1:], pieces.end[-1:]])
    return Pieces(times, np.minimum(following, pieces.end[row]), pieces.label[row])


def overlay(layers: Sequence[Pieces], low: int, high: int) -> tuple[Pieces, Ints]:
    """The first of several layers that covers each instant of [low, high).

    Returns pieces that cover the whole of [low, high), labelled as in their layer, and the layer
    each comes from; `NOTHING` twice where no layer covers.
    """
    if high <= low:
        return EMPTY, EMPTY.label
    # Each layer's edges ascend, so sorting them all is a merge; where an odd number of a layer's
    # edges has passed, one of its pieces is open.
    edges = [np.array([low, high], np.int64), *map(_edges, layers)]
    owner = np.repeat(np.arange(len(edges), dtype=np.int32), [len(own) for own in edges])
    times = np.concatenate(edges)
    np.clip(times, low, high, out=times)
    order = np.argsort(times, kind="stable")
    times, owner = times[order], owner[order]
    last = np.flatnonzero(times[1:] != times[:-1])
    label = np.full(len(last), NOTHING, np.int64)
    source = np.full(len(last), NOTHING, np.int64)
    for number, layer in enumerate(layers):
        if not len(layer):
            continue
        passed = np.cumsum(owner == number + 1, dtype=np.int32)[last]
        hit = np.flatnonzero((source < 0) & (passed & 1 == 1))
        label[hit], source[hit] = layer.label[passed[hit] // 2], number
    return Pieces(times[last], times[last + 1], label), source


def _edges(pieces: Pieces) -> Ints:
    """The start and the end of every piece, one after another, which is in ascending order."""
    return np.column_stack([pieces.start, pieces.end]).reshape(-1)


def covered(pieces: Pieces, start: Array, end: Array) -> Ints:
    """How much of each of some intervals, which may overlap, lies in any of some pieces, ns."""
    found = np.zeros(len(start), np.int64)
    if not len(start):
        return found
    pieces = _near(pieces, int(np.min(start)), int(np.max(end)))
    if not len(pieces):
        return found
    after = np.searchsorted(pieces.end, start, "right")
    row = np.minimum(after, len(pieces) - 1)
    found = np.minimum(end, pieces.end[row]) - np.maximum(start, pieces.start[row])
    found = np.maximum(found, 0)
    # Most meet one piece at most; a second search only tells of those that go on beyond it.
    more = np.flatnonzero((end > pieces.end[row]) & (after < len(pieces)))
    if len(more):
        until = Measure(pieces).until
        found[more] = until(end[more]) - until(start[more])
    return found


def within(pieces: Pieces, gaps: tuple[Ints, Ints]) -> Pieces:
    """The parts of some pieces that lie within disjoint, ascending intervals."""
    begins, ends = (edge[gaps[1] > gaps[0]] for edge in gaps)
    first = np.searchsorted(ends, pieces.start, "right")
    count = np.maximum(np.searchsorted(begins, pieces.end, "left") - first, 0)
    row = np.repeat(np.arange(len(pieces)), count)
    gap = np.arange(len(row)) + np.repeat(first - np.cumsum(count) + count, count)
    start, end = np.maximum(pieces.start[row], begins[gap]), np.minimum(pieces.end[row], ends[gap])
    return Pieces(start, end, pieces.label[row])


def without(spans: tuple[Ints, Ints], others: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """What of some intervals lies in none of some others, disjoint and ascending."""
    start, end = union(*spans)
    if not len(start):
        return start, end
    free = complement(*union(*others), int(start[0]), int(end[-1]))
    found = within(Pieces(start, end, np.zeros(len(start), np.int64)), free)
    return found.start, found.end


def common(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> int:
    """How long two sets of disjoint, ascending intervals run together, ns."""
    pieces = Pieces(*other, np.zeros(len(other[0]), np.int64))
    return int(covered(pieces, *one).sum())


def sums_in(pieces: Pieces, start: Array, end: Array, labels: int) -> Ints:
    """The time of every label within each of some windows, which may overlap.

    Returns an array of shape (windows, labels), ns; negative labels are left out.
    """
    sums = np.zeros((len(start), labels), np.int64)
    if not len(start):
        return sums
    pieces = _near(pieces, int(np.min(start)), int(np.max(end)))
    for label in np.flatnonzero(np.bincount(pieces.label[pieces.label >= 0])).tolist():
        mine = pieces.label == label
        measure = Measure(pieces if mine.all() else pieces.take(np.flatnonzero(mine)))
        sums[:, label] = measure.until(end) - measure.until(start)
    return sums


class Measure:
    """How much of some disjoint, ascending pieces lies before any time."""

    def __init__(self, pieces: Pieces) -> None:
        self._start, self._end = pieces.start, pieces.end
        self._before = np.concatenate([[0], np.cumsum(pieces.end - pieces.start)])

    def until(self, times: Array) -> Ints:
        """The length of the pieces before each time, ns."""
        if not len(self._start):
            return np.zeros(len(times), np.int64)
        row = np.searchsorted(self._start, times, "right")
        # What the last piece begun has left to go on is not there yet.
        ahead = self._end[row - 1] - times
        return np.where(row > 0, self._before[row] - np.maximum(ahead, 0), 0)


def _near(pieces: Pieces, low: int, high: int) -> Pieces:
    """Those of some disjoint, ascending pieces that may lie in [low, high]."""
    first = int(np.searchsorted(pieces.end, low, "left"))
    last = max(int(np.searchsorted(pieces.start, high, "right")), first)
    return Pieces(pieces.start[first:last], pieces.end[first:last], pieces.label[first:last])
