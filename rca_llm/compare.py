"""What changed between two traces, and why: by class, part, range, kernel and launch shape.

Times are compared per unit of work: a finished request where both sides have some, else a step or
top-level range, else the whole window. A change counts if it exceeds the noise of both sides: three
standard errors of the difference of the means. The errors take units, or calls, for independent;
requests of one batch are not quite, so small changes in few batches deserve a second run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca_llm.attribute.parts import CLASSES
from rca_llm.comparable import differences
from rca_llm.report import Report
from rca_llm.summary.device import SHAPE
from rca_llm.summary.ranges import marked
from rca_llm.table import Array, Ints, Table, known
from rca_llm.trace import KERNEL, Timeline

SCHEMA = "rca-llm/compare/1"

ERRORS = 3
"""How many standard errors a change must exceed."""

LEAST = 0.01
"""A change under this fraction of the base is none, however certain."""

MOST_ROWS = 200
"""Ranges and kernels that are listed, the largest changes first."""


@dataclass(frozen=True)
class Sample:
    """Times of one thing on one side, ns: how many, their sum, and the sum of their squares."""

    count: int = 0
    total: int = 0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Array) -> Sample:
        """The sample of some times."""
        real = values.astype(np.float64)
        return cls(len(values), int(values.sum()), float(real @ real))

    def joined(self, other: Sample) -> Sample:
        """Two samples as one."""
        return Sample(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    @property
    def mean(self) -> float:
        """The mean, 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    @property
    def variance(self) -> float | None:
        """The variance of one value, None of fewer than two."""
        if self.count < 2:
            return None
        return max(self.squares - self.total * self.mean, 0.0) / (self.count - 1)


@dataclass(frozen=True)
class Side:
    """One side: its units of work by class and part, its ranges, its kernels by launch shape."""

    kind: str
    units: int
    whole: Sample
    classes: Mapping[str, Sample]
    parts: Mapping[str, Sample]
    ranges: Mapping[str, Sample]
    kernels: Mapping[str, Mapping[tuple[int, ...], Sample]]


def compare(base: Report, other: Report) -> dict[str, Any]:
    """The differences as a document: what a unit of work takes on both sides, and its pieces."""
    kind = _common_kind(base, other)
    different, unjudged = differences(base, other)
    one, two = side(base, kind), side(other, kind)
    return {
        "schema": SCHEMA,
        "unit": kind,
        "not_comparable": different,
        "not_judged": unjudged,
        "base": {"inputs": _inputs(base), "units": one.units},
        "other": {"inputs": _inputs(other), "units": two.units},
        "latency": _mean_row(kind, one.whole, two.whole),
        "classes": [_mean_row(n, one.classes[n], two.classes[n]) for n in CLASSES],
        "parts": _by_change(
            [
                _mean_row(n, *_pair(one.parts, two.parts, n, one, two))
                for n in sorted({*one.parts, *two.parts})
            ]
        ),
        "ranges": _changed(
            [
                _call_row(n, one.ranges.get(n), two.ranges.get(n), one, two)
                for n in sorted({*one.ranges, *two.ranges})
            ]
        ),
        "kernels": _changed(
            [_kernel_row(n, one, two) for n in sorted({*one.kernels, *two.kernels})]
        ),
        "hints": _hints(base, other),
    }


def _inputs(report: Report) -> list[str]:
    return [row["path"] for row in report.summary["inputs"]]


def _pair(
    a: Mapping[str, Sample], b: Mapping[str, Sample], name: str, one: Side, two: Side
) -> tuple[Sample, Sample]:
    """A part on both sides; where a side has none of it, every unit of it has 0."""
    return a.get(name, Sample(one.units)), b.get(name, Sample(two.units))


def _common_kind(base: Report, other: Report) -> str:
    """The finest unit of work that both sides have."""
    sides = [report.summary for report in (base, other)]
    if all(_finished(summary) for summary in sides):
        return "request"
    if all(summary["windows"] for summary in sides) and not any(s["requests"] for s in sides):
        return "step" if all(summary["steps"] for summary in sides) else "range"
    return "window"


def _finished(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in summary["requests"] if row["status"] == "finished"]


def side(report: Report, kind: str) -> Side:
    """One side of a comparison in units of a kind."""
    rows = _units(report.summary, kind)
    whole = np.array([sum(row["shares"].values()) for row in rows], np.int64)
    names = sorted({name for row in rows for name in row["parts"]})
    return Side(
        kind,
        len(rows),
        Sample.of(whole),
        {n: Sample.of(np.array([row["shares"][n] for row in rows], np.int64)) for n in CLASSES},
        {n: Sample.of(np.array([row["parts"].get(n, 0) for row in rows], np.int64)) for n in names},
        _ranges(report.trace.timelines),
        _kernels(report.trace.timelines),
    )


def _units(summary: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    if kind == "request":
        return _finished(summary)
    return list(summary["windows"]) if kind in ("step", "range") else [summary]


def _ranges(timelines: Sequence[Timeline]) -> dict[str, Sample]:
    """The times of all named ranges, by name."""
    found: dict[str, Sample] = {}
    for timeline in timelines:
        ranges = timeline["ranges"].take(marked(timeline))
        timed = known(ranges["start"]) & known(ranges["end"]) & (ranges["name"] >= 0)
        ranges = ranges.take(timed)
        lasting = np.maximum(ranges["end"] - ranges["start"], 0)
        for code, rows in _groups(ranges["name"]):
            name = timeline.strings[code]
            found[name] = found.get(name, Sample()).joined(Sample.of(lasting[rows]))
    return found


def _kernels(timelines: Sequence[Timeline]) -> dict[str, dict[tuple[int, ...], Sample]]:
    """The times of all kernels, by name and launch shape."""
    found: dict[str, dict[tuple[int, ...], Sample]] = {}
    for timeline in timelines:
        gpu = timeline["gpu"]
        kernels = gpu.take(np.flatnonzero((gpu["kind"] == KERNEL) & known(gpu["start"])))
        for code, rows in _groups(kernels["name"]):
            shapes = found.setdefault(timeline.strings[code], {})
            for shape, sample in _by_shape(kernels.take(rows)):
                shapes[shape] = shapes.get(shape, Sample()).joined(sample)
    return found


def _groups(codes: Array) -> list[tuple[int, Ints]]:
    """The rows of every code."""
    order = np.argsort(codes, kind="stable")
    cuts = np.flatnonzero(np.diff(codes[order])) + 1
    return [(int(codes[rows[0]]), rows) for rows in np.split(order, cuts) if len(rows)]


def _by_shape(kernels: Table) -> list[tuple[tuple[int, ...], Sample]]:
    """The times of kernels of one name by launch shape."""
    columns = np.stack([kernels[name] for name in SHAPE], axis=1)
    shapes, number = np.unique(columns, axis=0, return_inverse=True)
    lasting = np.maximum(kernels["end"] - kernels["start"], 0)
    return [
        (tuple(shape.tolist()), Sample.of(lasting[number.reshape(-1) == place]))
        for place, shape in enumerate(shapes)
    ]


def _noise(variances: Sequence[tuple[float | None, float]]) -> int | None:
    """`ERRORS` standard errors of a difference; None where a side is too small to tell.

    Each side gives the variance of one value and how many values' worth of error it carries.
    """
    parts = [None if variance is None else variance * weight for variance, weight in variances]
    if any(part is None for part in parts):
        return None
    return math.ceil(ERRORS * math.sqrt(sum(part for part in parts if part is not None)))


def _mean_row(name: str, base: Sample, other: Sample) -> dict[str, Any]:
    """A mean per unit on both sides."""
    noise = _noise([(s.variance, 1 / s.count if s.count else 0.0) for s in (base, other)])
    return _row(name, base.mean, other.mean, noise)


def _row(name: str, base: float, other: float, noise: int | None) -> dict[str, Any]:
    delta = round(other) - round(base)
    return {
        "name": name,
        "base_ns": round(base),
        "other_ns": round(other),
        "delta_ns": delta,
        "noise_ns": noise,
        "changed": None if noise is None else abs(delta) > max(noise, LEAST * base),
    }


def _call_row(
    name: str, base: Sample | None, other: Sample | None, one: Side, two: Side
) -> dict[str, Any]:
    """The time of all calls of one name per unit, with what changed: how many, or how long."""
    a, b = base or Sample(), other or Sample()
    sides = ((a, one.units), (b, two.units))
    per = [s.total / units if units else 0.0 for s, units in sides]
    noise = _noise([(_spread(s), s.count / units**2 if units else 0.0) for s, units in sides])
    counts = [s.count / units if units else 0.0 for s, units in sides]
    return _row(name, per[0], per[1], noise) | {
        "base_count": counts[0],
        "other_count": counts[1],
        "base_mean_ns": round(a.mean) if a.count else None,
        "other_mean_ns": round(b.mean) if b.count else None,
        "why": _why(a, b, counts),
    }


def _spread(sample: Sample) -> float | None:
    """The variance of one call; nothing has none, one call an unknown one."""
    return 0.0 if not sample.count else sample.variance


def _why(base: Sample, other: Sample, counts: Sequence[float]) -> str:
    """Whether calls came or went, became more, or became longer: what explains most."""
    if not base.count or not other.count:
        return "new" if other.count else "gone"
    by_count = (counts[1] - counts[0]) * base.mean
    by_time = counts[1] * (other.mean - base.mean)
    if abs(by_count) >= abs(by_time):
        return "more calls" if by_count > 0 else "fewer calls" if by_count < 0 else "same"
    return "longer calls" if by_time > 0 else "shorter calls"


def _kernel_row(name: str, one: Side, two: Side) -> dict[str, Any]:
    """A kernel on both sides, with its launch shapes where these differ."""
    shapes = [dict(s.kernels.get(name, {})) for s in (one, two)]
    row = _call_row(name, _sum(shapes[0]), _sum(shapes[1]), one, two)
    main = [max(found, key=lambda s: found[s].total, default=None) for found in shapes]
    moved = None not in main and set(shapes[0]) != set(shapes[1]) and main[0] != main[1]
    return row | {
        "base_shape": _shape(main[0]),
        "other_shape": _shape(main[1]),
        "why": f"{row['why']}, launch shape changed" if moved else row["why"],
    }


def _sum(shapes: Mapping[tuple[int, ...], Sample]) -> Sample:
    found = Sample()
    for sample in shapes.values():
        found = found.joined(sample)
    return found


def _shape(shape: tuple[int, ...] | None) -> dict[str, Any] | None:
    """A launch shape as in the summary's kernels; None where it was not recorded."""
    if shape is None or min(shape[:6]) < 0:
        return None
    return {
        "grid": list(shape[:3]),
        "block": list(shape[3:6]),
        "registers": shape[6] if shape[6] >= 0 else None,
        "shared_bytes": shape[7] if shape[7] >= 0 else None,
    }


def _by_change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (-abs(row["delta_ns"]), row["name"]))


def _changed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the largest changes; those that are surely unchanged are left out."""
    return _by_change([row for row in rows if row["changed"] is not False])[:MOST_ROWS]


def _hints(base: Report, other: Report) -> dict[str, list[dict[str, Any]]]:
    """Hints that only one side has, by rule."""
    before, after = ({h["id"]: h for h in r.summary["hints"]} for r in (base, other))
    return {
        "new": [_short(after[id]) for id in after if id not in before],
        "gone": [_short(before[id]) for id in before if id not in after],
    }


def _short(hint: Mapping[str, Any]) -> dict[str, Any]:
    return {key: hint[key] for key in ("id", "title", "class", "confidence", "saving_ns")}
