"""The dependency graph of a job, and its replay with changed durations.

What the graph holds, for every rank: the thread that launches, as pieces of time with the part that
each is charged to; device work, which starts after its launch, after the work before it on its
stream and, where it follows other work at once, after that; synchronisations and step ends, at
which the thread waits for the device; collectives, which begin when their last rank has come; and
arrivals, before which no request is served. What delays a start beyond these stays as measured, so
that an unchanged replay gives the measured times back. Time of the thread of which nothing is
recorded, from its last launch of a step to the end of the step's work, is taken for waiting.

What it does not hold: clients that send the next request when they have an answer, batches that
would be formed otherwise, and queues of launches that are full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rca_llm import intervals
from rca_llm.arrivals import admission
from rca_llm.attribute import host
from rca_llm.attribute.codes import COPY_SYNC, SYNC
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE, NO_PART, PARTS
from rca_llm.attribute.requests import Life
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Array, Ints, Mask, known

CLOSE_NS = 10_000
"""Work that starts this soon after other work has ended, and after nothing else, waited for it."""

QUEUED_NS = 2_000
"""Where no call was recorded, work that starts this soon after the work before it was queued."""

Floats = NDArray[np.float64]

NO_OP = -1


@dataclass(frozen=True)
class Work:
    """Device work of all ranks in the order of its start, one row a record.

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


@dataclass(frozen=True)
class Wait:
    """The launching thread of a rank from `start` to `end` waits for a row of the work.

    `sync` tells a synchronisation call from the end of a step. Without a row it waits until
    `until`, a time that does not change.
    """

    rank: int
    start: int
    end: int
    row: int
    sync: bool
    until: int = 0
    work: int = 0
    """Time before `until` that is spent tokenising, ns."""


@dataclass(frozen=True)
class Graph:
    """Everything that a replay needs; times are ns after `base`, so that they stay exact."""

    base: int
    threads: list[Pieces]
    work: Work
    waits: list[Wait]


@dataclass(frozen=True)
class Replay:
    """New times: when each row of the work starts and ends, and what each rank's time becomes."""

    graph: Graph
    start: Floats
    end: Floats
    clocks: list[Clock]


class Clock:
    """The new time of the launching thread of a rank: scaled pieces, shifted at every wait.

    `rate` is the factor of each piece, `moves` the most shifts that there may be.
    """

    def __init__(self, pieces: Pieces, rate: Floats, moves: int) -> None:
        self._edge = pieces.start.astype(np.float64)
        self._rate = rate
        lasting = (pieces.end - pieces.start) * self._rate
        first = self._edge[:1] if len(self._edge) else np.zeros(1)
        self._sum = np.concatenate([first, first + np.cumsum(lasting)])
        self.shift = 0.0
        self._times = np.full(moves + 1, -np.inf)
        self._shifts = np.zeros(moves + 1)
        self._idle = np.zeros(moves + 1)
        self._moves = 1

    @property
    def last(self) -> float:
        """The instant of the last shift."""
        return float(self._times[self._moves - 1])

    def scaled(self, times: Array) -> Floats:
        """The time that the pieces alone give, without any shift."""
        at = np.asarray(times, np.float64)
        if not len(self._edge):
            return at
        row = np.maximum(np.searchsorted(self._edge, at, "right") - 1, 0)
        return self._sum[row] + (at - self._edge[row]) * self._rate[row]

    def move(self, at: int, scaled: float, wanted: float, *, idle: bool = False) -> None:
        """From an instant on, let the new time be such that the instant becomes `wanted`.

        `idle`: because the thread has nothing to do until then, or less long than it had.
        """
        before, self.shift = self.shift, wanted - scaled
        place = self._moves
        self._times[place] = at
        self._shifts[place] = self.shift
        self._idle[place] = self._idle[place - 1] + (self.shift - before if idle else 0.0)
        self._moves += 1

    def __call__(self, times: Array) -> Floats:
        """The new times of instants on this thread."""
        return self.shifted(times, self.scaled(times))

    def busy(self, times: Array) -> Floats:
        """The new times, as they would be had it never waited for requests longer or shorter."""
        row = np.searchsorted(self._times[: self._moves], np.asarray(times), "right") - 1
        return np.asarray(self(times) - self._idle[row], np.float64)

    def shifted(self, times: Array, scaled: Floats) -> Floats:
        """The new times of instants whose scaled ones are known."""
        row = np.searchsorted(self._times[: self._moves], np.asarray(times), "right") - 1
        return np.asarray(scaled + self._shifts[row], np.float64)


def graph(job: Job, lives: Sequence[Life]) -> Graph:
    """The dependencies of a job."""
    work = _work(job)
    threads = [_thread(member) for member in job.ranks]
    waits = [*_syncs(job, work), *_step_ends(job, work, threads)]
    waits += _arrivals(job, lives, threads)
    waits.sort(key=lambda wait: (wait.end, not wait.sync))
    return _since(min((p.rank.start for _, p in job.ranks), default=0), threads, work, waits)


def _since(base: int, threads: list[Pieces], work: Work, waits: list[Wait]) -> Graph:
    """The graph with all times counted from `base`."""
    moved = {name: _moved(getattr(work, name), base) for name in _TIMES}
    return Graph(
        base,
        [Pieces(own.start - base, own.end - base, own.label) for own in threads],
        replace(work, **moved),
        [replace(w, start=w.start - base, end=w.end - base, until=w.until - base) for w in waits],
    )


_TIMES = ("start", "end", "called", "arrived")
"""The columns of the work that hold times."""


def _moved(times: Ints, base: int) -> Ints:
    return np.where(known(times), times - base, times)


def _main(member: Member) -> int:
    recording, partition = member
    counts = host.launch_counts(recording.host, recording.launched_by)
    return host.main_thread(recording.host, counts, partition.rank.processes)


def _thread(member: Member) -> Pieces:
    """What the thread of a rank does; while the devices idle, what that is charged to."""
    recording, partition = member
    rank, segments = partition.rank, partition.segments
    if rank.span == 0:
        return intervals.EMPTY
    idle = segments.take(np.flatnonzero(segments.activity < 0)).pieces
    window = np.array([rank.start]), np.array([rank.end])
    own = host.explain(recording.host, window, np.array([_main(member)]))
    if recording.on_gpu and not len(recording.timeline["api"]):
        # Without its calls nobody can tell a thread that works from one that spins in a wait.
        spinning = own.label == CODE["scheduling.host"]
        label = np.where(spinning, CODE["scheduling.other"], own.label)
        own = Pieces(own.start, own.end, label)
    pieces, _ = intervals.overlay([idle, own], rank.start, rank.end)
    label = np.where(pieces.label == NO_PART, CODE["scheduling.other"], pieces.label)
    return Pieces(pieces.start, pieces.end, label)


def _work(job: Job) -> Work:
    """The activities of all ranks with what each waits for."""
    columns = [_work_of(job, number) for number in range(len(job.ranks))]
    names = ("start", "rank", "end", "part", "step", "called", "stream", "group", "arrived")
    joined = {
        name: np.concatenate([column[name] for column in columns] or [np.empty(0, np.int64)])
        for name in names
    }
    order = np.lexsort([joined["end"], joined["start"]])
    table = {name: values[order] for name, values in joined.items()}
    before = _before(table["rank"], table["stream"])
    other = _followed(table, before)
    chain = _numbered(table["rank"], table.pop("stream"))
    table["called"] = _asked_for(table, before, other, _closest(job)[table["rank"]])
    return Work(**table, before=before, other=other, chain=chain)


def _closest(job: Job) -> Ints:
    """For every rank, after what pause work must have been asked for, ns."""
    called = [len(r.timeline["api"]) > 0 or not r.on_gpu for r, _ in job.ranks]
    return np.where(called, CLOSE_NS, QUEUED_NS).astype(np.int64)


def _asked_for(table: Mapping[str, Ints], before: Ints, other: Ints, closest: Ints) -> Ints:
    """When each was launched; work that comes after a pause and has no launch, when it began."""
    low = np.iinfo(np.int64).min
    ended = np.append(table["end"], low)
    last = np.maximum(ended[before], ended[other])
    paused = (last > low) & (table["start"] - np.maximum(last, low + CLOSE_NS) > closest)
    return np.where(~known(table["called"]) & paused, table["start"], table["called"])


def _numbered(rank: Ints, stream: Ints) -> Ints:
    """A number for every stream of every rank, from 0 on."""
    if not len(rank):
        return rank
    order = np.lexsort([stream, rank])
    new = (np.diff(stream[order], prepend=stream[order[0]]) != 0) | (
        np.diff(rank[order], prepend=rank[order[0]]) != 0
    )
    found = np.empty(len(rank), np.int64)
    found[order] = np.cumsum(new)
    return found


def _work_of(job: Job, number: int) -> dict[str, Ints]:
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
        "part": activity.part,
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


def _before(rank: Ints, stream: Ints) -> Ints:
    """The row before each on its stream, in the order of the rows."""
    order = np.lexsort([np.arange(len(rank)), stream, rank])
    found = np.full(len(rank), NO_OP, np.int64)
    same = (rank[order][1:] == rank[order][:-1]) & (stream[order][1:] == stream[order][:-1])
    found[order[1:][same]] = order[:-1][same]
    return found


def _followed(table: Mapping[str, Ints], before: Ints) -> Ints:
    """The work that each waited for although it is on another stream, `NO_OP` for none."""
    start, end, rank = table["start"], table["end"], table["rank"]
    found = np.full(len(start), NO_OP, np.int64)
    for number in np.unique(rank).tolist():
        rows = np.flatnonzero(rank == number)
        by_end = rows[np.argsort(end[rows], kind="stable")]
        place = np.searchsorted(end[by_end], start[rows], "right") - 1
        last = np.where(place >= 0, by_end[np.maximum(place, 0)], NO_OP)
        ended = np.where(last >= 0, end[last], np.iinfo(np.int64).min)
        own = np.where(before[rows] >= 0, end[before[rows]], np.iinfo(np.int64).min)
        waited = np.maximum(own, table["called"][rows])
        close = (start[rows] - ended <= CLOSE_NS) & (ended > waited) & (last < rows)
        found[rows[close]] = last[close]
    return found


def _syncs(job: Job, work: Work) -> list[Wait]:
    """The calls in which the launching thread of a rank waits for the device."""
    found: list[Wait] = []
    for number, member in enumerate(job.ranks):
        recording, _ = member
        api, main = recording.timeline["api"], _main(member)
        calls = among(recording.calls, [SYNC, COPY_SYNC]) & (recording.host.api_thread == main)
        rows = np.flatnonzero(calls)
        spans = api["start"][rows], api["end"][rows]
        if not recording.on_gpu:
            mine = np.flatnonzero(work.rank == number)
            spans = work.start[mine], work.end[mine]
        last = _last(work, number, spans[1])
        waits = zip(spans[0].tolist(), spans[1].tolist(), last.tolist(), strict=True)
        found += [
            Wait(number, start, end, row, sync=True)
            for start, end, row in waits
            if row >= 0 and work.end[row] > start
        ]
    return found


def _last(work: Work, number: int, times: Ints) -> Ints:
    """The work of a rank that ended last before each time, `NO_OP` for none."""
    rows = np.flatnonzero(work.rank == number)
    by_end = rows[np.argsort(work.end[rows], kind="stable")]
    place = np.searchsorted(work.end[by_end], times, "right") - 1
    return np.where(place >= 0, np.append(by_end, NO_OP)[place], NO_OP)


def _step_ends(job: Job, work: Work, threads: Sequence[Pieces]) -> list[Wait]:
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


def _arrivals(job: Job, lives: Sequence[Life], threads: Sequence[Pieces]) -> list[Wait]:
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


def rank_of(job: Job, life: Life) -> int | None:
    """The rank (an index) whose time a request lives in; None where nothing tells of it."""
    for number, (recording, _) in enumerate(job.ranks):
        if recording.timeline.strings.find(life.request.id) >= 0:
            return number
    return 0 if job.ranks else None


@dataclass(frozen=True)
class Change:
    """What a replay changes: the time of some parts, by a factor each, where `within` says.

    `within` are starts and ends of disjoint, ascending intervals, ns; None: everywhere.
    """

    factors: Mapping[str, float]
    within: tuple[Ints, Ints] | None = None

    @property
    def scale(self) -> Floats:
        """The factor of every part."""
        return np.array([self.factors.get(part, 1.0) for part in PARTS])

    def inside(self, start: Array, end: Array, base: int = 0) -> Floats:
        """The fraction of some intervals that changes; of an instant, whether it does."""
        if self._pieces is None:
            return np.ones(len(start))
        begin, stop = start + base, end + base
        common = intervals.sums_in(self._pieces, begin, stop, 1)[:, 0]
        touched = intervals.at(self._pieces, begin) >= 0
        length = np.asarray(end - start)
        return np.where(length > 0, common / np.maximum(length, 1), touched)

    @cached_property
    def _pieces(self) -> Pieces | None:
        """Where the change is, as pieces."""
        if self.within is None:
            return None
        return Pieces(*self.within, np.zeros(len(self.within[0]), np.int64))

    def factor(self, part: Array, start: Array, end: Array, base: int = 0) -> Floats:
        """The factor of some intervals, each of one part."""
        scale = self.scale[part]
        found = np.ones(len(scale))
        rows = np.flatnonzero(scale != 1)  # what does not change needs no look at where it is
        found[rows] -= (1 - scale[rows]) * self.inside(start[rows], end[rows], base)
        return found


def replay(graph: Graph, change: Change) -> Replay:
    """Run the graph with the durations of some parts multiplied by a factor each."""
    clocks = [
        Clock(*_rates(pieces, change, graph.base), len(graph.waits)) for pieces in graph.threads
    ]
    run = _Run(graph, change, clocks)
    run.go()
    return Replay(graph, run.begin, run.finish, clocks)


def _rates(pieces: Pieces, change: Change, base: int) -> tuple[Pieces, Floats]:
    """The pieces of a thread, cut where the change begins and ends, and the factor of each."""
    if change.within is not None and len(pieces):
        edges = intervals.distinct(np.concatenate(change.within)) - base
        pieces = intervals.cut(pieces, edges)
    return pieces, change.factor(pieces.label, pieces.start, pieces.end, base)


class _Run:
    """One replay: goes through waits, and work that depends on more than its stream, by time.

    Work that only follows its launch and the work before it on its stream is brought up to date a
    whole run at a time, when something asks for it: finish i is the greatest, over j up to i, of
    launch j and of all delays and durations from j to i.
    """

    def __init__(self, graph: Graph, change: Change, clocks: list[Clock]) -> None:
        work, base = graph.work, graph.base
        size = len(work.start)
        self.graph, self.clocks = graph, clocks
        self.begin, self.finish = np.zeros(size), np.zeros(size)
        scaled = change.factor(work.part, work.start, work.end, base)
        self.lasting = (work.end - work.start) * scaled
        self.rest = _after_arrival(work, scaled)
        self.lag = _lags(work, change, base)
        self.syncs = _sync_factors(graph, change)
        self.told, self.asked, self.scaled = _asked(work, clocks)
        self.chains = _chains(work)
        self.place = np.zeros(size, np.int64)
        for rows in self.chains:
            self.place[rows] = np.arange(len(rows))
        self.done = [0] * len(self.chains)
        self.size: list[int] = np.bincount(work.group[work.group >= 0]).tolist()
        self.open: dict[int, list[int]] = {}

    def go(self) -> None:
        """Everything in order; where times are equal, waits end before work starts."""
        work = self.graph.work
        special = np.flatnonzero((work.other >= 0) | (work.group >= 0))
        starts: list[int] = work.start[special].tolist()
        rows: list[int] = special.tolist()
        at = 0
        for number, (wait, times) in enumerate(
            zip(self.graph.waits, self._wait_times(), strict=True)
        ):
            while at < len(rows) and starts[at] < wait.end:
                self._special(rows[at])
                at += 1
            self._wait(wait, self.syncs[number], *times)
        for row in rows[at:]:
            self._special(row)
        for chain, own in enumerate(self.chains):
            self._advance(chain, len(own))

    def _wait_times(self) -> list[tuple[float, float, float]]:
        """The scaled times of every wait's start and end, and of the end of what it waits for."""
        waits, work = self.graph.waits, self.graph.work
        found = np.zeros((len(waits), 3))
        ranks = np.array([wait.rank for wait in waits], np.int64)
        ends = np.append(work.end, 0)
        columns = [
            np.array([wait.start for wait in waits], np.int64),
            np.array([wait.end for wait in waits], np.int64),
            ends[np.array([wait.row for wait in waits], np.int64)],
        ]
        for number, clock in enumerate(self.clocks):
            rows = ranks == number
            for place, times in enumerate(columns):
                found[rows, place] = clock.scaled(times[rows])
        return [(a, b, c) for a, b, c in found.tolist()]

    def _ready(self, rows: Ints) -> Floats:
        """When the launches of some rows of one rank are done; minus infinity where unknown."""
        clock = self.clocks[int(self.graph.work.rank[rows[0]])]
        ready = clock.shifted(self.asked[rows], self.scaled[rows])
        return np.where(self.told[rows], ready, -np.inf)

    def _advance(self, chain: int, until: int) -> None:
        """Bring a stream up to date, up to the row at place `until` in it."""
        done = self.done[chain]
        if until <= done:
            return
        rows = self.chains[chain][done:until]
        before = self.finish[self.chains[chain][done - 1]] if done else -np.inf
        lag, lasting = self.lag[rows], self.lasting[rows]
        total = np.cumsum(lag + lasting)
        free = self._ready(rows) - (total - lag - lasting)
        free[0] = max(free[0], before)
        self.finish[rows] = finish = total + np.maximum.accumulate(free)
        self.begin[rows] = finish - lasting
        self.done[chain] = until

    def _special(self, row: int) -> None:
        """A row that waits for another stream, or for other ranks."""
        work = self.graph.work
        chain, place = int(work.chain[row]), int(self.place[row])
        self._advance(chain, place)
        ready = float(self._ready(np.array([row]))[0])
        before, other = int(work.before[row]), int(work.other[row])
        if before >= 0:
            ready = max(ready, float(self.finish[before]))
        if other >= 0:
            self._advance(int(work.chain[other]), int(self.place[other]) + 1)
            ready = max(ready, float(self.finish[other]))
        self.begin[row] = ready + self.lag[row]
        self.finish[row] = self.begin[row] + self.lasting[row]
        self.done[chain] = max(self.done[chain], place + 1)
        if work.group[row] >= 0:
            self._meet(row, int(work.group[row]))

    def _meet(self, row: int, group: int) -> None:
        """The last rank to come lets the others of a collective go on."""
        rows = self.open.setdefault(group, [])
        rows.append(row)
        if len(rows) == self.size[group]:
            arrived = max(float(self.begin[one]) for one in rows)
            for one in rows:
                self.finish[one] = max(arrived + self.rest[one], self.begin[one])
            del self.open[group]

    def _wait(self, wait: Wait, sync: float, begun: float, ended: float, done: float) -> None:
        """Move the clock of a rank at the end of a wait."""
        clock = self.clocks[wait.rank]
        here, wanted = begun + clock.shift, ended + clock.shift
        if wait.row < 0:
            wanted = self._admitted(wait, sync, wanted)
        else:
            row = wait.row
            self._advance(int(self.graph.work.chain[row]), int(self.place[row]) + 1)
            held = max(float(self.finish[row]) - here, 0.0)
            wanted = here + (sync if wait.sync else 1.0) * held + ended - done
        clock.move(wait.end, ended, wanted, idle=wait.row < 0)

    def _admitted(self, wait: Wait, text: float, unmoved: float) -> float:
        """When a request is first worked for: when the thread is free and the request is there."""
        clock = self.clocks[wait.rank]
        free = float(clock(np.array([wait.start]))[0])
        ready = wait.until - (1 - text) * wait.work
        wanted = max(free, ready) + wait.end - max(wait.start, wait.until)
        return max(wanted, unmoved) if clock.last == wait.end else wanted


def _asked(work: Work, clocks: Sequence[Clock]) -> tuple[Mask, Ints, Floats]:
    """When each row was asked for: whether that is known, the instant, and its scaled time.

    Looked up for all rows at once; a search for every stretch of a stream takes most of a replay.
    """
    called = known(work.called)
    told = called | ((work.before < 0) & (work.other < 0))
    asked = np.where(called, work.called, work.start)
    scaled = np.zeros(len(asked))
    for number, clock in enumerate(clocks):
        rows = np.flatnonzero(work.rank == number)
        scaled[rows] = clock.scaled(asked[rows])
    return told, asked, scaled


def _chains(work: Work) -> list[Ints]:
    """The rows of every stream in their order."""
    order = np.argsort(work.chain, kind="stable")
    counts = np.bincount(work.chain) if len(order) else np.zeros(0, np.int64)
    return list(np.split(order, np.cumsum(counts)[:-1])) if len(order) else []


def _sync_factors(graph: Graph, change: Change) -> list[float]:
    """What becomes of every wait: of a synchronisation its factor, of an arrival its tokenising."""
    waits, sync, text = graph.waits, CODE["scheduling.sync"], CODE["scheduling.tokenize"]
    part = np.array([text if wait.row < 0 else sync for wait in waits], np.int64)
    start = np.array([wait.until - wait.work if wait.row < 0 else wait.start for wait in waits])
    end = np.array([wait.until if wait.row < 0 else wait.end for wait in waits])
    if not len(waits):
        return []
    found: list[float] = change.factor(part, start, end, graph.base).tolist()
    return found


def _after_arrival(work: Work, factor: Floats) -> Floats:
    """How long every collective lasts from its last arrival on."""
    rest = np.where(work.group >= 0, work.end - work.arrived, 0).astype(np.float64)
    return np.where(rest > 0, rest * factor, rest)


def _lags(work: Work, change: Change, base: int) -> Floats:
    """What delays each start beyond its dependencies; after a launch alone it is launching."""
    low = np.iinfo(np.int64).min
    ended = np.append(work.end, low)
    before = np.maximum(ended[work.before], ended[work.other])
    last = np.maximum(before, work.called)
    free = last == low
    lag = np.where(free, 0, work.start - np.where(free, work.start, last)).astype(np.float64)
    launching = (work.called >= before) & (lag > 0)
    code = np.full(len(lag), CODE["scheduling.launch"], np.int64)
    factor = change.factor(code, work.start - np.maximum(lag, 0).astype(np.int64), work.start, base)
    return np.where(launching, lag * factor, lag)
