"""Runs a dependency graph with changed durations: what the times of a job become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rca_llm.attribute.parts import CODE
from rca_llm.table import Array, Ints, known
from rca_llm.whatif.change import Change, Floats
from rca_llm.whatif.clock import Clock
from rca_llm.whatif.graph import Graph
from rca_llm.whatif.hand_overs import HAND_OVER
from rca_llm.whatif.waits import Waits
from rca_llm.whatif.work import Work


@dataclass(frozen=True)
class Replay:
    """New times: when each row of the work ends, and what each rank's time becomes."""

    end: Floats
    clocks: list[Clock]


def replay(graph: Graph, change: Change) -> Replay:
    """Run the graph with the durations of some parts multiplied by a factor each."""
    moves = np.bincount(graph.waits.rank, minlength=len(graph.threads)).tolist()
    clocks = [
        Clock(*change.changed(pieces, graph.base), most)
        for pieces, most in zip(graph.threads, moves, strict=True)
    ]
    run = _Run(graph, change, clocks)
    run.go()
    return Replay(run.finish, clocks)


class _Run:
    """One replay: goes through waits, and work that depends on more than its stream, by time.

    Work that only follows its launch and the work before it on its stream is brought up to date a
    whole run at a time, when something asks for it: finish i is the greatest, over j up to i, of
    launch j and of all delays and durations from j to i.
    """

    def __init__(self, graph: Graph, change: Change, clocks: list[Clock]) -> None:
        work, base = graph.work, graph.base
        self.graph, self.clocks = graph, clocks
        factor = change.factor(work.part, work.start, work.end, base)
        self.lasting: Floats = (work.end - work.start) * factor
        self.rest = _after_arrival(work, factor)
        self.lag = _lags(work, change, base)
        if change.merged:
            self.lag = np.where(self.lag > 0, self.lag * factor, self.lag)
        self.total = np.cumsum(self.lag + self.lasting)
        self.ahead = self.total - self.lag - self.lasting
        # Scaled for all rows at once: a search for every stretch takes most of a replay.
        self.asked = np.where(known(work.called), work.called, work.start).astype(np.float64)
        told = known(work.called) | ((work.before < 0) & (work.other < 0))
        self.launched = np.where(told, _scaled(clocks, work.rank, self.asked), -np.inf)
        self.waits = _waits(graph, change, clocks)
        self.finish = np.zeros(len(work.start))
        self.first: list[int] = work.first.tolist()
        self.done = list(self.first)
        self.size: list[int] = np.bincount(work.group[work.group >= 0]).tolist()
        self.open: dict[int, list[tuple[int, float]]] = {}

    def go(self) -> None:
        """Everything in order; where times are equal, waits end before work starts."""
        special = self.graph.special
        starts = self.graph.work.start[special]
        due = np.searchsorted(starts, self.graph.waits.end, "left").tolist()
        rows: list[int] = special.tolist()
        at = 0
        for wait, until in zip(self.waits, due, strict=True):
            for row in rows[at:until]:
                self._special(row)
            self._wait(wait)
            at = until
        for row in rows[at:]:
            self._special(row)
        for chain, end in enumerate([*self.first[1:], len(self.finish)][: len(self.first)]):
            self._advance(chain, end)

    def _ready(self, rows: slice) -> Floats:
        """When the launches of some rows of one rank are done; minus infinity where unknown."""
        clock = self.clocks[int(self.graph.work.rank[rows.start])]
        return clock.shifted(self.asked[rows], self.launched[rows])

    def _advance(self, chain: int, until: int) -> None:
        """Bring a stream up to date, up to a row of it."""
        done = self.done[chain]
        if until <= done:
            return
        rows = slice(done, until)
        free = self._ready(rows) - self.ahead[rows]
        if done > self.first[chain]:
            free[0] = max(free[0], self.finish[done - 1] - self.ahead[done])
        self.finish[rows] = self.total[rows] + np.maximum.accumulate(free)
        self.done[chain] = until

    def _special(self, row: int) -> None:
        """A row that waits for another stream, or for other ranks."""
        work = self.graph.work
        chain, other = int(work.chain[row]), int(work.other[row])
        self._advance(chain, row)
        ready = float(self._ready(slice(row, row + 1))[0])
        if work.before[row] >= 0:
            ready = max(ready, float(self.finish[row - 1]))
        if other >= 0:
            self._advance(int(work.chain[other]), other + 1)
            ready = max(ready, float(self.finish[other]))
        begin = ready + float(self.lag[row])
        self.finish[row] = begin + self.lasting[row]
        self.done[chain] = max(self.done[chain], row + 1)
        if work.group[row] >= 0:
            self._meet(row, begin, int(work.group[row]))

    def _meet(self, row: int, begin: float, group: int) -> None:
        """The last rank to come lets the others of a collective go on."""
        rows = self.open.setdefault(group, [])
        rows.append((row, begin))
        if len(rows) == self.size[group]:
            arrived = max(begin for _, begin in rows)
            for one, begin in rows:
                self.finish[one] = max(arrived + self.rest[one], begin)
            del self.open[group]

    def _wait(self, wait: _Wait) -> None:
        """Move the clock of a rank at the end of a wait."""
        clock, idle = self.clocks[wait.rank], wait.row < 0
        wanted = self._admitted(wait, clock) if idle else self._freed(wait, clock)
        clock.move(wait.end, wait.ended, wanted, idle=idle)

    def _freed(self, wait: _Wait, clock: Clock) -> float:
        """When the thread goes on that waits for the device."""
        self._advance(wait.chain, wait.row + 1)
        here = wait.begun + clock.shift
        return here + wait.factor * max(float(self.finish[wait.row]) - here, 0.0) + wait.rest

    def _admitted(self, wait: _Wait, clock: Clock) -> float:
        """When a request is first worked for: when the thread is free and the request is there."""
        free = clock.shifted(np.array([wait.start]), np.array([wait.begun]))
        wanted = max(float(free[0]), wait.ready) + wait.rest
        return max(wanted, wait.ended + clock.shift) if clock.last == wait.end else wanted


class _Wait(NamedTuple):
    """A wait of a thread, with the scaled times of its start and end, `begun` and `ended`.

    `rest` is what the thread takes when that has come for which it waits: the end of a row of a
    stream, `chain`, until which it waits by a factor, or a request, which is there when `ready`.
    """

    rank: int
    row: int
    chain: int
    start: int
    end: int
    begun: float
    ended: float
    factor: float
    ready: float
    rest: float


def _waits(graph: Graph, change: Change, clocks: Sequence[Clock]) -> list[_Wait]:
    """The waits of a graph by their end."""
    waits, work = graph.waits, graph.work
    done = np.append(work.end, 0)[waits.row]
    begun, ended, done = (_scaled(clocks, waits.rank, t) for t in (waits.start, waits.end, done))
    factor = _wait_factors(waits, change, graph.base)
    ready = waits.until - (1 - factor) * waits.text
    served = waits.end - np.maximum(waits.start, waits.until)
    rest = np.where(waits.row < 0, served, ended - done)
    places = waits.rank, waits.row, np.append(work.chain, -1)[waits.row]
    columns = (*places, waits.start, waits.end, begun, ended, factor, ready, rest)
    return [_Wait(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _scaled(clocks: Sequence[Clock], rank: Ints, times: Array) -> Floats:
    """The scaled times of instants, each on the thread of its rank."""
    found = np.zeros(len(times))
    for number, clock in enumerate(clocks):
        rows = np.flatnonzero(rank == number)
        found[rows] = clock.scaled(times[rows])
    return found


def _wait_factors(waits: Waits, change: Change, base: int) -> Floats:
    """What becomes of every wait: of a synchronisation its factor, of an arrival its tokenising.

    One for a hand-over is as long as its work then takes, and gone with the hand-over.
    """
    idle = waits.row < 0
    part = np.where(idle, CODE["scheduling.tokenize"], CODE["scheduling.sync"])
    part = np.where(waits.hand_over, HAND_OVER, part)
    start = np.where(idle, waits.until - waits.text, waits.start)
    factor = change.factor(part, start, np.where(idle, waits.until, waits.end), base)
    whole = (waits.hand_over & (factor > 0)) | ~(waits.sync | idle)
    return np.where(whole, 1.0, factor)


def _after_arrival(work: Work, factor: Floats) -> Floats:
    """How long every collective lasts from its last arrival on."""
    rest = np.where(work.group >= 0, work.end - work.arrived, 0).astype(np.float64)
    return np.where(rest > 0, rest * factor, rest)


def _lags(work: Work, change: Change, base: int) -> Floats:
    """What delays each start beyond its dependencies; after a launch alone it is launching.

    But for what another process had the device: that is waiting for it, whatever came before.
    """
    lag, rows = (work.lag - work.held).astype(np.float64), work.launching
    own = work.part[rows] == HAND_OVER
    code = np.where(own, HAND_OVER, CODE["scheduling.launch"])
    start = work.start[rows]
    lag[rows] *= change.factor(code, start - work.lag[rows], start, base)
    held = np.flatnonzero(work.held)
    code, start = np.full(len(held), CODE["scheduling.queue"]), work.start[held]
    lag[held] += work.held[held] * change.factor(code, start - work.held[held], start, base)
    return lag
