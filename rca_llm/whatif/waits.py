"""Where the launching thread of a rank waits: for the device, and for requests to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.codes import COPY_SYNC, SYNC
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import Pieces
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.whatif import hand_overs
from rca_llm.whatif.arrivals import Admission, admission
from rca_llm.whatif.work import NO_OP, Work


@dataclass(frozen=True)
class Waits:
    """Waits of launching threads, one row each: that of a rank, from `start` to `end`.

    `row` is the row of the work that is waited for. `sync` tells a synchronisation call from the
    end of a step, `hand_over` one that is made for a KV hand-over. Without a row the thread waits
    until `until`, a time that does not change; `text` before that is spent tokenising, ns.
    """

    rank: Ints
    start: Ints
    end: Ints
    row: Ints
    sync: Mask
    hand_over: Mask
    until: Ints
    text: Ints

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: Array) -> Waits:
        """A selection, in its order."""
        return Waits(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class Served:
    """The life of a request with the rank (an index) that it lives in and its admission."""

    life: Life
    rank: int | None
    admission: Admission | None


def served(job: Job, lives: Sequence[Life]) -> list[Served]:
    """What a graph and its replays need to know of every request of a job."""
    return [Served(life, rank_of(job, life), admission(life)) for life in lives]


def waits(job: Job, work: Work, threads: Sequence[Pieces], served: Sequence[Served]) -> Waits:
    """All waits by their end; of those that end at one time, synchronisations come first."""
    doing = [own.take(np.flatnonzero(own.label != CODE["scheduling.other"])) for own in threads]
    found = [_NONE, *_synchronisations(job, work), *_step_ends(job, work, doing)]
    found += _arrivals(job, served, doing)
    names = (field.name for field in fields(Waits))
    every = Waits(*(np.concatenate([getattr(own, name) for own in found]) for name in names))
    return every.take(np.lexsort([~every.sync, every.end]))


def _rows(
    rank: int,
    start: Ints,
    end: Ints,
    row: Ints | int = NO_OP,
    *,
    sync: bool = False,
    hand_over: Mask | bool = False,
    until: Ints | int = 0,
    text: Ints | int = 0,
) -> Waits:
    """Waits of one rank; a single value stands for a whole column."""
    columns = (rank, start, end, row, sync, hand_over, until, text)
    return Waits(*(np.broadcast_to(column, np.shape(start)) for column in columns))


_NONE = _rows(0, intervals.EMPTY.start, intervals.EMPTY.end)


def _synchronisations(job: Job, work: Work) -> Iterator[Waits]:
    """The calls in which the launching thread of a rank waits for the device."""
    for number, member in enumerate(job.ranks):
        recording, _ = member
        api, main = recording.timeline["api"], main_thread(member)
        calls = among(recording.calls, [SYNC, COPY_SYNC]) & (recording.host.api_thread == main)
        start, end = api["start"][calls], api["end"][calls]
        if not recording.on_gpu:
            mine = work.rank == number
            start, end = work.start[mine], work.end[mine]
        last = _last(work, number, end)
        if recording.on_gpu:
            copied = _asked_by(work, number, start)
            waits_for = (recording.calls[calls] == COPY_SYNC) & (copied >= 0)
            last = np.where(waits_for, copied, last)
        own = intervals.at(hand_overs.driven(member, main), start) >= 0
        found = _rows(number, start, end, last, sync=True, hand_over=own)
        yield found.take((last >= 0) & (np.append(work.end, 0)[last] > start))


def _last(work: Work, number: int, times: Ints) -> Ints:
    """The work of a rank that ended last before each time, `NO_OP` for none."""
    rows = np.flatnonzero(work.rank == number)
    by_end = rows[np.argsort(work.end[rows], kind="stable")]
    place = np.searchsorted(work.end[by_end], times, "right") - 1
    return np.where(place >= 0, np.append(by_end, NO_OP)[place], NO_OP)


def _asked_by(work: Work, number: int, times: Ints) -> Ints:
    """The work of a rank that a call at each time asked for, `NO_OP` for none.

    A call that copies waits for its own copy, which may seem to end a little after it: a device's
    clock is another one.
    """
    rows = np.flatnonzero((work.rank == number) & known(work.called))
    rows = rows[np.argsort(work.called[rows], kind="stable")]
    place = np.searchsorted(work.called[rows], times, "right") - 1
    row = np.append(rows, NO_OP)[place]
    return np.where((row >= 0) & (np.append(work.called, 0)[row] == times), row, NO_OP)


def _step_ends(job: Job, work: Work, doing: Sequence[Pieces]) -> Iterator[Waits]:
    """The ends of steps: what a step computes on the device is there when it ends.

    `doing` is what is known that each thread did.
    """
    for number, (recording, partition) in enumerate(job.ranks):
        steps = partition.steps
        ends = recording.steps.end[steps]
        last = _last(work, number, ends)
        done = np.append(work.end, 0)[last]
        idle = np.maximum(_last_done(doing[number], done), recording.steps.start[steps])
        kept = (last >= 0) & (np.append(work.step, -1)[last] == steps)
        yield _rows(number, idle, ends, last).take(kept)


def _last_done(doing: Pieces, times: Ints) -> Ints:
    """Up to when, before each time, something is known that a thread did."""
    if not len(doing):
        return np.full(len(times), np.iinfo(np.int64).min)
    row = np.searchsorted(doing.start, times, "left") - 1
    ended = np.minimum(doing.end[np.maximum(row, 0)], times)
    return np.where(row >= 0, ended, np.iinfo(np.int64).min)


def _arrivals(job: Job, served: Sequence[Served], doing: Sequence[Pieces]) -> Iterator[Waits]:
    """The first work for each request that comes when no other is in the engine.

    The engine waits for such a request; others join a batch that goes on without them.
    """
    for number, member in enumerate(job.ranks):
        columns = [
            (came.at, came.ready, came.text, int(one.life.pieces.end[-1]))
            for one in served
            if one.rank == number and (came := one.admission) is not None
        ]
        at, ready, text, ends = (np.array([row[n] for row in columns], np.int64) for n in range(4))
        begun = np.searchsorted(np.sort(at), at, "left")
        alone = begun <= np.searchsorted(np.sort(ends), at, "right")
        free = _free_since(member, doing[number], at)
        yield _rows(number, free, at, until=ready, text=text).take(alone)


def _free_since(member: Member, doing: Pieces, at: Ints) -> Ints:
    """From when on, up to each instant, a rank has nothing to do as far as anything tells."""
    recording, partition = member
    if not len(at):
        return at
    ends = np.concatenate([partition.activity.end, recording.steps.end[partition.steps]])
    ends = np.sort(np.append(ends, partition.rank.start), kind="stable")  # nearly in order
    last = ends[np.maximum(np.searchsorted(ends, at, "right") - 1, 0)]
    free = np.maximum(np.maximum(_last_done(doing, at), last), partition.rank.start)
    return np.asarray(np.minimum(free, at), np.int64)


def main_thread(member: Member) -> int:
    """The thread that drives a rank, as an index of the threads in its host records."""
    recording, partition = member
    counts = host.launch_counts(recording.host, recording.launched_by)
    return host.main_thread(recording.host, counts, partition.rank.processes)


def rank_of(job: Job, life: Life) -> int | None:
    """The rank (an index) whose time a request lives in; None where nothing tells of it."""
    knows = [
        number
        for number, (recording, _) in enumerate(job.ranks)
        if recording.timeline.strings.find(life.request.id) >= 0
    ]
    if len(knows) < 2:
        return next(iter(knows), 0 if job.ranks else None)
    steps = life.step[life.step >= 0][:1]
    runs = [n for n in knows if not len(steps) or np.isin(steps, job.ranks[n][1].steps).all()]
    return next(iter([*runs, *knows]))
