"""The device work of a job, and what each record of it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.job import Job
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Ints, known
from rca_llm.whatif import hand_overs

CLOSE_NS = 10_000
"""Work that starts this soon after other work has ended, and after nothing else, waited for it."""


QUEUED_NS = 2_000
"""Where no call was recorded, work that starts this soon after the work before it was queued."""


NO_OP = -1


@dataclass(frozen=True)
class Work:
    """Device work of all ranks, one row a record; that of a stream in the order of its start.

    `rank` is an index; `called` the time of the launch, `UNKNOWN` where nothing tells it; `before`
    and `other` the rows it waits for on its own stream, `chain`, and elsewhere; `group` its
    collective.
    """

    rank: Ints
    start: Ints
    end: Ints
    part: Ints
    step: Ints
    called: Ints
    before: Ints
    other: Ints
    group: Ints
    arrived: Ints
    chain: Ints
    held: Ints
    """What of the delay of each start was a wait for another process that had the device, ns."""

    @cached_property
    def lag(self) -> Ints:
        """What delays each start beyond what it waits for, ns; negative where it did not wait."""
        last = np.maximum(self._before, self.called)
        free = last == _NEVER
        return np.where(free, 0, self.start - np.where(free, 0, last))

    @cached_property
    def launching(self) -> Ints:
        """The rows of which that is launching, or of a hand-over."""
        alone = self.called >= self._before
        return np.flatnonzero((alone | (self.part == hand_overs.HAND_OVER)) & (self.lag > 0))

    @cached_property
    def _before(self) -> Ints:
        """When all that each waits for, but its launch, has ended."""
        ended = np.append(self.end, _NEVER)
        return np.asarray(np.maximum(ended[self.before], ended[self.other]), np.int64)

    @property
    def first(self) -> Ints:
        """The first row of every stream, where their rows are together."""
        streams = int(self.chain.max(initial=-1)) + 1
        return np.asarray(np.searchsorted(self.chain, np.arange(streams)), np.int64)


_NEVER = np.iinfo(np.int64).min


def by_stream(work: Work) -> tuple[Work, Ints]:
    """The same with the rows of every stream together, and the place of each row, `NO_OP` last."""
    order = np.argsort(work.chain, kind="stable")
    place = np.full(len(order) + 1, NO_OP)
    place[order] = np.arange(len(order))
    columns = {field.name: getattr(work, field.name)[order] for field in fields(work)}
    columns |= {name: place[columns[name]] for name in ("before", "other")}
    return Work(**columns), place


def work_of(job: Job) -> Work:
    """The activities of all ranks by their start, with what each waits for."""
    columns = [_rank_work(job, number) for number in range(len(job.ranks))]
    names = ("start", "rank", "end", "part", "step", "called", "stream", "group", "arrived")
    joined = {
        name: np.concatenate([column[name] for column in columns] or [np.empty(0, np.int64)])
        for name in names
    }
    order = np.lexsort([joined["end"], joined["start"]])
    table = {name: values[order] for name, values in joined.items()}
    chain, before = _chains(table["rank"], table.pop("stream"))
    other = _followed(table, before)
    ended = np.append(table["end"], _NEVER)
    last = np.maximum(ended[before], ended[other])
    held = _held(job, table, last)
    table["called"] = _asked_for(table, last, held, _closest(job)[table["rank"]])
    return Work(**table, before=before, other=other, chain=chain, held=held)


def _held(job: Job, table: Mapping[str, Ints], last: Ints) -> Ints:
    """How long another process had the device between all that each row waits for and its start.

    `last` is when the work that it waits for had ended; ns.
    """
    start, since = table["start"], np.maximum(last, table["called"])
    found = np.zeros(len(start), np.int64)
    for number, (_, partition) in enumerate(job.ranks):
        if len(partition.contended):
            spans = partition.contended.start, partition.contended.end
            waits = Pieces(*spans, np.zeros(len(spans[0]), np.int64))
            rows = np.flatnonzero((table["rank"] == number) & (since > _NEVER) & (since < start))
            found[rows] = intervals.covered(waits, since[rows], start[rows])
    return found


def _closest(job: Job) -> Ints:
    """For every rank, after what pause work must have been asked for, ns."""
    called = [len(r.timeline["api"]) > 0 or not r.on_gpu for r, _ in job.ranks]
    return np.where(called, CLOSE_NS, QUEUED_NS).astype(np.int64)


def _asked_for(table: Mapping[str, Ints], last: Ints, held: Ints, closest: Ints) -> Ints:
    """When each was launched; work that comes after a pause and has no launch, when it began.

    For as long as another process had the device (`held`) it had been asked for.
    """
    begun = table["start"] - held
    paused = (last > _NEVER) & (begun - np.maximum(last, _NEVER + CLOSE_NS) > closest)
    return np.where(~known(table["called"]) & paused, begun, table["called"])


def _chains(rank: Ints, stream: Ints) -> tuple[Ints, Ints]:
    """A number for every stream of every rank, from 0 on, and the row before each on its stream."""
    order = np.lexsort([stream, rank])
    rank, stream = rank[order], stream[order]
    same = (rank[1:] == rank[:-1]) & (stream[1:] == stream[:-1])
    chain, before = np.zeros(len(rank), np.int64), np.full(len(rank), NO_OP)
    chain[order[1:]] = np.cumsum(~same)
    before[order[1:]] = np.where(same, order[:-1], NO_OP)
    return chain, before


def _rank_work(job: Job, number: int) -> dict[str, Ints]:
    recording, partition = job.ranks[number]
    activity, gpu, api = partition.activity, recording.timeline["gpu"], recording.timeline["api"]
    row = activity.gpu_row
    launched = np.append(recording.links.of_api(api["start"]), UNKNOWN)
    keys = gpu["device"].astype(np.int64) * (1 << 32) + gpu["stream"]
    alone = -2 - np.arange(len(row))
    return {
        "rank": np.full(len(row), number, np.int64),
        "start": activity.start,
        "end": activity.end,
        "part": np.where(hand_overs.copies(job.ranks[number]), hand_overs.HAND_OVER, activity.part),
        "step": activity.step,
        "called": launched[row],
        "stream": np.where(row >= 0, np.append(keys, -1)[row], alone),
        "group": _groups(job, number),
        "arrived": activity.arrived,
    }


def _groups(job: Job, number: int) -> Ints:
    """The collective of every activity of a rank, by its place in the job's list."""
    _, partition = job.ranks[number]
    activity, rank = partition.activity, partition.rank.number
    by_gpu: dict[int, int] = {}
    by_row: dict[int, int] = {}
    for place, one in enumerate(job.collectives):
        for part in one.parts if one.complete else ():
            if part.rank == rank:
                target, key = (by_gpu, part.gpu_row) if part.gpu_row >= 0 else (by_row, part.row)
                target[key] = place
    found = np.full(len(activity), -1, np.int64)
    for row in np.flatnonzero(known(activity.arrived)).tolist():
        gpu = int(activity.gpu_row[row])
        key, table = (gpu, by_gpu) if gpu >= 0 else (int(activity.collective_row[row]), by_row)
        found[row] = table.get(key, -1)
    return found


def _followed(table: Mapping[str, Ints], before: Ints) -> Ints:
    """The work that each waited for although it is on another stream, `NO_OP` for none."""
    start, end, rank = table["start"], table["end"], table["rank"]
    ended = np.append(end, _NEVER)
    waited = np.maximum(ended[before], table["called"])
    found = np.full(len(start), NO_OP, np.int64)
    for number in range(int(rank.max(initial=-1)) + 1):
        rows = np.flatnonzero(rank == number)
        by_end = rows[np.argsort(end[rows], kind="stable")]
        place = np.searchsorted(end[by_end], start[rows], "right")
        last = np.append(NO_OP, by_end)[place]
        close = (start[rows] - CLOSE_NS <= ended[last]) & (ended[last] > waited[rows])
        close &= last < rows
        found[rows[close]] = last[close]
    return found
