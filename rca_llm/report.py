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
from rca_llm.attribute.job import Job
from rca_llm.attribute.life import Life
from rca_llm.attribute.lives import lives_in
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.requests import Request
from rca_llm.hints.thresholds import Thresholds
from rca_llm.quality import repair
from rca_llm.summary import contribution as contributions
from rca_llm.summary.contribution import SCHEMA, Contribution, Whole
from rca_llm.table import UNKNOWN, Ints
from rca_llm.trace import Trace
from rca_llm.whatif import Model

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "RankSegments", "Report", "RequestSegments", "build", "whole"]


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
    model: Model | None = None
    """What predictions replay; None where ranks were analysed apart from each other."""

    @property
    def job(self) -> Job | None:
        """What was attributed; None where ranks were analysed apart from each other."""
        return None if self.model is None else self.model.job

    @property
    def lives(self) -> Sequence[Life]:
        """The lives of the requests; none where ranks were analysed apart from each other."""
        return () if self.model is None else self.model.lives

    def frames(self) -> dict[str, pd.DataFrame]:
        """Every list of the summary as a pandas frame, by name; nested values as `shares.io`."""
        from rca_llm.exporters import notebook

        return notebook.frames(self.summary)

    def figures(self) -> dict[str, Any]:
        """Plotly figures by name, for notebooks; needs the extra `plots`."""
        from rca_llm.exporters import figures

        return dict(figures.figures(self.summary))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from rca_llm.exporters import notebook

        return notebook.fragment(self.summary)


def build(trace: Trace, thresholds: Thresholds | None = None) -> Report:
    """Align, attribute and explain a trace, with other limits of the rules if given."""
    trace = alignment.align(Trace([t.copy() for t in trace.timelines], trace.findings))
    for timeline in trace.timelines:
        repair(timeline)
    trace.findings += clocks.refine(trace.timelines, jobs.world_size(trace.timelines))
    job = jobs.attribute(trace.timelines)
    requests, lives = lives_in(job)
    summary = contributions.summary(
        [_contribution(job, recording, bool(requests)) for recording in job.recordings],
        whole(trace, job, requests, lives),
    )
    model = Model(jobs.serving(job), lives)
    hints.explain(summary, model, thresholds)
    return Report(
        summary,
        trace,
        [_rank_segments(member) for member in job.ranks],
        {life.request.id: _request_segments(life) for life in lives},
        model,
    )


def _contribution(job: Job, recording: Recording, requests: bool) -> Contribution:
    members = [member for member in job.ranks if member[0] is recording]
    return contributions.contribution(recording, members, windowed=not requests)


def whole(trace: Trace, job: Job, requests: Sequence[Request], lives: Sequence[Life]) -> Whole:
    """What the summary says of a job as a whole."""
    missing = alignment.missing_ranks(trace.timelines)
    return Whole(trace.timelines, trace.findings, job.collectives, requests, lives, missing)


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
