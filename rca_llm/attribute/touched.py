"""Which threads and processes worked for a request, and so may explain its time.

A rank's segments tell what its engine did. Where no step says that a request was part of it, only
processes count that recorded something of the request; and threads that were given its work count
whatever else the rank did.
"""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.codes import WORK
from rca_llm.attribute.computing import Computing
from rca_llm.attribute.others import by_thread, lasting_spans, processes
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.intervals import EMPTY, Pieces
from rca_llm.table import Ints, Mask

OTHER = CODE["scheduling.other"]


def stepless(recording: Recording, id: str) -> bool:
    """Whether no step tells of a request, on an engine without a GPU: its own threads do."""
    rows, _ = recording.steps.of_request(recording.timeline.strings.find(id))
    anybody = not recording.steps.known_batch.all()
    return not (len(rows) or anybody or recording.on_gpu)


def own_threads(
    recording: Recording, id: str, start: int, end: int, *, alone: bool = False
) -> Pieces:
    """What the threads that were given a request's work did for it, within [start, end).

    Where no step tells (`alone`), any span that names the request says that its thread works for
    it; else only those that hand work over do.
    """
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    rows = lasting_spans(recording, strings.find(id))
    if not alone:
        rows = rows[ranges["kind"][rows] == strings.find(WORK)]
    layers = [
        host.of_thread(recording.host, gaps, thread, strings.find(id))
        for thread, gaps in by_thread(recording, rows, strings.find(id))
    ]
    if not layers or end <= start:
        return EMPTY
    told, _ = intervals.overlay(layers, start, end)
    return told.take(np.flatnonzero(told.label != NO_PART))


def own_computing(recording: Recording, id: str, start: int, end: int) -> Pieces:
    """What was done within the compute spans that name a request, within [start, end)."""
    found, code = recording.host.computing, recording.timeline.strings.find(id)
    mine = found.take((found.request == code) & (code >= 0))
    if not len(mine.start) or end <= start:
        return EMPTY
    told, _ = intervals.overlay(mine.layers(), start, end)
    told = told.take(np.flatnonzero(told.label != NO_PART))
    threads: list[int] = intervals.distinct(mine.thread).tolist()
    held = [recording.serving.held_by_others(thread, code) for thread in threads]
    if len(threads) > 1 or not len(held[0]):
        return told
    return intervals.within(told, intervals.complement(held[0].start, held[0].end, start, end))


def instead(recording: Recording, id: str, rank: tuple[int, ...], start: int, end: int) -> Pieces:
    """What explains time of a request in which the rank tells of work that was not for it.

    Pieces within [start, end) that take the place of the parts of the rank of these processes: all
    of it where the thread that drives the rank is not of a touched process, else when only others
    computed. Nothing where no process recorded anything of the request.
    """
    records, touched = recording.host, processes(recording, id)
    nobody = np.zeros(len(records.threads), np.int64)
    main = host.main_thread(records, nobody, rank)
    if not touched or main == host.NO_THREAD or end <= start:
        return EMPTY
    found = records.computing.within(start, end)
    process = np.array([process for process, _ in records.threads] or [0], np.int64)
    inside = np.isin(process[found.thread], touched)
    layers = found.take(inside).layers()
    if records.threads[main][0] in touched:
        unrelated = _only(found, ~inside, start, end)
        return Pieces(*unrelated, np.full(len(unrelated[0]), OTHER, np.int64))
    own = host.main_thread(records, nobody, touched)
    if own != host.NO_THREAD:
        code = recording.timeline.strings.find(id)
        gap = np.array([start], np.int64), np.array([end], np.int64)
        free = recording.serving.free(gap, own, code)
        layers.insert(0, host.of_thread(records, free, own, code))
    told, _ = intervals.overlay(layers, start, end)
    return told.relabel(np.append(np.arange(len(CODE)), OTHER))


def _only(found: Computing, rows: Mask, start: int, end: int) -> tuple[Ints, Ints]:
    """When, within [start, end), only these pieces of computing go on."""
    layers: list[Pieces] = []
    for number, of in enumerate((found.take(~rows), found.take(rows))):
        begins, ends = intervals.union(of.start, of.end)
        layers.append(Pieces(begins, ends, np.full(len(begins), number, np.int64)))
    told, _ = intervals.overlay(layers, start, end)
    only = told.label == 1
    return told.start[only], told.end[only]
