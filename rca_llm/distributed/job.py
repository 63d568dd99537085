"""Brings the ranks of a job together: between the two tasks of each, and after them."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rca_llm import __version__, hints
from rca_llm.align import align
from rca_llm.attribute import clocks, device, pauses
from rca_llm.attribute import collectives as comm
from rca_llm.attribute import job as jobs
from rca_llm.attribute.collective_parts import Part, parts_of
from rca_llm.attribute.collectives import Collective
from rca_llm.attribute.job import Job
from rca_llm.attribute.lives import lives_in
from rca_llm.attribute.ranks import find_ranks
from rca_llm.attribute.requests import requests_of
from rca_llm.distributed.share import Order, Share, of_one_rank, share
from rca_llm.distributed.survey import Ask, Survey, survey
from rca_llm.errors import RcaError, UnreadableInput
from rca_llm.hints.model import RULES
from rca_llm.hints.thresholds import Thresholds
from rca_llm.readers import EXPECTED, load, reader_of
from rca_llm.readers.files import entries, source
from rca_llm.readers.kineto_pieces import collection_paused
from rca_llm.report import Report, whole
from rca_llm.scheduler import Workers, workers
from rca_llm.summary import contribution as contributions
from rca_llm.table import integers
from rca_llm.trace import Finding, Timeline, Trace
from rca_llm.whatif import Model

TOGETHER = 8
"""Inputs that are analysed in one process where nobody asks for more; memory for each is held."""

T = TypeVar("T")
_Parts = dict[int, list[Part]]
"""The parts of each rank of one timeline, by rank number."""


@dataclass(frozen=True)
class Given:
    """A path of the user's, or one that a directory of theirs holds."""

    path: str
    listed: bool


def inputs(paths: Sequence[str | os.PathLike[str]]) -> list[Given]:
    """Every path that may be a rank: directories of no format of their own are looked into."""
    found: list[Given] = []
    for path in [os.fspath(path) for path in paths]:
        given = source(path)
        if given.directory and reader_of(given) is None:
            found += [Given(entry, True) for entry in entries(path)]
        else:
            found.append(Given(path, False))
    return found


def analyse(
    paths: Sequence[str | os.PathLike[str]],
    jobs: int | None = None,
    scheduler: str | None = None,
    thresholds: Thresholds | None = None,
) -> Report:
    """The report on the inputs of one job.

    Up to `TOGETHER` inputs are analysed in this process, unless processes or a Dask cluster are
    asked for; more of them rank by rank. With limits of the rules other than the package's, all
    are analysed here.
    """
    if thresholds is not None:
        if jobs is not None or scheduler is not None:
            raise RcaError("--thresholds is for one process: leave --jobs and --scheduler out")
        return load(*paths).attribute(thresholds)
    given = inputs(paths)
    if jobs is None and scheduler is None and len(given) <= TOGETHER:
        return load(*paths).attribute()
    with workers(jobs, scheduler) as found:
        return report(given, found)


def report(given: Sequence[Given], pool: Workers) -> Report:
    """The report on a job whose ranks are analysed by a pool of workers.

    It holds the summary alone: no records and no pieces of time. Raises `UnreadableInput` where
    nothing can be read.
    """
    with tempfile.TemporaryDirectory(prefix="rca-llm-ranks-") as folder:
        asks = [Ask(g.path, n, g.listed, folder) for n, g in enumerate(given)]
        surveys, findings = _surveyed(given, pool.run(survey, asks, "read"))
        with collection_paused():
            trace, parts, matched = _aligned(surveys, findings)
            asked = any(one.requests for one in surveys)
            orders = _orders(trace.timelines, parts, matched, windowed=not asked)
        shares = pool.run(share, orders, "analysed")
    trace.timelines, kept = _sound(trace, shares)
    with collection_paused():
        return Report(_summary(trace, kept, matched), Trace([]))


def _surveyed(
    given: Sequence[Given], outcomes: Sequence[Survey | Exception]
) -> tuple[list[Survey], list[Finding]]:
    """The surveys of what could be read, and a finding for each path that could not."""
    found: list[Survey] = []
    refused: list[Finding] = []
    for one, outcome in zip(given, outcomes, strict=True):
        if isinstance(outcome, Exception):
            refused.append(Finding("truncated", 1, one.path, _failure(one.path, outcome)))
        elif outcome.version != __version__:
            raise RcaError(f"the workers run rca-llm {outcome.version}, this is {__version__}")
        elif outcome.refused is not None:
            refused.append(Finding("truncated", 1, one.path, outcome.refused))
        else:
            found.append(outcome)
    if not any(one.timelines for one in found):
        raise UnreadableInput(_nothing_in(given, refused))
    return found, refused


def _nothing_in(given: Sequence[Given], refused: Sequence[Finding]) -> str:
    """Why nothing can be analysed: of a directory of the user's, not of some file in it."""
    details = [one.detail for one in refused]
    if not all(one.listed for one in given):
        return details[0] if details else "no rank in these inputs"
    damaged = [text for text in details if not text.endswith("an empty file")]
    first = f"; found {damaged[0]}" if damaged else ""
    folder = os.path.dirname(given[0].path) if given else "these inputs"
    return f"{folder}: byte 0: holds no trace; {EXPECTED} in this directory{first}"


def _failure(path: str, error: Exception) -> str:
    return f"{path}: the worker failed: {type(error).__name__}: {error!s:.200}"


def _aligned(
    surveys: Sequence[Survey], refused: list[Finding]
) -> tuple[Trace, list[_Parts], list[Collective]]:
    """The timelines of the job on one clock, every rank's parts in collectives, and these."""
    timelines = [timeline for one in surveys for timeline in one.timelines]
    trace = align(Trace(timelines, [f for one in surveys for f in one.findings] + refused))
    world = jobs.world_size(trace.timelines)
    trace.findings += clocks.refine(trace.timelines, world)
    parts = [_parts(timeline) for timeline in trace.timelines]
    matched = comm.match([own for ranks in parts for own in ranks.values()], world)
    return trace, parts, matched


def _parts(timeline: Timeline) -> _Parts:
    gpu_parts = device.gpu_parts(timeline["gpu"], timeline.strings)
    return {rank.number: parts_of(timeline, gpu_parts, rank) for rank in find_ranks(timeline)}


def _orders(
    timelines: Sequence[Timeline],
    parts: Sequence[_Parts],
    matched: Sequence[Collective],
    *,
    windowed: bool,
) -> list[Order]:
    """What each rank is to be analysed with."""
    arrived = {id(part): one.arrived for one in matched for part in one.parts}
    cuts = np.array(sorted(set(_cuts(timelines, matched))), np.int64)
    return [
        Order(
            _known(timeline.origin),
            tuple(timeline.history),
            timeline.input,
            timeline.header,
            timeline.clock,
            tuple(timeline.findings),
            {rank: integers(arrived[id(p)] for p in own) for rank, own in ranks.items()},
            cuts,
            windowed,
        )
        for timeline, ranks in zip(timelines, parts, strict=True)
    ]


def _known(value: T | None) -> T:
    assert value is not None
    return value


def _cuts(timelines: Sequence[Timeline], matched: Sequence[Collective]) -> Iterator[int]:
    """Times between which the job asks ranks for sums: arrivals, turns of requests, pauses."""
    for one in matched:
        if one.complete:
            yield from sorted(part.start for part in one.parts)[-2:]
    for timeline in timelines:
        yield from np.concatenate(pauses.pauses_of(timeline)).tolist()
        for request in requests_of(timeline):
            first = request.arrival, request.scheduled, request.first_token
            last = request.finished, request.until
            yield from (time for time in (*first, *last) if time is not None)
            yield from request.tokens
            yield from (time for pair in request.preempted for time in pair if time is not None)


def _sound(
    trace: Trace, outcomes: Sequence[Share | Exception]
) -> tuple[list[Timeline], list[Share]]:
    """The timelines that were analysed, with their shares; a finding for each of the others."""
    kept: list[tuple[Timeline, Share]] = []
    for timeline, outcome in zip(trace.timelines, outcomes, strict=True):
        if isinstance(outcome, Exception):
            path = timeline.input.path
            trace.findings.append(Finding("missing_rank", 1, path, _failure(path, outcome)))
        else:
            kept.append((timeline, outcome))
    if not kept:
        raise RcaError(trace.findings[-1].detail)
    return [timeline for timeline, _ in kept], [own for _, own in kept]


def _summary(trace: Trace, shares: Sequence[Share], matched: list[Collective]) -> dict[str, Any]:
    members = [(own.recording, one) for own in shares for one in own.partitions]
    job = Job([own.recording for own in shares], members, matched)
    requests, lives = lives_in(job)
    found = contributions.summary(
        [own.contribution for own in shares], whole(trace, job, requests, lives)
    )
    of_all = [rule for rule in RULES if not of_one_rank(rule)]
    hints.explain(found, Model(jobs.serving(job), lives), rules=of_all)
    hints.put(found, merged(found["hints"], shares))
    return found


def merged(of_job: list[dict[str, Any]], shares: Sequence[Share]) -> list[dict[str, Any]]:
    """The hints about the job and those about single ranks, the largest saving first.

    Of a cause that several ranks have, the rank is told where it costs most.
    """
    by_rule: dict[str, list[tuple[int, list[dict[str, Any]]]]] = defaultdict(list)
    for own in shares:
        number = own.partitions[0].rank.number if own.partitions else 0
        for id in dict.fromkeys(row["id"] for row in own.hints):
            by_rule[id].append((number, [row for row in own.hints if row["id"] == id]))
    rows = list(of_job)
    for found in by_rule.values():
        number, worst = max(found, key=lambda one: _weight(one[1]))
        told = {"rank": number, "ranks_affected": len(found)} if len(shares) > 1 else {}
        rows += [row | {"evidence": row["evidence"] | told} for row in worst]
    stages = {rule.id: int(rule.stage) for rule in RULES}
    return sorted(rows, key=lambda row: _order(row, stages))


def _weight(rows: Sequence[dict[str, Any]]) -> tuple[bool, int]:
    """What was judged on requests counts more than what was judged on a window."""
    return any(row["requests"] for row in rows), sum(row["saving_ns"] or 0 for row in rows)


def _order(row: dict[str, Any], stages: dict[str, int]) -> tuple[bool, int, bool, int, str]:
    saving = row["saving_ns"]
    explained = "explained_by" in row["evidence"]
    return saving is None, -(saving or 0), explained, stages[row["id"]], row["id"]
