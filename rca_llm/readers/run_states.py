"""Thread states from what the scheduler counted between two looks at a thread.

The kernel's schedstat says how long a thread has run and how long it was ready but waited for a
processor, not when. A thread that begins or ends a span runs at that instant, so what was counted
between two looks is shared out evenly among the pieces between such instants, and in each the order
is an estimate: first the wait, then the run, then neither. Where looks are at most `FINE_NS` apart
an instant is wrong by no more than that, and between looks of the thread itself the sums are exact;
where others are further apart states are kept only where together they fill nearly all of the time
between them, and waits where they fill half of it.

System calls that the interposer timed are no estimate. They keep their time, and what was counted
is laid into the time that they leave free: a thread that runs or waits inside of a call stays in
it. Waits for the GIL are told apart further. What was waited for a CPU and does not fit into the
free time was waited inside of calls, and a thread that is given the lock then waits for a CPU: that
is the end of such a wait. Blocked time in which pages of files had to be read is told apart as page
faults.
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
NEAR_NS = 100_000_000
"""Between two looks of the thread itself that are no further apart, others add nothing."""
NEARLY_ALL, HALF = 0.9, 0.5
SHORTEST_NS = 100_000
"""Less of a state between two looks is left out: it explains nothing and would be most rows."""
LEAST_NS = 5_000
"""The same of a piece between two looks."""
LONGEST_FAULT_NS = 20_000_000
"""More than reading one page takes: blocked time beyond it has another reason."""

MOSTLY_FAULTS = 1.5
"""A stretch that ran no longer than so many times the work of its faults did nothing else: how long
one takes differs by as much with the load of the machine."""

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
    own: Mask
    """Whether the thread itself looked: it ran then, so no wait goes on over such a look."""


Spans = tuple[Ints, Ints]
"""Starts and ends of disjoint, ascending intervals, ns."""

NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))
NO_EDGES: Ints = np.empty(0, np.int64)

Key = tuple[int, int]
"""A thread: its process and its own id."""


@dataclass(frozen=True)
class Known:
    """What is known of threads beside the looks at them.

    `calls` are the system calls of each thread, `locks` its waits for the GIL, which are among
    them, `edges` when its records begin and end, in order; `throttled` is when the quota of the
    run's cgroups kept threads from running, `fault_work` the CPU time that a page fault takes at
    least, ns, where that was measured.
    """

    calls: Mapping[Key, Spans] = field(default_factory=dict[Key, Spans])
    locks: Mapping[Key, Spans] = field(default_factory=dict[Key, Spans])
    edges: Mapping[Key, Ints] = field(default_factory=dict[Key, Ints])
    throttled: Spans = NO_SPANS
    fault_work: int = 0


@dataclass(frozen=True)
class _Between:
    """The stretches between the looks at a thread, in its free time: ns of each kind, in order.

    `span` is all of the free time, `inside` what was waited for a CPU outside of it; `faulted` is
    the time in which pages were read: blocked, or at work in the kernel.
    """

    begin: Ints
    span: Ints
    inside: Ints
    waited: Ints
    ran: Ints
    faulted: Ints


def states(looks: Mapping[Key, Looks], strings: Strings, known: Known | None = None) -> Table:
    """Rows of `states` for threads by (process, thread)."""
    known = known or Known()
    parts = [_thread(key, _sharp(found), strings, known) for key, found in looks.items()]
    columns = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    )
    return Table(STATES, columns)


def faults(looks: Mapping[Key, Looks], strings: Strings, known: Known) -> Table:
    """Rows of `ranges` for the time in which threads waited for pages of files."""
    parts: list[Table] = []
    for key, found in looks.items():
        free = _Free(known.calls.get(key, NO_SPANS))
        between = _between(_sharp(found), free, known.fault_work)
        told = between.faulted >= SHORTEST_NS
        never = np.zeros(len(told), bool)
        laid = _laid(between, free.of(known.edges.get(key, NO_EDGES)), (never, never, told))
        parts.append(_fault_rows(key, free.placed(laid), strings))
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
    for (process, thread), (time, on_cpu, delay, pages, _, _) in looks.items():
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


def _sharp(looks: Looks) -> Looks:
    """The looks without those from outside that lie between near looks of the thread itself.

    The latter are exact, and taken wherever a span begins or ends; from outside a counter is seen
    up to some milliseconds late.
    """
    own = np.flatnonzero(looks.own)
    every = np.arange(len(looks.time))
    after = np.searchsorted(own, every)
    enclosed = (after > 0) & (after < len(own)) & ~looks.own
    row = np.where(enclosed, after, 0)
    near = np.zeros(len(every), bool)
    if len(own):
        near = looks.time[own[row]] - looks.time[own[row - 1]] <= NEAR_NS
    kept = ~(enclosed & near)
    time, on_cpu, delay, faults, kernel = (column[kept] for column in looks[:5])
    return Looks(time, on_cpu, delay, faults, kernel, looks.own[kept])


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

    def placed(self, laid: Pieces) -> Pieces:
        """Pieces of free time as instants, cut where calls come in between."""
        start, end, label = laid.start, laid.end, laid.label
        begin = start + self._before[np.searchsorted(self._at, start, "right")]
        stop = end + self._before[np.searchsorted(self._at, end, "left")]
        pieces = Pieces(begin, stop, label)
        if not len(self.start) or not len(begin):
            return pieces
        pieces = intervals.cut(pieces, intervals.distinct(np.concatenate([self.start, self.end])))
        calls = Pieces(self.start, self.end, np.zeros(len(self.start), np.int64))
        return pieces.take(np.flatnonzero(intervals.at(calls, pieces.start) < 0))


def _between(looks: Looks, free: _Free, fault_work: int) -> _Between:
    on_cpu, delay = _up_to_date(looks.time, looks.on_cpu, looks.delay)
    begin = free.of(looks.time)
    span = np.diff(begin)
    ran = np.clip(np.diff(on_cpu), 0, span)
    delayed = np.maximum(np.diff(delay), 0)
    waited = np.minimum(delayed, span - ran)
    pages = np.where(_fine(looks), _new_faults(looks.faults, span - waited), 0)
    worked = np.maximum(_fault_work(looks, pages), pages * fault_work)
    worked = np.where(ran <= MOSTLY_FAULTS * worked, ran, worked)
    blocked = np.minimum(span - ran - waited, pages * LONGEST_FAULT_NS)
    inside, waited = _settled(delayed - waited, waited, span - ran - blocked, looks.own)
    return _Between(begin[:-1], span, inside, waited, ran - worked, worked + blocked)


def _settled(inside: Ints, waited: Ints, room: Ints, own: Mask) -> tuple[Ints, Ints]:
    """Waits inside of calls and beside them, where both are known: between two own looks.

    A wait is counted when it is over, so one that goes on over a look from outside shows too late,
    where it may find no room beside the calls. Its thread was in no call while there is room.
    """
    part, known = np.cumsum(own[:-1]), _enclosed(own)
    room = np.where(known, room - waited, 0)
    excess, free = (intervals.sum_by(part, v, int(part.max(initial=0)) + 1) for v in (inside, room))
    moved = np.minimum(excess, free)
    given = room * (moved / np.maximum(free, 1))[part]
    taken = np.where(known, inside * (moved / np.maximum(excess, 1))[part], 0)
    return inside - taken.astype(np.int64), waited + given.astype(np.int64)


def _fault_work(looks: Looks, pages: Ints) -> Ints:
    """Time on the CPU that reading pages took between looks, ns: an estimate.

    The kernel counts its share of a thread's time by ticks of some milliseconds, which say nothing
    of one stretch. What it counted in all stretches with faults is shared out by their faults. That
    is too little where ticks wake others: then what a fault was measured to take is more.
    """
    known = np.flatnonzero(looks.faults >= 0)
    if len(known) < 2 or not pages.any():
        return np.zeros(len(pages), np.int64)
    # A look from outside is told in hundredths of a second, one of the thread itself in µs.
    steps = (np.diff(looks.kernel[known]) + (1 << 31)) % (1 << 32) - (1 << 31)
    counted = np.maximum.accumulate(np.concatenate([[0], np.cumsum(steps)])) * 1000
    # A count that did not move waits for the next tick: the time up to then belongs together.
    moved = np.flatnonzero(np.concatenate([[True], np.diff(counted) > 0]))
    group = np.searchsorted(known[moved], np.arange(len(pages)), "right") - 1
    of_group = intervals.sum_by(group, pages, len(moved))[:-1]
    grown = np.diff(counted[moved])[of_group > 0]
    each = grown.sum() / max(int(of_group.sum()), 1)
    return np.asarray(pages * each, np.float64).astype(np.int64)


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


def _new_faults(pages: Ints, active: Ints) -> Ints:
    """How many major faults came between two looks.

    Between looks that said how many there were, they are shared out by the time in which the thread
    did not wait for a CPU (`active`).
    """
    said = np.flatnonzero(pages >= 0)
    if len(said) < 2:
        return np.zeros(max(len(pages) - 1, 0), np.int64)
    grown = np.maximum(np.diff(pages[said]), 0)
    sums = np.concatenate([[0], np.cumsum(active)])
    every = np.arange(len(pages))
    row = np.clip(np.searchsorted(said, every, "right") - 1, 0, len(grown) - 1)
    first, length = sums[said[row]], (sums[said[row + 1]] - sums[said[row]])
    share = np.clip((sums - first) / np.maximum(length, 1), 0.0, 1.0)
    total = np.concatenate([[0], np.cumsum(grown)])[row] + (grown[row] * share).astype(np.int64)
    return np.asarray(np.diff(total), np.int64)


def _thread(key: Key, looks: Looks, strings: Strings, known: Known) -> dict[str, Ints]:
    free = _Free(known.calls.get(key, NO_SPANS))
    between = _between(looks, free, known.fault_work)
    waits, runs = _kept(looks, between)
    edges = free.of(known.edges.get(key, NO_EDGES))
    placed = free.placed(_laid(between, edges, (waits, runs, np.zeros(len(waits), bool))))
    placed = _joined(placed, _in_locks(looks, between, known.locks.get(key, NO_SPANS)))
    placed = _throttled(placed, known.throttled)
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


def _kept(looks: Looks, between: _Between) -> tuple[Mask, Mask]:
    """The stretches whose waits are told, and those whose runs are."""
    waited, ran, span = between.waited, between.ran, between.span
    fine = _fine(looks) | (waited + ran >= NEARLY_ALL * span)
    mostly = fine | (waited >= HALF * span)
    return np.asarray(mostly & (waited >= SHORTEST_NS)), np.asarray(fine & (ran >= SHORTEST_NS))


def _laid(between: _Between, edges: Ints, told: tuple[Mask, Mask, Mask]) -> Pieces:
    """Waits, runs and faults in free time: of each stretch an even share to every piece of it.

    `edges` are free times that cut stretches into pieces, `told` says of which stretches each is
    told.
    """
    begin, span = between.begin, between.span
    if not len(begin):
        return intervals.EMPTY
    last = begin[-1:] + span[-1:]
    edges = edges[(edges > begin[0]) & (edges < last)]
    times = intervals.distinct(np.concatenate([begin, last, edges]))
    at, stop = times[:-1], times[1:]
    row = np.searchsorted(begin, at, "right") - 1
    first, second = at - begin[row], stop - begin[row]
    found: list[Pieces] = []
    for label, counted in enumerate((between.waited, between.ran, between.faulted)):
        share = counted[row] / span[row]
        until = np.minimum(
            at + (second * share).astype(np.int64) - (first * share).astype(np.int64), stop
        )
        rows = np.flatnonzero(told[label][row] & (until - at >= LEAST_NS))
        found.append(Pieces(at[rows], until[rows], np.full(len(rows), label, np.int64)))
        at = until
    return intervals.join(_joined(_joined(found[0], found[1]), found[2]))


def _fine(looks: Looks) -> Mask:
    """The stretches in which an instant can be told: short ones, and those of one step."""
    return np.asarray((np.diff(looks.time) <= FINE_NS) | _enclosed(looks.own))


def _enclosed(own: Mask) -> Mask:
    """The stretches with a look of the thread itself on either side, near or far."""
    before = np.cumsum(own)
    return np.asarray((before[:-1] > 0) & (before[:-1] < before[-1:]))


def _in_locks(looks: Looks, between: _Between, locks: Spans) -> Pieces:
    """The ends of waits for the GIL that were waits for a CPU.

    What was waited inside of the calls between two looks is shared out by their lengths.
    """
    start, end = locks
    waits = Pieces(start, end, np.zeros(len(start), np.int64))
    if not len(waits) or not len(between.inside):
        return waits.take(np.empty(0, np.int64))
    waits = intervals.cut(waits, intervals.distinct(looks.time))
    row = np.searchsorted(looks.time, waits.start, "right") - 1
    known = (row >= 0) & (row < len(between.inside))
    row = np.where(known, row, 0)
    in_calls = np.maximum(np.diff(looks.time) - between.span, 1)
    share = np.minimum(between.inside / in_calls, 1.0)[row]
    waited = ((waits.end - waits.start) * share).astype(np.int64)
    kept = np.flatnonzero(known & (waited >= SHORTEST_NS))
    begin, stop = waits.end[kept] - waited[kept], waits.end[kept]
    return Pieces(begin, stop, np.full(len(kept), RUNNABLE, np.int64))


def _joined(one: Pieces, other: Pieces) -> Pieces:
    """Two sets of disjoint pieces as one, by time."""
    columns = zip(
        (one.start, one.end, one.label), (other.start, other.end, other.label), strict=True
    )
    both = Pieces(*(np.concatenate(pair) for pair in columns))
    return both.take(np.argsort(both.start, kind="stable"))
