"""Which engine step every launch, and the device work that it started, belongs to.

Steps overlap under asynchronous scheduling: step k + 1 is scheduled while the device still works
for step k. So a launch belongs to the step whose number the spans of the launching thread carry,
and only where none does to the step that began last. Where calls were not recorded, the time at
which the host queued a kernel stands for its launch, of a thread that is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import Links, among
from rca_llm.attribute.steps import NO_STEP, Steps
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Ints, Mask, Table, known
from rca_llm.trace import GRAPH, KERNEL, Timeline


@dataclass(frozen=True)
class StepWork:
    """The steps of a rank and what belongs to each; steps are rows of the recording's `Steps`."""

    rows: Ints
    """The steps that the rank runs."""
    of_call: Ints
    """The step of every `api` row, `NO_STEP` for none."""
    of_gpu: Ints
    """The step of every `gpu` row, `NO_STEP` for none."""
    end: Ints
    """The end of every step of the recording, its kernels on this rank included, ns."""


def find(timeline: Timeline, links: Links, steps: Steps, rows: Ints, mine: Mask) -> StepWork:
    """Assign calls and device work to the steps `rows`; `mine` are the rank's `gpu` rows."""
    of_call = of_calls(timeline, steps, rows)
    of_gpu = np.where(mine, of_work(timeline, links, steps, rows, of_call), NO_STEP)
    return StepWork(rows, of_call, of_gpu, extended(steps, timeline["gpu"], of_gpu))


def of_calls(timeline: Timeline, steps: Steps, rows: Ints) -> Ints:
    """The step of every `api` row.

    A call within a span that carries a step's number belongs to that step; one between two such
    spans to the earlier. Where the thread has no such spans those of its process count, and where
    that has none, the step that began last. Calls before the first step and after all have ended
    belong to none.
    """
    api = timeline["api"]
    launches = _Launches(api["process"], api["thread"], api["start"])
    return _of_launches(timeline["ranges"], steps, rows, launches)


@dataclass(frozen=True)
class _Launches:
    """When launches were called, and where; `thread` is `UNKNOWN` where nobody says."""

    process: Ints
    thread: Ints
    start: Ints


def _of_launches(ranges: Table, steps: Steps, rows: Ints, launches: _Launches) -> Ints:
    found = _by_time(steps, rows, launches.start)
    spans = _numbered(ranges, steps, rows) if len(found) else None
    if spans is None or not len(spans.step):
        return found
    late = launches.start > max(steps.end[rows].max(), spans.end.max())
    for process in np.unique(spans.process).tolist():
        calls = np.flatnonzero((launches.process == process) & ~late)
        if len(calls):
            _by_spans(found, spans.of_process(process), launches, calls)
    return found


@dataclass(frozen=True)
class _Spans:
    """Spans that carry the number of a step, `step` its row."""

    process: Ints
    thread: Ints
    start: Ints
    end: Ints
    step: Ints

    def take(self, rows: Ints | Mask) -> _Spans:
        columns = (self.process, self.thread, self.start, self.end, self.step)
        return _Spans(*(column[rows] for column in columns))

    def of_process(self, process: int) -> _Spans:
        return self.take(self.process == process)

    @property
    def innermost(self) -> Pieces:
        return intervals.innermost_wins(self.start, self.end).relabel(self.step)


def _numbered(ranges: Table, steps: Steps, rows: Ints) -> _Spans:
    chosen = np.flatnonzero(known(ranges["step"]) & known(ranges["start"]))
    start = ranges["start"][chosen]
    end = np.where(known(ranges["end"][chosen]), ranges["end"][chosen], start + 1)
    step = _by_number(steps, rows, ranges["step"][chosen], start)
    found = _Spans(ranges["process"][chosen], ranges["thread"][chosen], start, end, step)
    return found.take((step != NO_STEP) & (found.end > start))


def _by_spans(found: Ints, spans: _Spans, launches: _Launches, calls: Ints) -> None:
    """Write the step of some calls of a process into `found`, by the spans of that process."""
    _write(found, spans.innermost, launches.start, calls)
    for thread in np.unique(spans.thread).tolist():
        own = calls[launches.thread[calls] == thread]
        _write(found, spans.take(spans.thread == thread).innermost, launches.start, own)


def _write(found: Ints, told: Pieces, start: Ints, calls: Ints) -> None:
    """Of each call the last piece that began by then, covering it or over; none: as it is."""
    place = np.searchsorted(told.start, start[calls], "right") - 1
    later = place >= 0
    found[calls[later]] = told.label[place[later]]


def of_work(timeline: Timeline, links: Links, steps: Steps, rows: Ints, of_call: Ints) -> Ints:
    """The step of every `gpu` row: the record's own, else its launch's, else by its own start."""
    gpu = timeline["gpu"]
    if not len(rows) or not len(gpu):
        return np.full(len(gpu), NO_STEP, np.int64)
    found = _by_time(steps, rows, gpu["start"])
    launched = links.api_row >= 0
    found[launched] = links.of_api(of_call, NO_STEP)[launched]
    queued = np.flatnonzero(known(gpu["queued"]) & ~launched)
    found[queued] = _of_queued(timeline, steps, rows, queued)
    stated = known(gpu["step"])
    return np.where(stated, _by_number(steps, rows, gpu["step"], gpu["start"]), found)


def _of_queued(timeline: Timeline, steps: Steps, rows: Ints, queued: Ints) -> Ints:
    """The step of some `gpu` rows by when they were queued."""
    gpu = timeline["gpu"]
    thread = np.full(len(queued), UNKNOWN, np.int64)
    launches = _Launches(gpu["process"][queued], thread, gpu["queued"][queued])
    return _of_launches(timeline["ranges"], steps, rows, launches)


def _by_time(steps: Steps, rows: Ints, time: Ints) -> Ints:
    """The step that began last at each time; none before the first and after all have ended."""
    if not len(rows):
        return np.full(len(time), NO_STEP, np.int64)
    place = np.searchsorted(steps.start[rows], time, "right") - 1
    inside = (place >= 0) & (time <= steps.end[rows].max())
    return np.where(inside, rows[np.maximum(place, 0)], NO_STEP)


def _by_number(steps: Steps, rows: Ints, ids: Ints, time: Ints) -> Ints:
    """The step with each id; of several (an engine that was started anew), the last one begun.

    A record earlier than all of them belongs to the first: clocks of processes differ a little.
    """
    if not len(rows) or not len(ids):
        return np.full(len(ids), NO_STEP, np.int64)
    order = rows[np.lexsort([steps.start[rows], steps.id[rows]])]
    first = np.searchsorted(steps.id[order], ids, "left")
    last = _last_before(steps.id[order], steps.start[order], ids, time)
    place = np.minimum(np.maximum(first, last), len(order) - 1)
    return np.where(steps.id[order[place]] == ids, order[place], NO_STEP)


def _last_before(id: Ints, start: Ints, ids: Ints, time: Ints) -> Ints:
    """Of pairs in ascending order, the last that is at most (ids, time); -1 where there is none."""
    asked = np.concatenate([np.zeros(len(id), bool), np.ones(len(ids), bool)])
    order = np.lexsort([asked, np.concatenate([start, time]), np.concatenate([id, ids])])
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(~asked[order]) - 1
    return found[len(id) :]


def extended(steps: Steps, gpu: Table, of_gpu: Ints) -> Ints:
    """The end of every step, its last kernel, or graph replay in one piece, included."""
    kernels = among(gpu["kind"], [KERNEL, GRAPH]) & (of_gpu >= 0) & known(gpu["start"])
    end = np.array(steps.end, np.int64)
    np.maximum.at(end, of_gpu[kernels], gpu["end"][kernels])
    return end
