"""What latency would be if some parts took another time, from replaying the dependency graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rca_llm.arrivals import Turns
from rca_llm.attribute import job as jobs
from rca_llm.attribute.job import Job
from rca_llm.attribute.lives import lives_in
from rca_llm.attribute.parts import PARTS
from rca_llm.attribute.requests import Life
from rca_llm.errors import RcaError
from rca_llm.replay import Change, Graph, Replay, graph, replay
from rca_llm.summary.stats import mean, percentile
from rca_llm.table import Array, Ints
from rca_llm.whatif_requests import Requests, by_rank

if TYPE_CHECKING:
    from rca_llm.report import Report

SCHEMA = "rca-llm/whatif/1"

DERIVED = (
    *("communication.wait", "scheduling.queue", "scheduling.preempt", "scheduling.recompute"),
    *("scheduling.prefill_interference", "scheduling.client"),
    *("unknown.not_traced", "unknown.not_recorded"),
)
"""Parts that follow from the others, or that nobody can change."""


LARGEST_FACTOR = 1_000
"""With it, the times of a trace of three months still fit into 64 bits."""


def factors(settings: Sequence[str]) -> dict[str, float]:
    """The factor of every part that `NAME=FACTOR` settings change; a class stands for its parts.

    Raises `RcaError` for anything else.
    """
    found: dict[str, float] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        parts = [p for p in PARTS if name in (p, p.partition(".")[0]) and p not in DERIVED]
        if name in DERIVED:
            raise RcaError(f"{name} follows from the other parts and cannot be set")
        if not parts:
            raise RcaError(f"{name}: no such class or part; see the parts of a report")
        found |= dict.fromkeys(parts, _factor(text, setting))
    return found


def _factor(text: str, setting: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_FACTOR:
        raise RcaError(f"{setting}: expected NAME=FACTOR with a factor of 0 to {LARGEST_FACTOR:,}")
    return value


@dataclass(frozen=True)
class Model:
    """A job, the lives of its requests, and the dependency graph of both, ready to be replayed."""

    job: Job
    lives: Sequence[Life]

    @cached_property
    def graph(self) -> Graph:
        """The graph, built when it is first asked for: hints and predictions share it."""
        return graph(self.job, self.lives)

    @cached_property
    def turns(self) -> list[Turns]:
        """The steps of every rank, which requests wait for; times as in the graph."""
        base, ranks = self.graph.base, self.job.ranks
        both = [(one.steps.start[own.steps], one.steps.end[own.steps]) for one, own in ranks]
        return [Turns(start - base, end - base) for start, end in both]

    @cached_property
    def requests(self) -> list[Requests]:
        """The finished requests of every rank; times as in the graph."""
        return by_rank(self.job, self.lives, self.graph.base)


def model(report: Report) -> Model:
    """The dependency graph behind a report."""
    if report.model is not None:
        return report.model
    job = jobs.attribute(report.trace.timelines)
    return Model(job, lives_in(job)[1])


def savings(found: Model, new: Replay, change: Change) -> dict[str, int]:
    """What a replay saves every finished request, ns; negative where it makes it slower."""
    rows = _requests(found, new, change)
    return {row["id"]: row["latency_ns"] - row["new_latency_ns"] for row in rows}


def whatif(report: Report, changed: Mapping[str, float]) -> dict[str, Any]:
    """Latencies, steps and the window as measured and as replayed with changed durations."""
    found = model(report)
    change = Change(changed)
    new = replay(found.graph, change)
    rows = _requests(found, new, change)
    steps = _steps(found, new)
    return {
        "schema": SCHEMA,
        "set": dict(changed),
        "latency": _figures(rows, "latency"),
        "ttft": _figures(rows, "ttft"),
        "steps": _change(mean([a for a, _ in steps]), mean([b for _, b in steps]), len(steps)),
        "window": window(found, new),
        "requests": rows,
    }


def _requests(found: Model, new: Replay, change: Change) -> list[dict[str, Any]]:
    """Every finished request as measured and as replayed, in the order of their lives."""
    rows: dict[int, dict[str, Any]] = {}
    for own, turns, clock in zip(found.requests, found.turns, new.clocks, strict=True):
        replayed = own.replayed(turns, clock, change, found.graph.base)
        rows |= zip(own.place.tolist(), replayed, strict=True)
    return [row for _, row in sorted(rows.items(), key=lambda item: item[0])]


def _figures(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Mean and percentiles of a time over the requests, as measured and as replayed."""
    told = [row for row in rows if row[f"{name}_ns"] is not None]
    old: list[int] = sorted(row[f"{name}_ns"] for row in told)
    new: list[int] = sorted(row[f"new_{name}_ns"] for row in told)
    return {
        "count": len(told),
        "mean": _change(mean(old), mean(new)),
        "p50": _change(percentile(old, 50), percentile(new, 50)),
        "p99": _change(percentile(old, 99), percentile(new, 99)),
    }


def _change(old: int | None, new: int | None, count: int | None = None) -> dict[str, Any]:
    saved = None if old is None or new is None else old - new
    row: dict[str, Any] = {"measured_ns": old, "replayed_ns": new, "saved_ns": saved}
    return row if count is None else {"count": count} | row


def _steps(found: Model, new: Replay) -> list[tuple[int, int]]:
    """The durations of all steps, their device work included, as measured and as replayed, ns."""
    rows: list[tuple[int, int]] = []
    work, base = found.graph.work, found.graph.base
    for number, (recording, partition) in enumerate(found.job.ranks):
        clock, steps = new.clocks[number], partition.steps
        start, end = recording.steps.start - base, recording.steps.end - base
        mine = np.flatnonzero((work.rank == number) & (work.step >= 0))
        old = _lasting(start, end, work.step[mine], work.end[mine])[steps]
        replayed = _lasting(clock(start), clock(end), work.step[mine], new.end[mine])[steps]
        rows += zip(old.tolist(), replayed.tolist(), strict=True)
    return rows


def _lasting(start: Array, end: Array, step: Ints, done: Array) -> Ints:
    """From each step's start to the later of its end and the end of its work, ns."""
    last: Array = end.astype(np.float64)
    np.maximum.at(last, step, done)
    return np.asarray(np.rint(last - start), np.int64)


def window(found: Model, new: Replay) -> dict[str, Any]:
    """The time from the first to the last record of the rank that ends last."""
    work = found.graph.work
    old: list[int] = []
    replayed: list[int] = []
    for number, (_, partition) in enumerate(found.job.ranks):
        rank, base = partition.rank, found.graph.base
        edges = new.clocks[number](np.array([rank.start - base, rank.end - base]))
        mine = new.end[work.rank == number]
        end = max(float(edges[1]), float(mine.max(initial=-np.inf)))
        old.append(rank.span)
        replayed.append(round(end - float(edges[0])))
    return _change(max(old, default=None), max(replayed, default=None))
