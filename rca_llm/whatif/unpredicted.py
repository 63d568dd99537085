"""Which parts of requests a replay cannot change, or leaves as measured where they would change."""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.life import Life
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.intervals import Pieces
from rca_llm.table import Ints
from rca_llm.whatif.change import Change
from rca_llm.whatif.graph import Graph
from rca_llm.whatif.model import Model
from rca_llm.whatif.requests import Requests

HELD = 0.5
"""A replay that holds less of a part's time than this does not tell what becomes of it."""


def unpredicted(found: Model, change: Change) -> tuple[list[str], bool]:
    """The changed parts whose time the replay does not hold, and whether it holds no other.

    Requests are charged with what other threads than the launching one did for them, which the
    graph does not have. Only parts that finished requests are charged with count.
    """
    lost: list[str] = []
    charged = 0
    parts: list[int] = np.flatnonzero(change.scale != 1).tolist()
    for part in parts:
        sums = [_held(found, number, part) for number in range(len(found.requests))]
        total, held = sum(total for total, _ in sums), sum(held for _, held in sums)
        charged += total > 0
        if held < HELD * total:
            lost.append(PARTS[part])
    return lost, 0 < charged == len(lost)


def kept(found: Model) -> dict[str, int]:
    """How long finished requests wait in queues that a replay leaves as measured, ns, by part.

    A request that steps tell of waits for steps of their new length. Others wait for each other in
    a queue of the program's own (a semaphore, a full pool), of which nothing tells how it works, or
    for another process on the device.
    """
    ns = sum(_queued(found, own, number) for number, own in enumerate(found.requests))
    return {PARTS[_QUEUE]: ns} if ns else {}


_QUEUE = CODE["scheduling.queue"]


def _queued(found: Model, own: Requests, number: int) -> int:
    """The part of it in the requests of a rank."""
    steps = len(found.job.ranks[number][1].steps) > 0
    rows: list[tuple[int, bool]] = [*zip(own.place.tolist(), own.alone.tolist(), strict=True)]
    ns = 0
    for place, alone in rows:
        life = found.lives[place]
        waited = int(life.totals[_QUEUE])
        if steps and not alone:
            beside = life.contended
            waited = min(waited, int((beside.end - beside.start).sum()))
        ns += waited
    return ns


def _held(found: Model, number: int, part: int) -> tuple[int, int]:
    """The time of a part in the requests of a rank, and what of it the replay holds, ns.

    What is outside of the engine's work for a request is held by the request itself.
    """
    own = found.requests[number]
    places: list[int] = own.place.tolist()
    total = sum(int(found.lives[place].totals[part]) for place in places)
    if not total:
        return 0, 0
    start, end = _within(found, own, part)
    does = _does(found.graph, part)
    return total, total - int((end - start - intervals.covered(does, start, end)).sum())


def _within(found: Model, own: Requests, part: int) -> tuple[Ints, Ints]:
    """When requests were charged with a part while the engine worked for them; as in the graph."""
    starts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    places: list[int] = own.place.tolist()
    base = found.graph.base
    for row, place in enumerate(places):
        pieces = _of_its_own(found.lives[place], part)
        at, last = int(own.at[row]) + base, int(own.last[row]) + base
        mine = pieces.clip(at, max(at, last))
        starts.append(mine.start - base)
        ends.append(mine.end - base)
    return np.concatenate(starts), np.concatenate(ends)


def _of_its_own(life: Life, part: int) -> Pieces:
    """The pieces of a part that a life does not share: the graph was made of those of its rank."""
    told = life.stretches
    if told is None:
        return life.pieces.take(np.flatnonzero(life.pieces.label == part))
    rows = np.flatnonzero(told.part == part)
    return Pieces(told.start[rows], told.end[rows], told.part[rows])


def _does(graph: Graph, part: int) -> Pieces:
    """When any rank of the graph does what a part names, as others may wait for it."""
    rows = np.flatnonzero(graph.work.part == part)
    doing = [thread.take(np.flatnonzero(thread.label == part)) for thread in graph.threads]
    starts = [graph.work.start[rows], *(thread.start for thread in doing)]
    ends = [graph.work.end[rows], *(thread.end for thread in doing)]
    start, end = intervals.union(np.concatenate(starts), np.concatenate(ends))
    return Pieces(start, end, np.zeros(len(start), np.int64))
