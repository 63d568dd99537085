"""What the launching thread does while the devices are idle (rule 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import computing
from rca_llm.attribute.codes import CALL_PART, STATE_PART, call_codes, span_parts
from rca_llm.attribute.computing import Computing
from rca_llm.attribute.innermost import innermost
from rca_llm.attribute.links import Links, dense_threads
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.attribute.ranks import Rank
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Ints, Mask, RowsBy
from rca_llm.trace import Timeline

_WORKING_DOMAINS = ("cpu_op", "python")
"""Ranges of these domains show that the thread ran the framework's own code."""

NO_THREAD = -1


@dataclass(frozen=True)
class HostRecords:
    """The host records of a timeline that can explain idle time, one row a record.

    `thread` is an index into `threads`, pairs (process, thread); `api_thread` and its like hold
    the same for every row of the table; `by_thread` finds the records of one. `part` is the part of
    idle time that a record explains, `request` the one that it names (a text code), -1 for none.
    `running` holds thread, start and end of threads seen running, which explain only what nothing
    else does; `computing` is of an engine that computes on the CPU, empty on others. `compute_ns`
    and `recorded_ns` are each thread's time in compute spans, and in all spans.
    """

    threads: list[tuple[int, int]]
    api_thread: Ints
    range_thread: Ints
    state_thread: Ints
    thread: Ints
    start: Ints
    end: Ints
    part: Ints
    request: Ints
    by_thread: RowsBy
    running: tuple[Ints, Ints, Ints]
    computing: Computing
    compute_ns: Ints
    recorded_ns: Ints


def host_records(timeline: Timeline, *, on_gpu: bool) -> HostRecords:
    """Collect API calls, spans, operators and thread states."""
    api, ranges, states = timeline["api"], timeline["ranges"], timeline["states"]
    threads, (api_thread, range_thread, state_thread) = dense_threads(api, ranges, states)
    range_part = _range_parts(timeline, on_gpu=on_gpu)
    state_part = timeline.strings.lookup({k: CODE[p] for k, p in STATE_PART.items()}, NO_PART)
    columns = [
        (
            api_thread,
            api["start"],
            api["end"],
            CALL_PART[call_codes(timeline.strings, api["name"])],
        ),
        (range_thread, ranges["start"], ranges["end"], range_part),
        (state_thread, states["start"], states["end"], state_part[states["state"]]),
    ]
    thread, start, end, part = (np.concatenate(column) for column in zip(*columns, strict=True))
    telling = (part != NO_PART) & (end > start)
    running = (states["state"] == timeline.strings.find("running")) & (states["state"] >= 0)
    # System calls say what a thread waited for, not that it is the one that matters.
    spoken = (range_part != NO_PART) & (ranges["domain"] != timeline.strings.code("osrt"))
    spent = np.where(spoken, ranges["end"] - ranges["start"], 0)
    computes = (ranges["kind"] == timeline.strings.code("compute")) & (
        ranges["start"] < ranges["end"]
    )
    computed = np.where(computes, spent, 0)
    named = np.full(len(part), NO_PART, np.int64)
    if "request" in ranges:
        named[len(api) : len(api) + len(ranges)] = ranges["request"]
    on_cpu = computes & (range_part == CODE["compute.cpu"])
    thread, start, end, part = thread[telling], start[telling], end[telling], part[telling]
    by_thread, columns_told = RowsBy(thread), (start, end, part, named[telling])
    return HostRecords(
        threads,
        api_thread,
        range_thread,
        state_thread,
        thread,
        start,
        end,
        part,
        named[telling],
        by_thread,
        (state_thread[running], states["start"][running], states["end"][running]),
        computing.find(by_thread, columns_told, range_thread, ranges, np.flatnonzero(on_cpu)),
        intervals.sum_by(range_thread, computed, len(threads)),
        intervals.sum_by(range_thread, spent, len(threads)),
    )


def _range_parts(timeline: Timeline, *, on_gpu: bool) -> Ints:
    """The part that each range explains; a plain NVTX range or annotation explains none."""
    ranges = timeline["ranges"]
    parts = span_parts(timeline.strings, ranges["kind"], on_gpu=on_gpu)
    working: dict[str, int] = dict.fromkeys(_WORKING_DOMAINS, 1)
    plain = timeline.strings.lookup(working)[ranges["domain"]] == 1
    parts = np.where((parts == NO_PART) & plain, CODE["scheduling.host"], parts)
    return np.where(away(parts, ranges["thread"]), NO_PART, parts)


def away(part: Ints, thread: Ints) -> Mask:
    """Which host spans are no thread's: coroutines and generators, which mostly await something.

    The thread runs others between their resumptions, and what it does is recorded for itself.
    """
    found: Mask = (part == CODE["scheduling.host"]) & (thread == UNKNOWN)
    return found


def main_thread(records: HostRecords, launches: Ints, processes: tuple[int, ...]) -> int:
    """The thread that drives a rank: it launches most, else computes most, else records most."""
    mine = np.array([process in processes for process, _ in records.threads], bool)
    for weight in (launches, records.compute_ns, records.recorded_ns):
        weight = np.where(mine, weight, 0)
        if len(weight) and weight.max() > 0:
            return int(np.argmax(weight))
    return int(np.flatnonzero(mine)[0]) if mine.any() else NO_THREAD


def launching_threads(records: HostRecords, links: Links) -> Ints:
    """The thread that launched each `gpu` row, `NO_THREAD` where that is not known."""
    return links.of_api(records.api_thread, NO_THREAD)


def launch_counts(records: HostRecords, launched_by: Ints) -> Ints:
    """How many device records each thread launched."""
    return np.bincount(launched_by[launched_by >= 0], minlength=len(records.threads))


def responsible(gap_end: Ints, starts: Ints, launched_by: Ints, main: int) -> Ints:
    """The thread each idle gap is charged to: the one that launches what ends the gap.

    `starts` are the starts of device work in ascending order. A gap that no known launch ends
    goes to `main`.
    """
    if not len(starts):
        return np.full(len(gap_end), main, np.int64)
    following = np.minimum(np.searchsorted(starts, gap_end, "left"), len(starts) - 1)
    thread = launched_by[following]
    late = gap_end > starts[-1]
    return np.where(late | (thread < 0), main, thread)


def explain(
    records: HostRecords, gaps: tuple[Ints, Ints], thread: Ints, engine: int = NO_THREAD
) -> Pieces:
    """The part of every instant of some disjoint, ascending gaps; gap i belongs to `thread[i]`.

    Where that thread recorded nothing, it waited for the thread `engine`, whose records tell.
    """
    found: list[Pieces] = []
    for number in np.unique(thread).tolist():
        mine = thread == number
        found.append(_explain_thread(records, (gaps[0][mine], gaps[1][mine]), number, engine))
    if not found:
        return intervals.EMPTY
    pieces = Pieces(*(np.concatenate([getattr(p, n) for p in found]) for n in _FIELDS))
    return pieces.take(np.argsort(pieces.start, kind="stable"))


_FIELDS = ("start", "end", "label")


def _explain_thread(
    records: HostRecords, gaps: tuple[Ints, Ints], thread: int, engine: int
) -> Pieces:
    """What one thread did in its gaps, `scheduling.other` where nothing tells."""
    low, high = int(gaps[0][0]), int(gaps[1][-1])
    pieces, _ = intervals.overlay(layers(records, gaps, thread, engine), low, high)
    label = np.where(pieces.label == NO_PART, CODE["scheduling.other"], pieces.label)
    return intervals.within(Pieces(pieces.start, pieces.end, label), gaps)


def layers(
    records: HostRecords, gaps: tuple[Ints, Ints], thread: int, engine: int = NO_THREAD
) -> list[Pieces]:
    """What tells of one thread in some disjoint, ascending gaps, what counts first in front.

    On an engine that computes on the CPU, other threads that compute, of whatever process, are
    what devices are elsewhere: they come before what the thread does as mere host work.
    """
    own, computing = _recorded(records, gaps, thread), _computing(records, gaps, thread)
    found = [own]
    if any(map(len, computing)):
        plain = own.label == CODE["scheduling.host"]
        telling, rest = own.take(np.flatnonzero(~plain)), own.take(np.flatnonzero(plain))
        found = [telling, *computing, rest]
    if engine not in (NO_THREAD, thread):
        found.append(_recorded(records, gaps, engine))
    return [*found, _running(records, thread)]


def _recorded(records: HostRecords, gaps: tuple[Ints, Ints], thread: int) -> Pieces:
    rows = records.by_thread[thread]
    return innermost(records.start[rows], records.end[rows], records.part[rows], gaps)


def _computing(records: HostRecords, gaps: tuple[Ints, Ints], thread: int) -> list[Pieces]:
    """When other threads computed on the CPU, then what kept them from it within such spans."""
    found = records.computing
    rows = np.flatnonzero(found.thread != thread)
    return found.take(rows[intervals.touching(found.start[rows], found.end[rows], gaps)]).layers()


def _running(records: HostRecords, thread: int) -> Pieces:
    owner, start, end = records.running
    mine = owner == thread
    begins, ends = intervals.union(start[mine], end[mine])
    return Pieces(begins, ends, np.full(len(begins), CODE["scheduling.host"], np.int64))


def of_thread(records: HostRecords, gaps: tuple[Ints, Ints], thread: int, request: int) -> Pieces:
    """What one thread did in disjoint, ascending gaps, as far as its own records tell.

    Records that name another request than this (a text code) tell nothing.
    """
    if not len(gaps[0]) or thread == NO_THREAD:
        return intervals.EMPTY
    rows = records.by_thread[thread]
    rows = rows[(records.request[rows] < 0) | (records.request[rows] == request)]
    own = innermost(records.start[rows], records.end[rows], records.part[rows], gaps)
    layers = [own, _running(records, thread)]
    pieces, _ = intervals.overlay(layers, int(gaps[0][0]), int(gaps[1][-1]))
    return intervals.within(pieces.take(np.flatnonzero(pieces.label != NO_PART)), gaps)


def is_gpu_engine(timeline: Timeline, ranks: list[Rank]) -> bool:
    """Whether the computing is done on devices: device work or launches were recorded."""
    return bool(len(timeline["gpu"])) or any(rank.launches for rank in ranks)
