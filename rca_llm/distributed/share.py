"""The second task of a rank: its part of the job's summary, once it is known how the others did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rca_llm import hints, intervals
from rca_llm.align import Joined, redo
from rca_llm.attribute import collectives as comm
from rca_llm.attribute import touched
from rca_llm.attribute.codes import WORK
from rca_llm.attribute.collective_parts import Part, parts_of
from rca_llm.attribute.collectives import Arrivals
from rca_llm.attribute.device import Activity
from rca_llm.attribute.host import HostRecords
from rca_llm.attribute.job import Job, serving
from rca_llm.attribute.links import Links
from rca_llm.attribute.lives import lives_in
from rca_llm.attribute.partition import (
    RankPartition,
    Recording,
    activities,
    partition,
    prepare,
)
from rca_llm.attribute.requests import named_rows, requests_of
from rca_llm.distributed.fold import fold
from rca_llm.distributed.survey import recording, thinned
from rca_llm.errors import RcaError
from rca_llm.hints.model import Rule
from rca_llm.quality import repair
from rca_llm.report import whole
from rca_llm.summary import contribution as contributions
from rca_llm.summary.contribution import Contribution
from rca_llm.table import Ints, Mask, RowsBy, Table, known
from rca_llm.trace import Clock, Finding, Header, Input, Origin, Timeline, Trace
from rca_llm.whatif import Model

MOST_SAMPLES = 1 << 16
"""More samples of a rank than this do not travel."""

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class Order:
    """What to analyse, and what the rest of the job has decided about it.

    `arrived` tells for each part of each rank in collectives, by start, when the last rank came
    (ns; `UNKNOWN` where nobody knows); `cuts` are the times between which sums are wanted.
    """

    origin: Origin
    history: tuple[Any, ...]
    input: Input
    header: Header
    clock: Clock
    findings: tuple[Finding, ...]
    arrived: Mapping[int, Ints]
    cuts: Ints
    windowed: bool


@dataclass(frozen=True)
class Share:
    """A rank's part of the summary, its own hints, and what rules about the whole job need."""

    contribution: Contribution
    recording: Recording
    partitions: list[RankPartition]
    hints: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def of_one_rank(rule: Rule) -> bool:
    """Whether a rule looks at nothing but one rank at a time."""
    about_jobs = rule.function.__module__.rpartition(".")[2] == "communication"
    return not (rule.peers or about_jobs or rule.id in ("G1", "G4"))


def share(order: Order) -> Share:
    """Analyse a recording."""
    timeline = _found(order)
    prepared = prepare(timeline)
    members = [(prepared, _partition(prepared, number, order)) for number in _numbers(prepared)]
    contribution = contributions.contribution(prepared, members, windowed=order.windowed)
    rows = _hints(Job([prepared], members, []), contribution)
    light, by_threads = _light(prepared), bool(_stepless(prepared))
    cuts = np.concatenate([order.cuts, _told(prepared)])
    folded = [_folded(*member, cuts, whole=by_threads) for member in members]
    return Share(contribution, light, folded, rows)


def _numbers(prepared: Recording) -> range:
    return range(len(prepared.ranks))


def _found(order: Order) -> Timeline:
    """The recording as the job sees it: on its clock, with all files of the rank."""
    timeline = recording(order.origin)
    redo(order.history, timeline, recording)
    if any(isinstance(change, Joined) for change in order.history):
        repair(timeline)
    timeline.input, timeline.header, timeline.clock = order.input, order.header, order.clock
    timeline.findings = list(order.findings)
    return timeline


def _partition(prepared: Recording, number: int, order: Order) -> RankPartition:
    rank = prepared.ranks[number]
    parts = parts_of(prepared.timeline, prepared.gpu_parts, rank)
    activity, work = activities(prepared, rank)
    arrived = _arrivals(parts, order.arrived.get(rank.number, _NOTHING))
    return partition(prepared, rank, comm.add_to(activity, parts, arrived), work)


def _arrivals(parts: list[Part], arrived: Ints) -> Arrivals:
    """The arrivals by the rows of this recording."""
    if len(parts) != len(arrived):
        raise RcaError(f"{len(parts)} parts of collectives where {len(arrived)} were surveyed")
    told: list[bool] = known(arrived).tolist()
    times: list[int] = arrived.tolist()
    return comm.by_rows((p, time) for p, time, here in zip(parts, times, told, strict=True) if here)


def _hints(job: Job, contribution: Contribution) -> list[dict[str, Any]]:
    """What rules about single ranks say of this one."""
    requests, lives = lives_in(job)
    trace = Trace([recording.timeline for recording in job.recordings])
    summary = contributions.summary([contribution], whole(trace, job, requests, lives))
    rules = [rule for rule in hints.RULES if of_one_rank(rule)]
    hints.explain(summary, Model(serving(job), lives), rules=rules)
    found: list[dict[str, Any]] = summary["hints"]
    return found


def _stepless(prepared: Recording) -> list[str]:
    """The requests that no step tells of, but their own threads: those need what threads did."""
    ids = [request.id for request in requests_of(prepared.timeline)]
    return [id for id in ids if touched.stepless(prepared, id)]


def _told(prepared: Recording) -> Ints:
    """When what requests' own spans and threads tell changes: folding keeps sums between these."""
    ranges = prepared.timeline["ranges"]
    found: list[Ints] = [_NOTHING]
    for request in requests_of(prepared.timeline):
        code = prepared.timeline.strings.find(request.id)
        rows = prepared.spans_of_request(code)
        if len(rows) and request.arrival is not None:
            low, high = int(ranges["start"][rows].min()), int(ranges["end"][rows].max())
            own = touched.own_threads(prepared, request.id, low, high)
            found += [ranges["start"][rows], ranges["end"][rows], own.start, own.end]
    return np.concatenate(found)


def _light(prepared: Recording) -> Recording:
    """A recording without its device records and calls, and most of its ranges."""
    timeline = prepared.timeline
    ranges = timeline["ranges"]
    named = (ranges["kind"] >= 0) & (ranges["request"] >= 0)
    named[named_rows(timeline)] = True
    tables: dict[str, Table] = {
        name: timeline[name] for name in ("requests", "tokens", "marks", "processes")
    }
    tables["ranges"] = ranges.take(named)
    if len(timeline["samples"]) <= MOST_SAMPLES:
        tables["samples"] = timeline["samples"]
    batch, mode = prepared.steps.batch, prepared.steps.mode
    more = np.concatenate([batch["request"], batch["phase"], mode])
    strings = thinned(timeline.strings, tables, more)
    linked = int(np.count_nonzero(prepared.links.api_row >= 0))
    return replace(
        prepared,
        timeline=replace(timeline, strings=strings, tables=tables),
        links=Links(np.zeros(linked, np.int64)),
        gpu_parts=_NOTHING,
        calls=_NOTHING,
        launched_by=_NOTHING,
        host=_fewer_records(prepared, prepared.host.range_thread[named]),
    )


def _fewer_records(prepared: Recording, range_thread: Ints) -> HostRecords:
    """What is known of threads as a whole, and the records of those that requests are told by.

    `range_thread` is for the ranges that are kept.
    """
    host = prepared.host
    wanted = _telling_threads(prepared)
    rows = np.flatnonzero(wanted[host.thread])
    columns = {name: getattr(host, name)[rows] for name in _RECORD}
    thread, start, end = host.running
    seen = np.flatnonzero(wanted[thread])
    return replace(
        host,
        **columns,
        api_thread=_NOTHING,
        range_thread=range_thread,
        state_thread=_NOTHING,
        by_thread=RowsBy(columns["thread"]),
        running=(thread[seen], start[seen], end[seen]),
    )


_RECORD = ("thread", "start", "end", "part", "request")


def _telling_threads(prepared: Recording) -> Mask:
    """The threads whose records tell of requests: all without steps, else those given work."""
    host, ranges = prepared.host, prepared.timeline["ranges"]
    if _stepless(prepared):
        return np.ones(len(host.threads), bool)
    found = np.zeros(len(host.threads), bool)
    work = (ranges["kind"] >= 0) & (ranges["kind"] == prepared.timeline.strings.find(WORK))
    found[host.range_thread[work]] = True
    return found


def _folded(prepared: Recording, own: RankPartition, cuts: Ints, *, whole: bool) -> RankPartition:
    """A partition without its activities, folded between the cuts and its own steps' edges.

    Not folded (`whole`) where threads tell of requests: it matters then what was when.
    """
    steps = prepared.steps.start[own.steps], own.step_end[own.steps]
    every = np.unique(np.concatenate([cuts, *steps]))
    activity = Activity(*(_NOTHING for _ in Activity.__dataclass_fields__))
    work = replace(own.work, of_call=_NOTHING, of_gpu=_NOTHING)
    segments = own.segments
    if whole:
        segments = replace(segments, activity=np.full(len(segments), -1, np.int64))
    else:
        segments = fold(segments, every[known(every)])
    # Folded segments lie elsewhere than the waits for neighbours that are in them.
    contended = intervals.EMPTY
    return replace(own, activity=activity, segments=segments, work=work, contended=contended)
