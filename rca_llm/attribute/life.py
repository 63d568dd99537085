"""A request's life as a partition (CONTRACT section 5, rules 1-5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import steps as engine
from rca_llm.attribute import touched
from rca_llm.attribute.codes import span_parts
from rca_llm.attribute.exchange import Exchange, exchange
from rca_llm.attribute.host import away
from rca_llm.attribute.links import among
from rca_llm.attribute.neighbours import process_name
from rca_llm.attribute.others import Others, others
from rca_llm.attribute.partition import RankPartition, Recording, Segments
from rca_llm.attribute.parts import CODE, NO_PART, PARTS
from rca_llm.attribute.requests import Request
from rca_llm.attribute.stretches import OTHER, Shared, Stretches, between
from rca_llm.intervals import Pieces
from rca_llm.table import NEVER, Ints, Mask

QUEUE, PREEMPT = CODE["scheduling.queue"], CODE["scheduling.preempt"]
RECOMPUTE = CODE["scheduling.recompute"]
INTERFERENCE = CODE["scheduling.prefill_interference"]
HOST, COMPUTE = CODE["scheduling.host"], CODE["compute.cpu"]


@dataclass
class Interference:
    """Work of others that held a request up: its step, whose work it was, and for how long.

    `step` is the step's id, None for what was computed outside of steps, or by another process.
    """

    step: int | None
    owner: list[str] = field(default_factory=list[str])
    ns: int = 0


@dataclass(frozen=True)
class Life:
    """A request's time from arrival to finish as pieces labelled with parts."""

    request: Request
    pieces: Pieces
    step: Ints
    """The row of the engine step of every piece, -1 between steps."""
    shared_ns: int
    interference: list[Interference]
    http: Exchange | None = None
    """What the HTTP server recorded outside it, where an engine's probes tell of the request."""
    stretches: Stretches | None = None
    """The same pieces, as far as they are those of the rank; None where nothing tells."""
    kept: Pieces = intervals.EMPTY
    """When its thread computed for others and it waited, by the text code of the other."""
    contended: Pieces = intervals.EMPTY
    """When its device work waited for another process on the device, by that process's id."""
    alone: bool = False
    """Whether no step tells of it, on an engine without a GPU: its own threads do."""

    @cached_property
    def totals(self) -> Ints:
        """The time of every part, ns."""
        return self.pieces.sums(len(PARTS))

    def totals_in(self, start: int | None, end: int | None) -> Ints | None:
        """The time of every part between two instants, None where one is not known."""
        if start is None or end is None:
            return None
        return self.pieces.clip(start, end).sums(len(PARTS))


def life(
    request: Request,
    recording: Recording,
    partition: RankPartition,
    segments: Segments,
    untold: Pieces = intervals.EMPTY,
    contended: Pieces = intervals.EMPTY,
) -> Life | None:
    """Partition a request's time; None where its arrival is not known.

    `untold` are pieces, by part, in which nobody recorded what it waits for, `contended` those, by
    process, in which work waits for a device that another process has.
    """
    if request.arrival is None:
        return None
    ends = (request.finished, request.until, partition.rank.end)
    end = max(next(time for time in ends if time is not None), request.arrival)
    steps = recording.steps
    member, again = _membership(recording, request)
    begin = min(max(_admitted(request, steps.start, member), request.arrival), end)
    found = _after_admission(request, segments.shared, (begin, end), steps, member, again)
    found = found.after(request.arrival, begin, QUEUE)
    contended = contended.clip(begin, end)
    alone = touched.stepless(recording, request.id)
    apart = Others()
    if alone:
        processes = partition.rank.processes
        found = found.told(touched.instead(recording, request.id, processes, begin, end))
        apart = others(recording, request.id, processes, (begin, end))
        found = found.told(apart.told)
    # Spans that name the request explain its time before admission and after its last token.
    found = found.told(_own_spans(recording, request.id), [QUEUE, OTHER])
    if alone:
        # Its spans stay open while it waits for its thread, which does the work of another.
        found = found.told(apart.queued(), [HOST, COMPUTE])
        found = found.told(touched.own_computing(recording, request.id, request.arrival, end))
    own = touched.own_threads(recording, request.id, request.arrival, end, alone=alone)
    found = found.told(own, [OTHER]).told(untold)
    return _life(recording, request, member, found.joined(), apart.waits, contended)


def _life(
    recording: Recording,
    request: Request,
    member: Mask,
    found: Stretches,
    waits: Pieces,
    contended: Pieces,
) -> Life:
    """A request's life from its stretches, and its waits for a thread or a device others had."""
    pieces, rows = found.pieces()
    shared = np.append(member & (recording.steps.size > 1), False)[rows]
    lasting = (pieces.end - pieces.start)[shared & ~_waiting(pieces.label)]
    lost = _interference(recording, pieces, rows, request.id)
    queued = pieces.take(np.flatnonzero(pieces.label == QUEUE))
    kept = intervals.within(waits, (queued.start, queued.end))
    contended = intervals.within(contended, (queued.start, queued.end))
    lost += _kept_waiting(recording, kept) + _contending(recording, contended)
    http = exchange(recording, request.id, request.arrival, request.finished)
    alone = touched.stepless(recording, request.id)
    total = int(lasting.sum())
    return Life(request, pieces, rows, total, lost, http, found, kept, contended, alone)


def _turns(request: Request) -> Ints:
    """The instants at which a request's state changes after its admission."""
    times = [t for pair in request.preempted for t in pair if t is not None]
    return np.array(sorted([*times, *request.tokens[-1:]]), np.int64)


def _membership(recording: Recording, request: Request) -> tuple[Mask, Mask]:
    """Which steps a request is in, and in which of them it computes again what it had lost.

    A step whose batch is not known counts as everybody's.
    """
    steps, strings = recording.steps, recording.timeline.strings
    member = ~steps.known_batch.astype(bool)
    again = np.zeros(len(steps), bool)
    rows, phase = steps.of_request(strings.find(request.id))
    member[rows] = True
    repeats = phase == strings.find("recompute")
    if request.preempted:
        later = steps.start[rows] >= request.preempted[0][0]
        repeats |= later & (phase == strings.find("prefill"))
    again[rows] = repeats & (phase >= 0)
    return member, again


def _admitted(request: Request, starts: Ints, member: Mask) -> int:
    """When the request was first scheduled: as recorded, else at its first step.

    Never, where there are steps and it is in none of them; at once, where no steps are known.
    """
    if request.scheduled is not None:
        return request.scheduled
    arrival = request.arrival or 0
    own = starts[member & (starts >= arrival)]
    if len(own):
        return int(own[0])
    return NEVER if len(starts) else arrival


def _after_admission(
    request: Request,
    shared: Shared,
    span: tuple[int, int],
    steps: engine.Steps,
    member: Mask,
    again: Mask,
) -> Stretches:
    """The stretches of a request's time after its admission, `span`."""
    turns = np.append(_turns(request), span)
    waits = [
        (begun, shared.next_edge(_resumption(begun, resumed, steps.start, member), turns))
        for begun, resumed in request.preempted
    ]
    times = np.append(turns, np.array([until for _, until in waits], np.int64))
    view = between(shared, *span, times)
    return replace(view, part=_labels(request, view, waits, member, again))


def _labels(
    request: Request,
    view: Stretches,
    waits: Sequence[tuple[int, int]],
    member: Mask,
    again: Mask,
) -> Ints:
    """The part of every stretch after admission for this request."""
    inside = view.step >= 0
    own = inside & np.append(member, False)[view.step]
    part = np.where(inside & ~own, INTERFERENCE, view.part)
    part = np.where(own & np.append(again, False)[view.step], RECOMPUTE, part)
    waiting = np.zeros(len(view), bool)
    for begun, until in waits:
        waiting |= (view.start >= begun) & (view.start < until) & ~own
    part = np.where(waiting, PREEMPT, part)
    late = (view.start >= _last_token(request, view, own)) & ~own
    if not request.tokens:
        # Whether the engine was done is not recorded: what its thread does between steps may be
        # for this request, steps of others are not.
        late &= inside
    return np.where(late, OTHER, part)


def _resumption(begun: int, resumed: int | None, starts: Ints, member: Mask) -> int:
    if resumed is not None:
        return resumed
    later = starts[member & (starts >= begun)]
    return int(later[0]) if len(later) else NEVER


def _last_token(request: Request, view: Stretches, own: Mask) -> int:
    """When the engine was done with the request: its last token, else its last step's end."""
    if request.tokens:
        return request.tokens[-1]
    mine = view.end[own]
    return int(mine[-1]) if len(mine) else NEVER


def _own_spans(recording: Recording, id: str) -> Pieces:
    """The spans that name a request, the innermost at each instant, by the part they explain."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    rows = recording.spans_of_request(strings.find(id))
    parts = span_parts(strings, ranges["kind"][rows], on_gpu=recording.on_gpu)
    telling = (parts != NO_PART) & ~away(parts, ranges["thread"][rows])
    rows, parts = rows[telling], parts[telling]
    return intervals.innermost_wins(ranges["start"][rows], ranges["end"][rows]).relabel(parts)


def _waiting(part: Ints) -> Mask:
    return among(part, [QUEUE, PREEMPT, INTERFERENCE])


def _interference(recording: Recording, pieces: Pieces, step: Ints, id: str) -> list[Interference]:
    """What steps of others cost this request, in order.

    A step that it sat out counts whole; one in which it decoded beside the prefill of others
    counts with what it lasted longer than the median step that only decodes.
    """
    steps = recording.steps
    sat_out = (pieces.label == INTERFERENCE) & (step >= 0)
    lost = intervals.sum_by(step[sat_out], (pieces.end - pieces.start)[sat_out], len(steps))
    rows, phase = steps.of_request(recording.timeline.strings.find(id))
    decoding = rows[phase == recording.timeline.strings.find("decode")]
    lost[decoding] = np.maximum(lost[decoding], steps.mixed_excess[decoding])
    return [
        Interference(int(steps.id[row]), _owners(recording, row, id), int(lost[row]))
        for row in np.flatnonzero(lost).tolist()
    ]


def _kept_waiting(recording: Recording, kept: Pieces) -> list[Interference]:
    """What computing for others on its own thread cost a request, by the one computed for."""
    owners, row = np.unique(kept.label, return_inverse=True)
    lost = intervals.sum_by(row, kept.end - kept.start, len(owners))
    names = [recording.timeline.strings[code] for code in owners.tolist()]
    return [Interference(None, [name], int(ns)) for name, ns in zip(names, lost, strict=True)]


def _contending(recording: Recording, contended: Pieces) -> list[Interference]:
    """What other processes on its device cost a request, by process."""
    processes, row = np.unique(contended.label, return_inverse=True)
    lost = intervals.sum_by(row, contended.end - contended.start, len(processes))
    names = [process_name(recording.timeline, pid) for pid in processes.tolist()]
    return [Interference(None, [name], int(ns)) for name, ns in zip(names, lost, strict=True)]


def _owners(recording: Recording, row: int, id: str) -> list[str]:
    """The other requests that a step worked for; those that prefill, where any does."""
    strings = recording.timeline.strings
    requests, phases = recording.steps.batch_of(row)
    prefilling = among(phases, [strings.find(phase) for phase in engine.PREFILL_PHASES])
    chosen = requests[prefilling] if prefilling.any() else requests
    return [name for name in (strings[int(code)] for code in chosen) if name != id]
