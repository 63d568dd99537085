"""Steps of device work by the markers that the collector puts between launches.

A marker is a call of the driver made where the step of a thread changes. All calls of a process
share one counter, the correlation id, and device work carries the id of its launch: what has an id
between those of two markers was launched between them, whenever it ran. Which thread launched it is
not told. So its step is known where one step alone was under way in the process, perhaps in several
threads, and where of no thread the step was uncertain; elsewhere it stays unknown.
"""

from __future__ import annotations

import numpy as np

from rca_llm.intervals import reach_before
from rca_llm.table import UNKNOWN, Array, Ints, Mask, known

_STEP, _NOT_KNOWN, _RESET = 1, 2, 3
"""States of a marker (0: outside of all steps), as `MarkerState` in `probes/native/markers.h`."""

_IDS = 1 << 32
_EVER = int(np.iinfo(np.int64).max)
_SEQUENCES = 1 << 16
"""Of the numbers that a thread gives its markers."""

_Stretches = tuple[Ints, Ints, Ints]
"""From and to which id a step is under way, and which; -1 where that is uncertain."""


def steps_of(markers: Array, correlation: Ints, start: Ints) -> Ints:
    """The step of device work, by the correlation id of its launch and when it ran; else unknown.

    `markers` are rows of the collector. Ids may wrap around, as long as fewer than half of all ids
    lie between two records that follow each other in time.
    """
    found = np.full(len(correlation), UNKNOWN, np.int64)
    rows = np.flatnonzero(known(start) & known(correlation) & (correlation != 0))
    if not len(markers) or not len(rows):
        return found
    when = np.concatenate([markers["time"].astype(np.int64), start[rows]])
    ids = np.concatenate([markers["correlation"].astype(np.int64), correlation[rows]])
    place = _unwrapped(when, ids)
    first, step = _alone(_stretches(markers, place[: len(markers)]))
    found[rows] = step[np.searchsorted(first, place[len(markers) :], "right") - 1]
    return found


def repeated(correlation: Ints, node: Ints) -> Mask:
    """Nodes of graphs whose id cannot be that of their launch: a launch runs a node once.

    Looked at where one id follows another in the order of the records, and so in every replay.
    """
    found = np.zeros(len(node), bool)
    rows = np.flatnonzero(known(node))
    if not len(rows):
        return found
    ids, nodes = correlation[rows], node[rows]
    heads = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
    of_run = np.repeat(heads, np.diff(np.append(heads, len(rows))))
    again = (nodes == nodes[of_run]) & (np.arange(len(rows)) != of_run)
    order = heads[np.lexsort([nodes[heads], ids[heads]])]
    same = (ids[order][1:] == ids[order][:-1]) & (nodes[order][1:] == nodes[order][:-1])
    found[rows] = np.isin(ids, np.append(ids[again], ids[order][1:][same]))
    return found


def _unwrapped(when: Ints, ids: Ints) -> Ints:
    """Ids of 32 bits as numbers that go on where those begin anew."""
    order = np.argsort(when, kind="stable")
    jumps = np.diff(ids[order], prepend=ids[order[:1]])
    place = np.empty(len(ids), np.int64)
    place[order] = ids[order[0]] + np.cumsum((jumps + _IDS // 2) % _IDS - _IDS // 2)
    return place


def _stretches(markers: Array, place: Ints) -> _Stretches:
    """Where steps are under way, or may be, by the markers of each thread and by resets."""
    reset = markers["state"] == _RESET
    resets = np.sort(place[reset])
    order = np.lexsort([place[~reset], markers["thread"][~reset]])
    own, at = markers[~reset][order], place[~reset][order]
    follows = _follows(own)
    parts = [_of_threads(own, at, follows, resets), _lost_before(own, at, follows)]
    by_place = np.argsort(at)
    counts = markers["step"][reset][np.argsort(place[reset])].astype(np.int64).tolist()
    for begin, end, count in zip(resets, np.append(resets, _EVER)[1:], counts, strict=True):
        rows = by_place[(at[by_place] > begin) & (at[by_place] < end)]
        ends = _settled(own[rows], at[rows], follows[rows], count, int(begin), int(end))
        parts.append(_unsure([begin], [ends]))
    begin, end, step = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return begin[end > begin], end[end > begin], step[end > begin]


def _first(own: Array) -> Mask:
    """Which markers are the first of their thread; they lie in the order of threads and ids."""
    found: Mask = np.append(True, own["thread"][1:] != own["thread"][:-1])[: len(own)]
    return found


def _follows(own: Array) -> Mask:
    """Which markers come right after the one before of their thread, none between them lost.

    Numbers of threads are given anew, to threads that begin with their first marker.
    """
    number = own["sequence"].astype(np.int64)
    before, state = (np.append(column[-1:], column[:-1]) for column in (number, own["state"]))
    begins = number == 1
    found: Mask = begins & (_first(own) | (state == 0))
    found |= ~_first(own) & (number == (before + 1) % _SEQUENCES)
    return found


def _of_threads(own: Array, at: Ints, follows: Mask, resets: Ints) -> _Stretches:
    """What each marker says holds until the next of its thread, unless one between them is missing.

    `own` lie in the order of threads and ids. What a reset follows ends with it.
    """
    state, goes_on = own["state"], np.append(~_first(own)[1:], False)[: len(own)]
    end = np.where(goes_on, np.append(at[1:], _EVER)[: len(own)], _EVER)
    lost = goes_on & ~np.append(follows[1:], True)[: len(own)]
    until = np.append(resets, _EVER)[np.searchsorted(resets, at)]
    end = np.where(lost, end, np.minimum(end, until))
    step = np.where((state == _STEP) & ~lost, own["step"].astype(np.int64), -1)
    rows = np.flatnonzero(lost | (state == _STEP) | (state == _NOT_KNOWN))
    return at[rows], end[rows], step[rows]


def _lost_before(own: Array, at: Ints, follows: Mask) -> _Stretches:
    """All until the first marker of a thread, where others came before that one."""
    ends = at[_first(own) & ~follows]
    return _unsure([-_EVER] * len(ends), ends)


def _settled(own: Array, at: Ints, follows: Mask, count: int, begin: int, end: int) -> int:
    """Up to where after a reset it is uncertain which threads are in a step, `count` of them.

    `own` are the markers between it and the next reset, by id. Each of these threads is known from
    its next marker on, and the others were in none.
    """
    _, first = np.unique(own["thread"], return_index=True)
    entered_before = np.sort(first[(own["within"][first] != 0) & follows[first]])
    if not count:
        return begin
    return int(at[entered_before[count - 1]]) if count <= len(entered_before) else end


def _unsure(begin: Array | list[int], end: Array | list[int]) -> _Stretches:
    begins = np.asarray(begin, np.int64)
    return begins, np.asarray(end, np.int64), np.full(len(begins), -1, np.int64)


def _alone(stretches: _Stretches) -> tuple[Ints, Ints]:
    """From which ids on which step is under way and no other, ascending; `UNKNOWN` for no one."""
    begin, end, step = _joined(*stretches)
    at = np.concatenate([begin, end])
    order = np.argsort(at, kind="stable")
    under_way = np.cumsum(np.repeat([1, -1], len(begin))[order])
    sums = np.cumsum(np.concatenate([step, -step])[order])
    # Of several changes at one id the last one holds: it is the one that is found there.
    alone = np.where((under_way == 1) & (sums >= 0), sums, UNKNOWN)
    return np.append(-_EVER - 1, at[order]), np.append(UNKNOWN, alone)


def _joined(begin: Ints, end: Ints, step: Ints) -> _Stretches:
    """The stretches of each step, those that overlap or touch as one."""
    order = np.lexsort([begin, step])
    begin, end, step = begin[order], end[order], step[order]
    reach = reach_before(step, end)
    heads = np.flatnonzero(begin > reach)
    if not len(heads):
        return begin, end, step
    return begin[heads], np.maximum.reduceat(end, heads), step[heads]
