"""Thread states from what the scheduler counted between two looks at a thread.

The kernel's schedstat says how long a thread has run and how long it was ready but waited for a
processor, not when. Between two looks the order is therefore an estimate: first the wait, then the
run, then neither. Where looks are at most `FINE_NS` apart an instant is wrong by no more than that;
where they are further apart states are kept only where together they fill nearly all of the time
between them.

System calls that the interposer timed are no estimate. They keep their time, and what was counted
is laid into the time that they leave free: a thread that runs or waits inside of a call stays in
it. Blocked time in which pages of files had to be read is told apart as page faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rca_llm import intervals
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, Mask, Strings, Table
from rca_llm.trace import RANGES, STATES

FINE_NS = 25_000_000
NEARLY_ALL = 0.9
SHORTEST_NS = 100_000
"""Shorter states are left out: they explain nothing and would be most of the rows."""
LONGEST_FAULT_NS = 20_000_000
"""More than reading one page takes: blocked time beyond it has another reason."""

FAULT_KIND, FAULT_NAME = "page_fault", "page faults"


class Looks(NamedTuple):
    """The looks at one thread, by time: what was counted up to each."""

    time: Ints
    on_cpu: Ints
    """ns on a CPU."""
    delay: Ints
    """ns ready but without a CPU."""
    faults: Ints
    """Major page faults, -1 where the look did not say."""
    kernel: Ints
    """µs on a CPU in the kernel, modulo 2^32; nothing where `faults` is -1."""


Spans = tuple[Ints, Ints]
"""Starts and ends of disjoint, ascending intervals, ns."""

NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))

Key = tuple[int, int]
"""A thread: its process and its own id."""


@dataclass(frozen=True)
class Known:
    """What is known of threads beside the looks at them.

    `calls` are the system calls of each thread, `throttled` when the quota of the run's cgroups
    kept threads from running.
    """

    calls: Mapping[Key, Spans] = field(default_factory=dict[Key, Spans])
    throttled: Spans = NO_SPANS


@dataclass(frozen=True)
class _Between:
    """The stretches between the looks at a thread, in its free time: ns of each kind, in order.

    `faulted` is the time in which pages were read: blocked, or at work in the kernel.
    """

    begin: Ints
    waited: Ints
    ran: Ints
    faulted: Ints


def states(looks: Mapping[Key, Looks], strings: Strings, known: Known | None = None) -> Table:
    """Rows of `states` for threads by (process, thread)."""
    known = known or Known()
    parts = [_thread(key, found, strings, known) for key, found in looks.items()]
    columns = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    )
    return Table(STATES, columns)


def faults(looks: Mapping[Key, Looks], strings: Strings, known: Known) -> Table:
    """Rows of `ranges` for the time in which threads waited for pages of files."""
    parts: list[Table] = []
    for key, found in looks.items():
        free = _Free(known.calls.get(key, NO_SPANS))
        between = _between(found, free)
        rows = np.flatnonzero(between.faulted >= SHORTEST_NS)
        start = (between.begin + between.waited + between.ran)[rows]
        placed = free.placed(start, start + between.faulted[rows], np.zeros(len(rows), np.int64))
        parts.append(_fault_rows(key, placed, strings))
    columns = {name: np.concatenate([p[name] for p in parts]) for name in RANGES} if parts else {}
    return Table(RANGES, columns)


def _fault_rows(key: Key, placed: Pieces, strings: Strings) -> Table:
    def all_of(value: int) -> Ints:
        return np.full(len(placed), value, np.int64)

    return Table(
        RANGES,
        {
            "start": placed.start,
            "end": placed.end,
            "name": all_of(strings.code(FAULT_NAME)),
            "kind": all_of(strings.code(FAULT_KIND)),
            "domain": all_of(strings.code("osrt")),
            "process": all_of(key[0]),
            "thread": all_of(key[1]),
        },
    )


def totals(looks: Mapping[Key, Looks]) -> list[dict[str, Any]]:
    """What each thread did in the time it was watched, in ns, the busiest first.

    `blocked_ns` is the rest: neither on a CPU nor waiting for one. `major_faults` is None where no
    look said.
    """
    rows: list[dict[str, Any]] = []
    for (process, thread), (time, on_cpu, delay, pages, _) in looks.items():
        span, ran = int(time[-1] - time[0]), max(int(on_cpu[-1] - on_cpu[0]), 0)
        waited = max(int(delay[-1] - delay[0]), 0)
        told = pages[pages >= 0]
        rows.append(
            {
                "process": process,
                "thread": thread,
                "span_ns": span,
                "on_cpu_ns": ran,
                "run_queue_ns": waited,
                "blocked_ns": max(span - ran - waited, 0),
                "major_faults": int(told[-1] - told[0]) if len(told) else None,
            }
        )
    return sorted(rows, key=lambda row: -row["on_cpu_ns"])


class _Free:
    """A thread's time outside of its system calls, which runs on while they last.

    `spans` are disjoint and ascending.
    """

    def __init__(self, spans: Spans) -> None:
        self.start, self.end = spans
        self._before = np.concatenate([[0], np.cumsum(self.end - self.start)]).astype(np.int64)
        self._at = self.start - self._before[:-1]

    def of(self, time: Ints) -> Ints:
        """The free time at instants."""
        place = np.searchsorted(self.start, time, "right")
        inside = np.where(place > 0, np.append(self.end, 0)[place - 1] - time, 0)
        return time - self._before[place] + np.maximum(inside, 0)

    def placed(self, start: Ints, end: Ints, label: Ints) -> Pieces:
        """Stretches of free time as instants, cut where calls come in between."""
        begin = start + self._before[np.searchsorted(self._at, start, "right")]
        stop = end + self._before[np.searchsorted(self._at, end, "left")]
        pieces = Pieces(begin, stop, label)
        if not len(self.start) or not len(begin):
            return pieces
        pieces = intervals.cut(pieces, intervals.distinct(np.concatenate([self.start, self.end])))
        calls = Pieces(self.start, self.end, np.zeros(len(self.start), np.int64))
        return pieces.take(np.flatnonzero(intervals.at(calls, pieces.start) < 0))


def _between(looks: Looks, free: _Free) -> _Between:
    on_cpu, delay = _up_to_date(looks.time, looks.on_cpu, looks.delay)
    begin = free.of(looks.time)
    span = np.diff(begin)
    ran = np.clip(np.diff(on_cpu), 0, span)
    waited = np.clip(np.diff(delay), 0, span - ran)
    fine = np.diff(looks.time) <= FINE_NS
    pages = np.where(fine, _new_faults(looks.faults), 0)
    worked = np.minimum(_fault_work(looks, pages), ran)
    blocked = np.minimum(span - ran - waited, pages * LONGEST_FAULT_NS)
    return _Between(begin[:-1], waited, ran - worked, worked + blocked)


def _fault_work(looks: Looks, pages: Ints) -> Ints:
    """Time on the CPU that reading pages took between looks, ns: an estimate.

    The kernel counts its share of a thread's time by ticks, and tells of it less often than we
    look. What it tells is shared among the stretches since it last did, by their faults.
    """
    known = np.flatnonzero(looks.faults >= 0)
    known = known[np.concatenate([[True], np.diff(looks.kernel[known]) != 0])[: len(known)]]
    if len(known) < 2:
        return np.zeros(len(pages), np.int64)
    grown = (np.diff(looks.kernel[known]) % (1 << 32)) * 1000
    group = np.searchsorted(known, np.arange(len(pages)), "right") - 1
    inside = (group >= 0) & (group < len(grown))
    group = np.where(inside, group, -1)
    of_group = intervals.sum_by(group, pages, len(grown))
    share = pages / np.maximum(of_group[group], 1) * grown[group]
    return np.where(inside, share, 0).astype(np.int64)


def _up_to_date(time: Ints, on_cpu: Ints, delay: Ints) -> tuple[Ints, Ints]:
    """Both counters as they stood at each look.

    The kernel adds time on the CPU at ticks, and a wait when it ends. What a later look brings that
    does not fit into the time between was there before.
    """
    waits = _latest(delay - time) + time
    runs = _latest(on_cpu + waits - time) + time - waits
    return runs, waits


def _latest(values: Ints) -> Ints:
    """For each the greatest from there on."""
    return np.asarray(np.maximum.accumulate(values[::-1])[::-1], np.int64)


def _new_faults(pages: Ints) -> Ints:
    """How many major faults came between two looks; those that did not say saw no new ones."""
    said = np.flatnonzero(pages >= 0)
    if not len(said):
        return np.zeros(max(len(pages) - 1, 0), np.int64)
    last = said[np.maximum(np.searchsorted(said, np.arange(len(pages)), "right") - 1, 0)]
    return np.clip(np.diff(pages[last]), 0, None)


def _thread(key: Key, looks: Looks, strings: Strings, known: Known) -> dict[str, Ints]:
    free = _Free(known.calls.get(key, NO_SPANS))
    between = _between(looks, free)
    apart, told = np.diff(looks.time), between.waited + between.ran
    waits, runs = _kept(apart, told, between.waited), _kept(apart, told, between.ran)
    ready = between.begin + between.waited
    start = np.concatenate([between.begin[waits], ready[runs]])
    end = np.concatenate([ready[waits], (ready + between.ran)[runs]])
    state = np.repeat([RUNNABLE, RUNNING], [waits.sum(), runs.sum()])
    order = np.argsort(start, kind="stable")
    placed = _throttled(free.placed(start[order], end[order], state[order]), known.throttled)
    codes = np.array([strings.code(name) for name in _NAMES])
    return {
        "process": np.full(len(placed), key[0]),
        "thread": np.full(len(placed), key[1]),
        "start": placed.start,
        "end": placed.end,
        "state": codes[placed.label],
    }


RUNNABLE, RUNNING, THROTTLED = range(3)
_NAMES = ("runnable", "running", "throttled")


def _throttled(pieces: Pieces, spans: Spans) -> Pieces:
    """Waits for a CPU that a throttling touches are due to it."""
    if not len(spans[0]) or not len(pieces):
        return pieces
    due = intervals.touching(pieces.start, pieces.end, spans) & (pieces.label == RUNNABLE)
    return Pieces(pieces.start, pieces.end, np.where(due, THROTTLED, pieces.label))


BETWEEN_READINGS_NS = 20_000_000
"""How long before a reading a throttling that it counts may have begun."""


def throttled_spans(time: Ints, total: Ints, least: int) -> Spans:
    """When a quota kept threads from running, from readings of how long, ns, or how often.

    The kernel adds the time when a throttling ends, so the time before a reading is taken; where
    only the number is known (`least` > 0), at least so much.
    """
    grown = np.diff(total)
    rows = np.flatnonzero(grown > 0)
    before = np.full(len(rows), least) if least else grown[rows]
    return intervals.union(time[1:][rows] - before, time[1:][rows])


def _kept(apart: Ints, told: Ints, part: Ints) -> Mask:
    fine = (apart <= FINE_NS) | (told >= NEARLY_ALL * apart)
    return np.asarray(fine & (part >= SHORTEST_NS))
