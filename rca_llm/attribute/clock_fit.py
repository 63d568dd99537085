"""What brings one clock onto another, from pairs of times that should agree: offset, drift, steps.

Everything is robust against outliers: medians first, least squares on what agrees with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rca_llm.table import Ints

Floats = NDArray[np.float64]

FEW = 8
"""With fewer pairs their scatter says nothing: no drift, no step, no uncertainty from it."""

SAFE = 16
"""From this many pairs on drift is always fitted; with fewer only where it is unmistakable."""

FASTEST_DRIFT = 1e-3
"""No clock drifts faster, even while it is being corrected (NTP slews at 500 ppm)."""

SMALLEST_STEP_NS = 100_000
"""Smaller jumps are left to drift."""

STEP_NOISES = 10
"""A jump is a step from this many standard deviations of the scatter on."""

BLOCK_NS = 5_000_000_000
BLOCK_PAIRS = 32
"""Drift is one line over about this time, if a block holds at least so many pairs."""

NORMAL_MAD = 1.4826
"""Standard deviation of normal scatter over its median absolute deviation."""


@dataclass(frozen=True)
class Fit:
    """What to add to a clock's times: `base`, and `extra` ns at the times `at`, linear between.

    `before` and `after` are the slopes outside. `scatter` is how far single pairs are off, ns
    (twice the 95th percentile, four standard deviations of normal scatter), None for few pairs.
    `steps` are (time on this clock, ns that it was set by).
    """

    at: Ints
    base: int
    extra: Floats
    before: float
    after: float
    scatter: int | None
    steps: tuple[tuple[int, int], ...] = ()

    def correction(self, times: Ints) -> Ints:
        """What to add to each time, ns."""
        since = (times - self.at[0]).astype(np.float64)
        knots = (self.at - self.at[0]).astype(np.float64)
        found = _between(since, knots, self.extra)
        found += self.before * np.minimum(since, 0)
        found += self.after * np.maximum(since - knots[-1], 0)
        added: Ints = np.rint(found).astype(np.int64)
        return added + self.base


@dataclass(frozen=True)
class _Line:
    """A straight line; `sure` where its slope is more than scatter."""

    slope: float
    level: float
    sure: bool

    def at(self, t: Floats) -> Floats:
        """Its values."""
        return self.level + self.slope * t


def fit(times: Ints, target: Ints) -> Fit:
    """What brings `times` of one clock onto the times `target` of another; at least one pair."""
    order = np.argsort(times, kind="stable")
    times, delta = times[order], (target - times)[order]
    base = int(np.sort(delta)[(len(delta) - 1) // 2])
    t, d = (times - times[0]).astype(np.float64), (delta - base).astype(np.float64)
    pieces = _pieces(t, d)
    lines = [_line(t[piece], d[piece]) for piece in pieces]
    knots, extra = _knots(t, d, pieces, lines)
    outside = [line.slope if line.sure else 0.0 for line in (lines[0], lines[-1])]
    residual = np.abs(d - _between(t, knots, extra))
    scatter = int(np.ceil(2 * np.quantile(residual, 0.95))) if len(t) >= FEW else None
    steps = tuple(
        (int(times[piece.start]), round(float(old.at(t[piece.start]) - new.at(t[piece.start]))))
        for piece, old, new in zip(pieces[1:], lines, lines[1:], strict=False)
    )
    at = times[0] + knots.astype(np.int64)
    return Fit(at, base, extra, outside[0], outside[1], scatter, steps)


def _between(t: Floats, knots: Floats, values: Floats) -> Floats:
    """Values at some times, linear between ascending knots and level outside."""
    if len(knots) == 1:
        return np.full(len(t), values[0])
    row = np.clip(np.searchsorted(knots, t, "right") - 1, 0, len(knots) - 2)
    run = knots[row + 1] - knots[row]
    share = np.clip((t - knots[row]) / run, 0.0, 1.0)
    return np.asarray(values[row] + share * (values[row + 1] - values[row]), np.float64)


def _line(t: Floats, d: Floats) -> _Line:
    """A robust line through some pairs; level where there are too few to tell a slope."""
    flat = _Line(0.0, float(np.median(d)), False)
    if len(t) < FEW or t[-1] <= t[0]:
        return flat
    slope = _rough_slope(t, d)
    level = float(np.median(d - slope * t))
    error = 0.0
    for _ in range(2):
        keep = _close(d - level - slope * t)
        if np.ptp(t[keep]) <= 0:
            return flat
        slope, level, error = _least_squares(t[keep], d[keep])
    sure = 4 * error < abs(slope) < FASTEST_DRIFT
    return _Line(slope, level, sure) if sure or _harmless(slope, t) else flat


def _harmless(slope: float, t: Floats) -> bool:
    """Whether a slope that may be scatter does no harm between the pairs it was fitted to."""
    return len(t) >= SAFE and abs(slope) < FASTEST_DRIFT


def _rough_slope(t: Floats, d: Floats) -> float:
    """The median slope between pairs a quarter of all apart, of which a step spoils a quarter."""
    lag = max(len(t) // 4, 1)
    run = t[lag:] - t[:-lag]
    rise = (d[lag:] - d[:-lag])[run > 0]
    return float(np.median(rise / run[run > 0])) if len(rise) else 0.0


def _close(residual: Floats) -> NDArray[np.bool_]:
    off = np.abs(residual - np.median(residual))
    return np.asarray(off <= 3 * NORMAL_MAD * np.median(off) + 1)


def _least_squares(t: Floats, d: Floats) -> tuple[float, float, float]:
    """Slope, level at 0, and the standard error of the slope."""
    middle, mean = t.mean(), d.mean()
    spread = float(((t - middle) ** 2).sum())
    slope = float(((t - middle) * (d - mean)).sum() / spread)
    level = float(mean - slope * middle)
    variance = float(((d - level - slope * t) ** 2).sum()) / max(len(t) - 2, 1)
    return slope, level, float(np.sqrt(variance / spread))


def _pieces(t: Floats, d: Floats, offset: int = 0) -> list[slice]:
    """The pairs between steps, as ascending slices."""
    where = _step(t, d)
    if where is None:
        return [slice(offset, offset + len(t))]
    left = _pieces(t[:where], d[:where], offset)
    return left + _pieces(t[where:], d[where:], offset + where)


def _step(t: Floats, d: Floats) -> int | None:
    """The first pair after the largest step, None where there is none."""
    if len(t) < 2 * FEW:
        return None
    level = d - _rough_slope(t, d) * t
    medians = np.median(np.lib.stride_tricks.sliding_window_view(level, FEW), axis=1)
    jump = np.abs(medians[FEW:] - medians[:-FEW])
    changes = np.diff(level)
    noise = NORMAL_MAD * float(np.median(np.abs(changes - np.median(changes)))) / np.sqrt(2)
    place = int(np.argmax(jump))
    if jump[place] <= max(SMALLEST_STEP_NS, STEP_NOISES * noise):
        return None
    near = level[place : place + 2 * FEW]
    old, new = medians[place], medians[place + FEW]
    costs = [
        float(np.abs(near[:i] - old).sum() + np.abs(near[i:] - new).sum())
        for i in range(1, len(near))
    ]
    return place + 1 + int(np.argmin(costs))


def _knots(t: Floats, d: Floats, pieces: list[slice], lines: list[_Line]) -> tuple[Floats, Floats]:
    """Times and corrections that the pieces and their blocks lead through.

    Where a clock was set forward, the correction falls by no more than time passes, so that
    corrected times never run backwards.
    """
    at: list[float] = []
    extra: list[float] = []
    for piece, line in zip(pieces, lines, strict=True):
        for knot, value in zip(*_through(t[piece], d[piece], line), strict=True):
            if at and knot <= at[-1]:
                continue
            lowest = extra[-1] - (knot - at[-1]) if at else value
            at.append(knot)
            extra.append(max(value, lowest))
    return np.array(at), np.array(extra)


def _through(t: Floats, d: Floats, line: _Line) -> tuple[list[float], list[float]]:
    """The knots of one piece: its ends, and the middle of every block of a long one."""
    blocks = int(min((t[-1] - t[0]) / BLOCK_NS, len(t) / BLOCK_PAIRS))
    ends = np.array([t[0], t[-1]])
    if blocks < 2:
        return ends.tolist(), line.at(ends).tolist()
    groups = np.array_split(np.arange(len(t)), blocks)
    bends = [_line(t[group], (d - line.at(t))[group]) for group in groups]
    middle = np.array([float(np.median(t[group])) for group in groups])
    at = np.concatenate([ends[:1], middle, ends[1:]])
    bend = [own.at(t) for own, t in zip([bends[0], *bends, bends[-1]], at, strict=True)]
    return at.tolist(), (line.at(at) + np.array(bend)).tolist()
