"""Runs a dependency graph with changed durations: what the times of a job become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, Mask, known
from rca_llm.whatif.change import Change, Floats
from rca_llm.whatif.clock import Clock
from rca_llm.whatif.graph import Graph
from rca_llm.whatif.hand_overs import HAND_OVER
from rca_llm.whatif.waits import Wait
from rca_llm.whatif.work import Work


@dataclass(frozen=True)
class Replay:
    """New times: when each row of the work starts and ends, and what each rank's time becomes."""

    graph: Graph
    start: Floats
    end: Floats
    clocks: list[Clock]


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
    scale = change.scale
    if change.within is None or not len(pieces):
        return pieces, scale[pieces.label]
    edges = intervals.distinct(np.concatenate(change.within)) - base
    pieces = intervals.cut(pieces, edges)
    # Cut like this, every piece changes as a whole or not at all.
    return pieces, np.where(change.at(pieces.start, base), scale[pieces.label], 1.0)


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
        if change.merged:
            self.lag = np.where(self.lag > 0, self.lag * scaled, self.lag)
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
    """What becomes of every wait: of a synchronisation its factor, of an arrival its tokenising.

    One for a hand-over is as long as its work then takes, and gone with the hand-over.
    """
    waits, sync, text = graph.waits, CODE["scheduling.sync"], CODE["scheduling.tokenize"]
    part = np.array([text if wait.row < 0 else sync for wait in waits], np.int64)
    start = np.array([wait.until - wait.work if wait.row < 0 else wait.start for wait in waits])
    end = np.array([wait.until if wait.row < 0 else wait.end for wait in waits])
    if not len(waits):
        return []
    own = np.array([wait.hand_over for wait in waits])
    part = np.where(own, HAND_OVER, part)
    factor = change.factor(part, start, end, graph.base)
    found: list[float] = np.where(own & (factor > 0), 1.0, factor).tolist()
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
    own = work.part == HAND_OVER
    code = np.where(own, HAND_OVER, CODE["scheduling.launch"])
    factor = change.factor(code, work.start - np.maximum(lag, 0).astype(np.int64), work.start, base)
    return np.where((launching | own) & (lag > 0), lag * factor, lag)
