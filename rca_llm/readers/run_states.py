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
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.intervals import Pieces
from rca_llm.readers.run_counted import Between, Looks, fine, sharp, stretches
from rca_llm.readers.run_free import NO_SPANS, Free, Spans
from rca_llm.table import Ints, Mask, Strings, Table
from rca_llm.trace import RANGES, STATES

NEARLY_ALL, HALF = 0.9, 0.5
SHORTEST_NS = 100_000
"""Less of a state between two looks is left out: it explains nothing and would be most rows."""
LEAST_NS = 5_000
"""The same of a piece between two looks."""
FAULT_KIND, FAULT_NAME = "page_fault", "page faults"

NO_EDGES: Ints = np.empty(0, np.int64)

Key = tuple[int, int]
"""A thread: its process and its own id."""


@dataclass(frozen=True)
class Known:
    """What is known of threads beside the looks at them.

    `calls` are the system calls of each thread, `locks` its waits for the GIL, which are among
    them, `edges` when its records begin and end, in order; `throttled` is when the quota of the
    run's cgroups kept threads from running, `fault_work` the CPU time that a page fault takes at
    least, ns, where that was measured. `cpus` are the times of looks that said on which CPU a
    thread had run last, and which.
    """

    calls: Mapping[Key, Spans] = field(default_factory=dict[Key, Spans])
    locks: Mapping[Key, Spans] = field(default_factory=dict[Key, Spans])
    edges: Mapping[Key, Ints] = field(default_factory=dict[Key, Ints])
    throttled: Spans = NO_SPANS
    fault_work: int = 0
    cpus: Mapping[Key, tuple[Ints, Ints]] = field(default_factory=dict[Key, tuple[Ints, Ints]])


def states(looks: Mapping[Key, Looks], strings: Strings, known: Known | None = None) -> Table:
    """Rows of `states` for threads by (process, thread)."""
    known = known or Known()
    parts = [_thread(key, sharp(found), strings, known) for key, found in looks.items()]
    columns = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    )
    return Table(STATES, columns)


def faults(looks: Mapping[Key, Looks], strings: Strings, known: Known) -> Table:
    """Rows of `ranges` for the time in which threads waited for pages of files."""
    parts: list[Table] = []
    for key, found in looks.items():
        free = Free(known.calls.get(key, NO_SPANS))
        between = stretches(sharp(found), free, known.fault_work)
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


def _thread(key: Key, looks: Looks, strings: Strings, known: Known) -> dict[str, Ints]:
    free = Free(known.calls.get(key, NO_SPANS))
    between = stretches(looks, free, known.fault_work)
    waits, runs = _kept(looks, between)
    edges = free.of(known.edges.get(key, NO_EDGES))
    placed = free.placed(_laid(between, edges, (waits, runs, np.zeros(len(waits), bool))))
    placed = _joined(placed, _in_locks(looks, between, known.locks.get(key, NO_SPANS)))
    placed = _throttled(placed, known.throttled)
    placed, cpu = _on_cpus(placed, known.cpus.get(key, (NO_EDGES, NO_EDGES)))
    codes = np.array([strings.code(name) for name in _NAMES])
    return {
        "process": np.full(len(placed), key[0]),
        "thread": np.full(len(placed), key[1]),
        "start": placed.start,
        "end": placed.end,
        "state": codes[placed.label],
        "cpu": cpu,
    }


def _on_cpus(pieces: Pieces, looks: tuple[Ints, Ints]) -> tuple[Pieces, Ints]:
    """Pieces cut where another CPU was seen, and the CPU of those that ran; -1 where unknown.

    A look tells on which CPU a thread ran last, so it holds for the time before it.
    """
    time, cpu = looks
    if not len(time) or not len(pieces):
        return pieces, np.full(len(pieces), -1, np.int64)
    pieces = intervals.cut(pieces, time[:-1][cpu[1:] != cpu[:-1]])
    found = np.append(cpu, -1)[np.searchsorted(time, pieces.start, "right")]
    return pieces, np.where(pieces.label == RUNNING, found, -1)


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


def _kept(looks: Looks, between: Between) -> tuple[Mask, Mask]:
    """The stretches whose waits are told, and those whose runs are."""
    waited, ran, span = between.waited, between.ran, between.span
    sure = fine(looks) | (waited + ran >= NEARLY_ALL * span)
    mostly = sure | (waited >= HALF * span)
    return np.asarray(mostly & (waited >= SHORTEST_NS)), np.asarray(sure & (ran >= SHORTEST_NS))


def _laid(between: Between, edges: Ints, told: tuple[Mask, Mask, Mask]) -> Pieces:
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


def _in_locks(looks: Looks, between: Between, locks: Spans) -> Pieces:
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
