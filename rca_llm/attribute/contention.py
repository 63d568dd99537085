"""When device work of a process waits, asked for and free to run, for kernels of another process.

Processes take turns on a device, unless MPS lets them run together. Work that was asked for, that
follows nothing of its own process and does not begin while kernels of a neighbour run waits for
those, and for the device to change hands on both sides. That is nothing that the host does: a part
of its own, `scheduling.queue`, tells it. What a kernel is stretched by that had begun nobody
records; it stays computing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import Links
from rca_llm.attribute.neighbours import Place, SharedDevice, kernels_of, rows_at
from rca_llm.attribute.ranks import Rank
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Ints, known
from rca_llm.trace import Timeline

USUAL_NS = 10_000
"""How long a launch takes to reach a device that is free, where no launch of a trace shows it."""


def contended(
    timeline: Timeline, links: Links, rank: Rank, shared: Sequence[SharedDevice]
) -> Pieces:
    """The time in which work of a rank waited for neighbours, labelled with their process ids.

    Disjoint; empty where nothing tells when work was asked for.
    """
    mine = [one for one in shared if one.place[0] in rank.processes]
    mine = [one for one in mine if one.by[0] not in rank.processes]
    found = [
        _at_place(timeline, links, place, [one.by for one in mine if one.place == place])
        for place in sorted({one.place for one in mine})
    ]
    every = [own for own in found if len(own)]
    if not every:
        return intervals.EMPTY
    pieces, _ = intervals.overlay(every, rank.start, rank.end)
    return intervals.join(pieces.take(np.flatnonzero(pieces.label >= 0)))


def _at_place(timeline: Timeline, links: Links, place: Place, others: Sequence[Place]) -> Pieces:
    """The waits of the work of a process on a device of it, by the process that had the device."""
    gpu = timeline["gpu"]
    rows = np.flatnonzero(rows_at(gpu, place))
    rows = rows[np.argsort(gpu["start"][rows], kind="stable")]
    start = gpu["start"][rows]
    asked, free = _asked(timeline, links, rows), _free(start, gpu["end"][rows])
    theirs = [kernels_of(gpu, other) for other in others]
    every = intervals.union(*(np.concatenate([own[n] for own in theirs]) for n in (0, 1)))
    usual = _usual(start, asked, free, every)
    # Work that follows other work at once needs no launch to arrive; the rest would have needed it.
    begin = np.where(known(asked), np.maximum(asked + usual, free), start)
    waits = (start - begin > usual) & intervals.touching(begin, start, every)
    spans = intervals.union(begin[waits], start[waits])
    return Pieces(*spans, _owners(spans, theirs, others))


def _asked(timeline: Timeline, links: Links, rows: Ints) -> Ints:
    """When work was handed to the device: the end of its call, else as it was queued."""
    queued = timeline["gpu"]["queued"][rows]
    called = links.of_api(timeline["api"]["end"], UNKNOWN)[rows]
    return np.asarray(np.where(known(called), called, queued), np.int64)


def _free(start: Ints, end: Ints) -> Ints:
    """Since when the own process leaves the device idle before each of its work, by start.

    Work that begins while other own work runs has waited for nobody else: its own start.
    """
    if not len(end):
        return end
    before = np.append(start[:1], np.maximum.accumulate(end)[:-1])
    return np.asarray(np.minimum(before, start), np.int64)


def _usual(start: Ints, asked: Ints, free: Ints, theirs: tuple[Ints, Ints]) -> int:
    """How long launches take to begin on a device that nobody uses: the median, ns."""
    alone = known(asked) & (asked >= free) & (start > asked)
    alone &= ~intervals.touching(np.where(alone, asked, start), start, theirs)
    return round(float(np.median((start - asked)[alone]))) if alone.any() else USUAL_NS


def _owners(
    spans: tuple[Ints, Ints], theirs: Sequence[tuple[Ints, Ints]], others: Sequence[Place]
) -> Ints:
    """Who had the device for most of each wait, a process id."""
    nothing = [np.zeros(len(own[0]), np.int64) for own in theirs]
    spent = [
        intervals.sums_in(Pieces(*own, label), *spans, 1)[:, 0]
        for own, label in zip(theirs, nothing, strict=True)
    ]
    process = np.array([process for process, _ in others], np.int64)
    return np.asarray(process[np.argmax(np.stack(spent), axis=0)], np.int64)
