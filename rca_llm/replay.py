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

import numpy as np
from numpy.typing import NDArray

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.codes import COPY_SYNC, SYNC
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE, NO_PART, PARTS
from rca_llm.attribute.requests import Life
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Array, Ints, known

CLOSE_NS = 10_000
"""Work that starts this soon after other work has ended, and after nothing else, waited for it."""

Floats = NDArray[np.float64]

NO_OP = -1


@dataclass(frozen=True)
class Work:
    """Device work of all ranks in the order of its start, one row a record.

    `rank` is an index; `called` the time of the launch, `UNKNOWN` where that is not known; `before`
    and `other` the rows it waits for on its own stream and elsewhere; `group` its collective.
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
    """The new time of the launching thread of a rank: scaled pieces, shifted at every wait."""

    def __init__(self, pieces: Pieces, factors: Floats) -> None:
        self._edge = pieces.start.astype(np.float64)
        self._rate = factors[pieces.label]
        lasting = (pieces.end - pieces.start) * self._rate
        first = self._edge[:1] if len(self._edge) else np.zeros(1)
        self._sum = np.concatenate([first, first + np.cumsum(lasting)])
        self.shift = 0.0
        self._times: list[float] = [-np.inf]
        self._shifts: list[float] = [0.0]

    def scaled(self, times: Array) -> Floats:
        """The time that the pieces alone give, without any shift."""
        at = np.asarray(times, np.float64)
        if not len(self._edge):
            return at
        row = np.maximum(np.searchsorted(self._edge, at, "right") - 1, 0)
        return self._sum[row] + (at - self._edge[row]) * self._rate[row]

    def move(self, at: int, scaled: float, wanted: float) -> None:
        """From an instant on, let the new time be such that the instant becomes `wanted`."""
        self.shift = wanted - scaled
        self._times.append(float(at))
        self._shifts.append(self.shift)

    def __call__(self, times: Array) -> Floats:
        """The new times of instants on this thread."""
        row = np.searchsorted(np.array(self._times), np.asarray(times), "right") - 1
        return np.asarray(self.scaled(times) + np.array(self._shifts)[row], np.float64)


def graph(job: Job, lives: Sequence[Life]) -> Graph:
    """The dependencies of a job."""
    work = _work(job)
    threads = [_thread(member) for member in job.ranks]
    waits = [*_syncs(job, work), *_step_ends(job, work, threads), *_arrivals(job, lives)]
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
    del table["stream"]
    return Work(**table, before=before, other=other)


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


def _arrivals(job: Job, lives: Sequence[Life]) -> list[Wait]:
    """The first work for each request, which cannot be done before the request is there."""
    found: list[Wait] = []
    for life in lives:
        request, number = life.request, rank_of(job, life)
        if request.arrival is None or number is None or not len(life.pieces):
            continue
        queue = CODE["scheduling.queue"]
        admitted = np.flatnonzero(~among(life.pieces.label, [queue, CODE["scheduling.tokenize"]]))
        at = int(life.pieces.start[admitted[0]]) if len(admitted) else request.arrival
        busy = int(life.totals[CODE["scheduling.tokenize"]])
        ready = min(request.arrival + busy, at)
        found.append(Wait(number, at, at, NO_OP, sync=False, until=ready))
    return found


def rank_of(job: Job, life: Life) -> int | None:
    """The rank (an index) whose time a request lives in; None where nothing tells of it."""
    for number, (recording, _) in enumerate(job.ranks):
        if recording.timeline.strings.find(life.request.id) >= 0:
            return number
    return 0 if job.ranks else None


def replay(graph: Graph, factors: Mapping[str, float]) -> Replay:
    """Run the graph with the durations of some parts multiplied by a factor each."""
    scale = np.ones(len(PARTS), np.float64)
    for name, factor in factors.items():
        scale[CODE[name]] = factor
    clocks = [Clock(pieces, scale) for pieces in graph.threads]
    run = _Run(graph, scale, clocks)
    run.go()
    return Replay(graph, np.array(run.begin), np.array(run.finish), clocks)


class _Run:
    """One replay: goes through work and waits in the order of their measured times."""

    def __init__(self, graph: Graph, scale: Floats, clocks: list[Clock]) -> None:
        work = graph.work
        self.graph, self.clocks = graph, clocks
        self.sync = float(scale[CODE["scheduling.sync"]])
        self.begin = [0.0] * len(work.start)
        self.finish = [0.0] * len(work.start)
        self.launched = [-np.inf] * len(work.start)
        self.filled = [0] * len(clocks)
        self.queue = [_by_call(work, number) for number in range(len(clocks))]
        self.called: list[float] = _scaled_calls(work, clocks).tolist()
        self.lasting: list[float] = ((work.end - work.start) * scale[work.part]).tolist()
        self.rest: list[float] = _after_arrival(work, scale).tolist()
        self.lag: list[float] = _lags(work, scale).tolist()
        self.rank: list[int] = work.rank.tolist()
        self.group: list[int] = work.group.tolist()
        self.before: list[int] = work.before.tolist()
        self.other: list[int] = work.other.tolist()
        self.size: list[int] = np.bincount(work.group[work.group >= 0]).tolist()
        self.open: dict[int, list[int]] = {}

    def go(self) -> None:
        """Everything in order; where times are equal, waits end before work starts."""
        starts: list[int] = self.graph.work.start.tolist()
        row, count = 0, len(starts)
        for wait, times in zip(self.graph.waits, self._wait_times(), strict=True):
            while row < count and starts[row] < wait.end:
                self._start(row, starts[row])
                row += 1
            self._wait(wait, *times)
        for last in range(row, count):
            self._start(last, starts[last])

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

    def _start(self, row: int, measured: int) -> None:
        finish, before, other = self.finish, self.before[row], self.other[row]
        clock = self.clocks[self.rank[row]]
        ready = self.launched[row]
        if ready == -np.inf:
            ready = self.called[row] + clock.shift
        if before >= 0 and finish[before] > ready:
            ready = finish[before]
        if other >= 0 and finish[other] > ready:
            ready = finish[other]
        if ready == -np.inf:
            ready = float(clock(np.array([measured]))[0])
        self.begin[row] = begin = ready + self.lag[row]
        finish[row] = begin + self.lasting[row]
        if self.group[row] >= 0:
            self._meet(row, self.group[row])

    def _meet(self, row: int, group: int) -> None:
        """The last rank to come lets the others of a collective go on."""
        rows = self.open.setdefault(group, [])
        rows.append(row)
        if len(rows) == self.size[group]:
            arrived = max(self.begin[one] for one in rows)
            for one in rows:
                self.finish[one] = max(arrived + self.rest[one], self.begin[one])
            del self.open[group]

    def _wait(self, wait: Wait, begun: float, ended: float, done: float) -> None:
        """Move the clock of a rank at the end of a wait."""
        clock = self.clocks[wait.rank]
        here, wanted = begun + clock.shift, ended + clock.shift
        if wait.row < 0:
            wanted = max(wanted, float(wait.until))
        else:
            held = max(self.finish[wait.row] - here, 0.0)
            wanted = here + (self.sync if wait.sync else 1.0) * held + ended - done
        self._fill(wait.rank, wait.end)
        clock.move(wait.end, ended, wanted)

    def _fill(self, number: int, until: int) -> None:
        """Fix the launches of a rank that come before its clock moves."""
        rows, called = self.queue[number]
        stop = int(np.searchsorted(called, until, "left"))
        shift = self.clocks[number].shift
        for row in rows[self.filled[number] : stop].tolist():
            self.launched[row] = self.called[row] + shift
        self.filled[number] = max(stop, self.filled[number])


def _by_call(work: Work, number: int) -> tuple[Ints, Ints]:
    """The rows of a rank by the time of their launch, and those times."""
    rows = np.flatnonzero((work.rank == number) & known(work.called))
    rows = rows[np.argsort(work.called[rows], kind="stable")]
    return rows, work.called[rows]


def _scaled_calls(work: Work, clocks: Sequence[Clock]) -> Floats:
    """The scaled time of every launch; minus infinity where none is known."""
    found = np.full(len(work.start), -np.inf)
    for number, clock in enumerate(clocks):
        rows = np.flatnonzero((work.rank == number) & known(work.called))
        found[rows] = clock.scaled(work.called[rows])
    return found


def _after_arrival(work: Work, scale: Floats) -> Floats:
    """How long every collective lasts from its last arrival on."""
    rest = np.where(work.group >= 0, work.end - work.arrived, 0).astype(np.float64)
    return np.where(rest > 0, rest * scale[work.part], rest)


def _lags(work: Work, scale: Floats) -> Floats:
    """What delays each start beyond its dependencies; after a launch alone it is launching."""
    low = np.iinfo(np.int64).min
    ended = np.append(work.end, low)
    before = np.maximum(ended[work.before], ended[work.other])
    last = np.maximum(before, work.called)
    free = last == low
    lag = np.where(free, 0, work.start - np.where(free, work.start, last)).astype(np.float64)
    launching = (work.called > before) & (lag > 0)
    return np.where(launching, lag * scale[CODE["scheduling.launch"]], lag)
