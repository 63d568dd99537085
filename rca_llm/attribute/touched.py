"""Which threads and processes worked for a request, and so may explain its time.

A rank's segments tell what its engine did. Where no step says that a request was part of it, only
processes count that recorded something of the request; and threads that were given its work count
whatever else the rank did.
"""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.host import HostRecords
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.intervals import EMPTY, Pieces
from rca_llm.table import UNKNOWN, Ints, Mask, known

WORK = "work"
"""The kind of spans in which a thread works for a request (`probes/threads.py`)."""
COMPUTE, OTHER = CODE["compute.cpu"], CODE["scheduling.other"]


def own_threads(recording: Recording, id: str, start: int, end: int) -> Pieces:
    """What the threads that were given a request's work did for it, within [start, end)."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    rows = recording.spans_of_request(strings.find(id))
    rows = rows[(ranges["kind"][rows] == strings.find(WORK)) & (ranges["thread"][rows] != UNKNOWN)]
    rows = rows[known(ranges["end"][rows]) & (ranges["end"][rows] > ranges["start"][rows])]
    threads = recording.host.range_thread[rows]
    layers: list[Pieces] = []
    for thread in intervals.distinct(threads).tolist():
        mine = rows[threads == thread]
        gaps = intervals.union(ranges["start"][mine], ranges["end"][mine])
        layers.append(host.of_thread(recording.host, gaps, thread))
    if not layers or end <= start:
        return EMPTY
    told, _ = intervals.overlay(layers, start, end)
    return told.take(np.flatnonzero(told.label != NO_PART))


def instead(recording: Recording, id: str, rank: tuple[int, ...], start: int, end: int) -> Pieces:
    """What explains time of a request in which processes that it never touched were looked at.

    Pieces within [start, end) that take the place of the parts of the rank of these processes: all
    of it where the thread that drives the rank is not of a touched process, else when only others
    computed. Nothing where no process recorded anything of the request.
    """
    records, touched = recording.host, _processes(recording, id)
    nobody = np.zeros(len(records.threads), np.int64)
    main = host.main_thread(records, nobody, rank)
    if not touched or main == host.NO_THREAD or end <= start:
        return EMPTY
    layers = [_computed(records, touched, inside=True).relabel(np.array([COMPUTE]))]
    if records.threads[main][0] in touched:
        layers.append(_computed(records, touched, inside=False).relabel(np.array([OTHER])))
        told, _ = intervals.overlay(layers, start, end)
        return told.take(np.flatnonzero(told.label == OTHER))
    own = host.main_thread(records, nobody, touched)
    gap = np.array([start], np.int64), np.array([end], np.int64)
    if own != host.NO_THREAD:
        layers.insert(0, host.of_thread(records, gap, own))
    told, _ = intervals.overlay(layers, start, end)
    return told.relabel(np.append(np.arange(len(CODE)), OTHER))


def _computed(records: HostRecords, touched: tuple[int, ...], *, inside: bool) -> Pieces:
    """When touched processes computed on the CPU, or others did; labels are 0."""
    owner, start, end = records.computing
    process = np.array([process for process, _ in records.threads] or [0], np.int64)
    rows: Mask = np.isin(process[owner], touched, invert=not inside)
    begins, ends = intervals.union(start[rows], end[rows])
    return Pieces(begins, ends, np.zeros(len(begins), np.int64))


def _processes(recording: Recording, id: str) -> tuple[int, ...]:
    """The processes that recorded spans or events of a request."""
    code = recording.timeline.strings.find(id)
    ranges, marks = recording.timeline["ranges"], recording.timeline["marks"]
    spans: Ints = ranges["process"][recording.spans_of_request(code)]
    events: Ints = marks["process"][(marks["request"] == code) & (code >= 0)]
    found: list[int] = intervals.distinct(np.concatenate([spans, events])).tolist()
    return tuple(process for process in found if process != UNKNOWN)
