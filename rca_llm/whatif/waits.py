"""Where the launching thread of a rank waits: for the device, and for requests to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.codes import COPY_SYNC, SYNC
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, known
from rca_llm.whatif import hand_overs
from rca_llm.whatif.arrivals import admission
from rca_llm.whatif.work import NO_OP, Work


@dataclass(frozen=True)
class Wait:
    """The launching thread of a rank from `start` to `end` waits for a row of the work.

    `sync` tells a synchronisation call from the end of a step, `hand_over` one that is made for a
    KV hand-over. Without a row it waits until `until`, a time that does not change.
    """

    rank: int
    start: int
    end: int
    row: int
    sync: bool
    until: int = 0
    work: int = 0
    """Time before `until` that is spent tokenising, ns."""
    hand_over: bool = False


def synchronisations(job: Job, work: Work) -> list[Wait]:
    """The calls in which the launching thread of a rank waits for the device."""
    found: list[Wait] = []
    for number, member in enumerate(job.ranks):
        recording, _ = member
        api, main = recording.timeline["api"], main_thread(member)
        calls = among(recording.calls, [SYNC, COPY_SYNC]) & (recording.host.api_thread == main)
        rows = np.flatnonzero(calls)
        spans = api["start"][rows], api["end"][rows]
        if not recording.on_gpu:
            mine = np.flatnonzero(work.rank == number)
            spans = work.start[mine], work.end[mine]
        last = _last(work, number, spans[1])
        if recording.on_gpu:
            copied = _asked_by(work, number, spans[0])
            waits_for = (recording.calls[rows] == COPY_SYNC) & (copied >= 0)
            last = np.where(waits_for, copied, last)
        own = intervals.at(hand_overs.driven(member, main), spans[0]) >= 0
        columns = (spans[0].tolist(), spans[1].tolist(), last.tolist(), own.tolist())
        waits = zip(*columns, strict=True)
        found += [
            Wait(number, start, end, row, sync=True, hand_over=inside)
            for start, end, row, inside in waits
            if row >= 0 and work.end[row] > start
        ]
    return found


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


def step_ends(job: Job, work: Work, threads: Sequence[Pieces]) -> list[Wait]:
    """The ends of steps: what a step computes on the device is there when it ends."""
    found: list[Wait] = []
    for number, (recording, partition) in enumerate(job.ranks):
        steps = partition.steps
        ends = recording.steps.end[steps]
        last = _last(work, number, ends)
        done = np.append(work.end, 0)[last]
        idle = np.maximum(_last_done(threads[number], done), recording.steps.start[steps])
        kept = np.flatnonzero((last >= 0) & (np.append(work.step, -1)[last] == steps))
        found += [
            Wait(number, int(idle[place]), int(ends[place]), int(last[place]), sync=False)
            for place in kept.tolist()
        ]
    return found


def _last_done(thread: Pieces, times: Ints) -> Ints:
    """Up to when, before each time, something is known that a thread did."""
    doing = thread.take(np.flatnonzero(thread.label != CODE["scheduling.other"]))
    if not len(doing):
        return np.full(len(times), np.iinfo(np.int64).min)
    row = np.searchsorted(doing.start, times, "left") - 1
    ended = np.minimum(doing.end[np.maximum(row, 0)], times)
    return np.where(row >= 0, ended, np.iinfo(np.int64).min)


def arrivals(job: Job, lives: Sequence[Life], threads: Sequence[Pieces]) -> list[Wait]:
    """The first work for each request that comes when no other is in the engine.

    The engine waits for such a request; others join a batch that goes on without them.
    """
    found: list[Wait] = []
    every = [(rank_of(job, life), admission(life), life) for life in lives]
    for number, member in enumerate(job.ranks):
        mine = [(one, life) for rank, one, life in every if rank == number and one is not None]
        starts = np.sort(np.array([one.at for one, _ in mine], np.int64))
        ends = np.sort(np.array([int(life.pieces.end[-1]) for _, life in mine], np.int64))
        free_since = _free_since(member, threads[number], np.array([one.at for one, _ in mine]))
        for (one, _), free in zip(mine, free_since, strict=True):
            begun = int(np.searchsorted(starts, one.at, "left"))
            if begun <= int(np.searchsorted(ends, one.at, "right")):
                wait = Wait(number, free, one.at, NO_OP, sync=False, until=one.ready, work=one.text)
                found.append(wait)
    return found


def _free_since(member: Member, thread: Pieces, at: Ints) -> list[int]:
    """From when on, up to each instant, a rank has nothing to do as far as anything tells."""
    recording, partition = member
    if not len(at):
        return []
    ends = np.concatenate([partition.activity.end, recording.steps.end[partition.steps]])
    ends = np.sort(np.append(ends, partition.rank.start))
    last = ends[np.maximum(np.searchsorted(ends, at, "right") - 1, 0)]
    free = np.maximum(np.maximum(_last_done(thread, at), last), partition.rank.start)
    found: list[int] = np.minimum(free, at).tolist()
    return found


def main_thread(member: Member) -> int:
    """The thread that drives a rank, as an index of the threads in its host records."""
    recording, partition = member
    counts = host.launch_counts(recording.host, recording.launched_by)
    return host.main_thread(recording.host, counts, partition.rank.processes)


def rank_of(job: Job, life: Life) -> int | None:
    """The rank (an index) whose time a request lives in; None where nothing tells of it."""
    for number, (recording, _) in enumerate(job.ranks):
        if recording.timeline.strings.find(life.request.id) >= 0:
            return number
    return 0 if job.ranks else None
