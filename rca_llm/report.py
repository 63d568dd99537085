"""The answer as data: the summary of the contract and the segments behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rca_llm import align as alignment
from rca_llm import hints
from rca_llm.attribute import clocks
from rca_llm.attribute import job as jobs
from rca_llm.attribute import requests as lives_of
from rca_llm.attribute.job import Job
from rca_llm.attribute.parts import PARTS, named, shares
from rca_llm.attribute.requests import Life, Request
from rca_llm.attribute.view import engine_view
from rca_llm.quality import repair
from rca_llm.summary import device as device_rows
from rca_llm.summary import host as host_rows
from rca_llm.summary import requests as request_rows
from rca_llm.summary import windows as window_rows
from rca_llm.summary.findings import all_findings
from rca_llm.summary.ranges import marked, range_rows
from rca_llm.table import UNKNOWN, Ints
from rca_llm.trace import KERNEL, MEMCPY, MEMSET, Timeline, Trace

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "rca-llm/summary/1"


@dataclass(frozen=True)
class RankSegments:
    """A rank's window as disjoint, ascending pieces that leave nothing out.

    `start` and `end` are ns on the summary's clock, `part` indexes `attribute.parts.PARTS`, `step`
    is a step id, `UNKNOWN` between steps.
    """

    rank: int
    host: str | None
    start: Ints
    end: Ints
    part: Ints
    step: Ints


@dataclass(frozen=True)
class RequestSegments:
    """A request's life as disjoint, ascending pieces; columns as in `RankSegments`."""

    start: Ints
    end: Ints
    part: Ints


@dataclass(frozen=True)
class Report:
    """Where the time of a trace went, and why."""

    summary: dict[str, Any]
    """The contract's summary, ready to be written as JSON."""
    trace: Trace
    segments: list[RankSegments] = field(default_factory=list[RankSegments])
    request_segments: dict[str, RequestSegments] = field(default_factory=dict[str, RequestSegments])

    def frames(self) -> dict[str, pd.DataFrame]:
        """Every list of the summary as a pandas frame, by name; nested values as `shares.io`."""
        from rca_llm.exporters import notebook

        return notebook.frames(self.summary)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from rca_llm.exporters import notebook

        return notebook.fragment(self.summary)


def build(trace: Trace) -> Report:
    """Align, attribute and explain a trace."""
    trace = alignment.align(Trace([t.copy() for t in trace.timelines], trace.findings))
    for timeline in trace.timelines:
        repair(timeline)
    trace.findings += clocks.refine(trace.timelines, jobs.world_size(trace.timelines))
    job = jobs.attribute(trace.timelines)
    requests, lives = _lives(job)
    summary = _summary(trace, job, requests, lives)
    hints.explain(summary, job, lives)
    return Report(
        summary,
        trace,
        [_rank_segments(member) for member in job.ranks],
        {life.request.id: _request_segments(life) for life in lives},
    )


def _rank_segments(member: jobs.Member) -> RankSegments:
    recording, partition = member
    found, ids = partition.segments, recording.steps.id
    return RankSegments(
        partition.rank.number,
        recording.timeline.header.host,
        found.start,
        found.end,
        found.part,
        np.append(ids, UNKNOWN)[found.step],
    )


def _request_segments(life: Life) -> RequestSegments:
    return RequestSegments(life.pieces.start, life.pieces.end, life.pieces.label)


def _lives(job: Job) -> tuple[list[Request], list[Life]]:
    """The requests of a job by arrival, and the partition of each that has an arrival."""
    requests: list[Request] = []
    lives: list[Life] = []
    seen: set[tuple[str | None, str]] = set()
    for number, (recording, partition) in enumerate(job.ranks):
        fresh = [
            request
            for request in lives_of.requests_of(recording.timeline)
            if (recording.timeline.header.job, request.id) not in seen
        ]
        if not fresh:
            continue
        seen.update((recording.timeline.header.job, request.id) for request in fresh)
        view = engine_view(job.ranks, number, job.collectives)
        found = [lives_of.life(request, recording, partition, view) for request in fresh]
        requests += fresh
        lives += [life for life in found if life is not None]
    requests.sort(key=lambda request: request.arrival or 0)
    lives.sort(key=lambda life: life.request.arrival or 0)
    return requests, lives


def _summary(
    trace: Trace, job: Job, requests: Sequence[Request], lives: Sequence[Life]
) -> dict[str, Any]:
    totals = np.sum([p.totals for _, p in job.ranks], axis=0) if job.ranks else _nothing()
    return {
        "schema": SCHEMA,
        "inputs": _inputs(trace.timelines),
        "window": _window(job),
        "totals": _totals(job, len(requests)),
        "devices": [row for r, p in job.ranks for row in device_rows.device_rows(r, p.rank)],
        "shares": shares(totals),
        "hidden": _hidden(job),
        "parts": named(totals),
        "requests": request_rows.request_rows(lives),
        "latency": request_rows.latency_figures(requests),
        "class_stats": request_rows.class_stats(lives),
        "cohorts": request_rows.cohorts(lives),
        "windows": [] if requests else window_rows.window_rows(job.ranks),
        "steps": window_rows.step_rows(job.ranks),
        "ranges": range_rows(job.recordings),
        "api": host_rows.api_rows(job.recordings),
        "tracks": host_rows.track_rows(job.recordings),
        "transfers": window_rows.transfer_rows(job.recordings),
        "kernels": device_rows.kernel_rows(job.recordings),
        "copies": device_rows.copy_rows(job.recordings),
        "collectives": jobs.collective_rows(job),
        "ranks": window_rows.rank_rows(job.ranks, alignment.missing_ranks(trace.timelines)),
        "hints": [],
        "quality": all_findings(trace, job),
    }


def _steps(job: Job) -> int:
    """How many steps there were; ranks that take part in one collective share theirs."""
    together = any(len(collective.parts) > 1 for collective in job.collectives)
    return len(
        {
            (0 if together else id(recording), int(recording.steps.id[row]))
            for recording, partition in job.ranks
            for row in partition.steps
        }
    )


def _nothing() -> Ints:
    return np.zeros(len(PARTS), np.int64)


def _inputs(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for timeline in timelines:
        for given in (timeline.input, *timeline.header.extra.get("side_files", ())):
            rank = given.rank if given.rank is not None else timeline.header.rank
            rows.append({**vars(given), "rank": rank})
    return rows


def _window(job: Job) -> dict[str, int]:
    ranks = [partition.rank for _, partition in job.ranks]
    return {
        "start_ns": min((rank.start for rank in ranks), default=0),
        "end_ns": max((rank.end for rank in ranks), default=0),
        "span_ns": sum(rank.span for rank in ranks),
    }


def _hidden(job: Job) -> dict[str, int]:
    names = ("communication", "io", "scheduling")
    return {name: sum(p.hidden[name] for _, p in job.ranks) for name in names}


def _totals(job: Job, requests: int) -> dict[str, int]:
    def count(kind: int) -> int:
        return sum(int(np.count_nonzero(r.timeline["gpu"]["kind"] == kind)) for r in job.recordings)

    return {
        "kernels": count(KERNEL),
        "copies": count(MEMCPY),
        "memsets": count(MEMSET),
        "api_calls": sum(len(r.timeline["api"]) for r in job.recordings),
        "ranges": sum(len(marked(r.timeline)) for r in job.recordings),
        "collectives": len(job.collectives),
        "requests": requests,
        "steps": _steps(job),
        "graph_launches": sum(host_rows.graph_launches(r) for r in job.recordings),
    }
