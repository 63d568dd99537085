"""What a request does while threads work for other requests, which explains none of its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.codes import WORK
from rca_llm.attribute.computing import Computing
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import EMPTY, Pieces
from rca_llm.table import UNKNOWN, Ints, Table

OTHER, QUEUE = CODE["scheduling.other"], CODE["scheduling.queue"]


@dataclass(frozen=True)
class Others:
    """A request's time while others are worked for: its parts, and for whom its thread was busy.

    The labels of `waits` are the other requests' text codes.
    """

    told: Pieces = EMPTY
    waits: Pieces = EMPTY

    def queued(self) -> Pieces:
        """The waits, labelled with their part."""
        return self.told.take(np.flatnonzero(self.told.label == QUEUE))


@dataclass(frozen=True)
class _Homes:
    """The threads that a request's own code is on, each from a time on, the first from ever."""

    start: Ints
    thread: Ints

    def within(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The stretches of [start, end), each with its thread."""
        if not len(self.start):
            return [(start, end, host.NO_THREAD)]
        edges = np.clip(np.append(self.start, end), start, end)
        edges[0] = start
        rows = zip(edges[:-1].tolist(), edges[1:].tolist(), self.thread.tolist(), strict=True)
        return [row for row in rows if row[1] > row[0]]


def others(
    recording: Recording,
    id: str,
    rank: tuple[int, ...],
    span: tuple[int, int],
) -> Others:
    """What a request without steps does within `span` where only others are worked for.

    Where the thread that its code is on works for another it waits for that, as in a queue; else
    it does what that thread tells, and those that were given its work. Time in which a thread of a
    touched process (of any, where none is) computes for nobody that is named is computing, or
    stays the rank's.
    """
    records, code = recording.host, recording.timeline.strings.find(id)
    found = records.computing.within(*span)
    theirs = found.take((found.request >= 0) & (found.request != code))
    touched = processes(recording, id)
    main = host.main_thread(records, np.zeros(len(records.threads), np.int64), rank)
    engine = bool(np.any((found.thread == main) & (found.request < 0)))
    homes = _homes(recording, code)
    elsewhere = _elsewhere(recording, code, main, None if engine else homes, span)
    if span[1] <= span[0] or not len(theirs.start) + len(elsewhere[0]):
        return Others()
    led = not engine and not np.any((found.thread == main) & (found.request == code))
    led = led and main in theirs.thread and len(homes.start) > 0 and main not in homes.thread
    gaps = _as_gap(*span) if led else intervals.union(theirs.start, theirs.end)
    nobody = _nobody(recording, found, touched)
    when = _both(intervals.without(gaps, (nobody.start, nobody.end)), elsewhere)
    given = _given(recording, code)
    told: list[Pieces] = []
    waits: list[Pieces] = []
    for start, end, thread in homes.within(*span):
        busy = recording.serving.held_by_others(thread, code).clip(start, end)
        busy = intervals.within(busy, intervals.complement(*_spans(given), start, end))
        waits.append(intervals.within(busy, when))
        own = _own(recording, given, code)
        queued = Pieces(busy.start, busy.end, np.full(len(busy), QUEUE))
        layers = [*nobody.layers(), *own, queued]
        for telling in (thread, main) if engine else (thread,):
            free = recording.serving.free(_as_gap(start, end), telling, code)
            layers.append(host.of_thread(records, free, telling, code))
        whole, _ = intervals.overlay(layers, start, end)
        told.append(intervals.within(whole.relabel(np.append(np.arange(len(CODE)), OTHER)), when))
    return Others(_joined(told), _joined(waits))


def _elsewhere(
    recording: Recording,
    code: int,
    main: int,
    homes: _Homes | None,
    span: tuple[int, int],
) -> tuple[Ints, Ints]:
    """When what the rank tells is of others: its threads, or those of the request, work for them.

    With the request's threads given, a thread that is none of them is also at work for others
    while theirs is the code on it. Steps are left out, which tell by themselves whose they are.
    """
    serving, steps = recording.serving, recording.steps
    found = [serving.of_others(thread, code, *span) for thread in {main, _stepping(recording)}]
    if homes is not None and len(homes.thread) and main not in homes.thread:
        found.append(serving.at_home(main, *span))
    for start, end, thread in [] if homes is None else homes.within(*span):
        busy = serving.held_by_others(thread, code).clip(start, end)
        found.append((busy.start, busy.end))
    starts, ends = (np.concatenate(edges) for edges in zip(*found, strict=True))
    return intervals.without((starts, ends), (steps.start, steps.end))


def _stepping(recording: Recording) -> int:
    """The thread that makes the steps, which tells where another process drives the rank."""
    makers = tuple(intervals.distinct(recording.steps.process).tolist())
    nobody = np.zeros(len(recording.host.threads), np.int64)
    return host.main_thread(recording.host, nobody, makers) if makers else host.NO_THREAD


def _both(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    start, end = (np.concatenate(edges) for edges in zip(one, other, strict=True))
    return intervals.union(start, end)


def _nobody(recording: Recording, found: Computing, touched: tuple[int, ...]) -> Computing:
    """What is computed for nobody that is named, in touched processes, in any where none is."""
    nobody = found.request < 0
    if touched:
        process = np.array([process for process, _ in recording.host.threads], np.int64)
        nobody = nobody & np.isin(process[found.thread], touched)
    return found.take(nobody)


def _homes(recording: Recording, code: int) -> _Homes:
    """The thread that entered the request's scope, and those of its own spans, by their begin.

    A thread that was given work of the request is none: it may sleep, or work for another, when
    the request goes on elsewhere.
    """
    ranges, requests = recording.timeline["ranges"], recording.timeline["requests"]
    rows = lasting_spans(recording, code)
    threads = recording.host.range_thread[rows]
    given = ranges["kind"][rows] == recording.timeline.strings.find(WORK)
    keep = np.isin(threads, threads[given], invert=True)
    start, thread = [ranges["start"][rows[keep]]], [threads[keep]]
    for process, own, arrival in _stated(requests, code):
        place = (process, own) in recording.host.threads
        number = recording.host.threads.index((process, own)) if place else host.NO_THREAD
        start.append(np.array([arrival], np.int64))
        thread.append(np.array([number], np.int64))
    begins, numbers = np.concatenate(start), np.concatenate(thread).astype(np.int64)
    order = np.argsort(begins, kind="stable")
    first = [run.start for run in intervals.runs(numbers[order])]
    return _Homes(begins[order][first], numbers[order][first])


def _stated(requests: Table, code: int) -> list[tuple[int, int, int]]:
    """The process and thread that the records of a request name, and its arrival there."""
    if "home_thread" not in requests:
        return []
    known = requests.take(np.flatnonzero((requests["id"] == code) & (requests["home_thread"] >= 0)))
    columns = (known[name].tolist() for name in ("home_process", "home_thread", "arrival"))
    return list(zip(*columns, strict=True))


def _given(recording: Recording, code: int) -> list[tuple[int, tuple[Ints, Ints]]]:
    """The threads that were given work of a request, and when they were at it."""
    ranges = recording.timeline["ranges"]
    rows = lasting_spans(recording, code)
    rows = rows[ranges["kind"][rows] == recording.timeline.strings.find(WORK)]
    return by_thread(recording, rows, code)


def by_thread(recording: Recording, rows: Ints, code: int) -> list[tuple[int, tuple[Ints, Ints]]]:
    """The threads that some spans of a request are on, and when they were not at work for others.

    `rows` are of `ranges`, `code` is the text code of the request.
    """
    ranges, threads = recording.timeline["ranges"], recording.host.range_thread[rows]
    return [
        (thread, recording.serving.free((ranges["start"][mine], ranges["end"][mine]), thread, code))
        for thread in intervals.distinct(threads).tolist()
        for mine in [rows[threads == thread]]
    ]


def lasting_spans(recording: Recording, code: int) -> Ints:
    """The spans of known threads that name a request (a text code) and last, rows of `ranges`."""
    ranges, rows = recording.timeline["ranges"], recording.spans_of_request(code)
    lasting = ranges["end"][rows] > ranges["start"][rows]
    return np.asarray(rows[(ranges["thread"][rows] != UNKNOWN) & lasting])


def _spans(given: list[tuple[int, tuple[Ints, Ints]]]) -> tuple[Ints, Ints]:
    starts = [gaps[0] for _, gaps in given]
    ends = [gaps[1] for _, gaps in given]
    nothing = EMPTY.start
    return intervals.union(np.concatenate([nothing, *starts]), np.concatenate([nothing, *ends]))


def _own(
    recording: Recording, given: list[tuple[int, tuple[Ints, Ints]]], code: int
) -> list[Pieces]:
    """What the threads that were given its work tell, its own code awaiting them."""
    layers = [host.of_thread(recording.host, gaps, thread, code) for thread, gaps in given]
    start, end = _spans(given)
    return [*layers, Pieces(start, end, np.full(len(start), OTHER, np.int64))] if given else []


def _as_gap(start: int, end: int) -> tuple[Ints, Ints]:
    return np.array([start], np.int64), np.array([end], np.int64)


def _joined(found: list[Pieces]) -> Pieces:
    names = "start", "end", "label"
    return Pieces(*(np.concatenate([getattr(one, name) for one in found]) for name in names))


def processes(recording: Recording, id: str) -> tuple[int, ...]:
    """The processes that recorded spans or events of a request."""
    code = recording.timeline.strings.find(id)
    ranges, marks = recording.timeline["ranges"], recording.timeline["marks"]
    spans: Ints = ranges["process"][recording.spans_of_request(code)]
    events: Ints = marks["process"][(marks["request"] == code) & (code >= 0)]
    found: list[int] = intervals.distinct(np.concatenate([spans, events])).tolist()
    return tuple(process for process in found if process != UNKNOWN)
