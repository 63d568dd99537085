"""Latencies, steps and the window of a job as measured and as replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rca_llm.summary.stats import mean, percentile
from rca_llm.table import Array, Ints
from rca_llm.whatif.change import Change
from rca_llm.whatif.model import Model, model
from rca_llm.whatif.replay import Replay, replay
from rca_llm.whatif.unpredicted import kept, unpredicted

if TYPE_CHECKING:
    from rca_llm.report import Report


SCHEMA = "rca-llm/whatif/1"


def savings(found: Model, new: Replay, change: Change) -> dict[str, int]:
    """What a replay saves every finished request, ns; negative where it makes it slower."""
    rows = _requests(found, new, change)
    return {row["id"]: row["latency_ns"] - row["new_latency_ns"] for row in rows}


def whatif(report: Report, changed: Mapping[str, float]) -> dict[str, Any]:
    """Latencies, steps and the window as measured and as replayed with changed durations.

    Of requests nothing is predicted where the replay holds no time of the changed parts. What they
    wait in queues that stay as measured is told: of that more would be saved.
    """
    found = model(report)
    change = Change(changed)
    new = replay(found.graph, change)
    rows = _requests(found, new, change)
    lost, nothing = unpredicted(found, change)
    if nothing:
        rows = [row | {"new_latency_ns": None, "new_ttft_ns": None} for row in rows]
    steps = _steps(found, new)
    return {
        "schema": SCHEMA,
        "set": dict(changed),
        "latency": _figures(rows, "latency"),
        "ttft": _figures(rows, "ttft"),
        "steps": _change(mean([a for a, _ in steps]), mean([b for _, b in steps]), len(steps)),
        "window": _window(found, new, rows),
        "not_predicted": lost,
        "kept_as_measured": kept(found),
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
    new: list[int] = sorted(ns for row in told if (ns := row[f"new_{name}_ns"]) is not None)
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


def _window(found: Model, new: Replay, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The window; as replayed not known where requests change that the replay's threads do not."""
    whole = window(found, new)
    changed = {row["id"]: row["new_latency_ns"] for row in rows}
    for own, clock in zip(found.requests, new.clocks, strict=True):
        through = np.rint(clock(own.arrival + own.lasted) - clock(own.arrival)).astype(np.int64)
        rows_alone: list[int] = np.flatnonzero(own.alone).tolist()
        each = [(changed[own.ids[row]], int(through[row])) for row in rows_alone]
        if any(ns is None or abs(ns - engine) > ROUNDING for ns, engine in each):
            return _change(whole["measured_ns"], None)
    return whole


ROUNDING = 1
"""What times may differ by that are rounded, ns."""


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
