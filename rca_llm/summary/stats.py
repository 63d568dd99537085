"""Statistics as the contract defines them, on integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rca_llm.table import Ints


def percentile(ordered: Sequence[int], percent: int) -> int | None:
    """The nearest-rank percentile of ascending values, None of none."""
    if not ordered:
        return None
    rank = max(math.ceil(len(ordered) * percent / 100), 1)
    return ordered[rank - 1]


def mean(values: Sequence[int]) -> int | None:
    """The mean, rounded to an integer, None of none."""
    return round(sum(values) / len(values)) if values else None


def variation(values: Sequence[int]) -> float | None:
    """Standard deviation over mean, None of none or where the mean is 0."""
    if not values or sum(values) == 0:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / len(values)) / middle


def distribution(values: Sequence[int]) -> dict[str, int | None]:
    """Median, P99 and maximum."""
    ordered = sorted(values)
    return {
        "p50": percentile(ordered, 50),
        "p99": percentile(ordered, 99),
        "max": ordered[-1] if ordered else None,
    }


def weighted(values: Sequence[tuple[Ints, Ints]]) -> dict[str, int | None]:
    """The same of values that stand as (distinct values, how often each occurs), in pieces."""
    if not values:
        return distribution([])
    distinct = np.concatenate([value for value, _ in values])
    order = np.argsort(distinct, kind="stable")
    distinct = distinct[order]
    reached = np.cumsum(np.concatenate([count for _, count in values])[order])

    def at(percent: int) -> int:
        rank = max(math.ceil(int(reached[-1]) * percent / 100), 1)
        return int(distinct[np.searchsorted(reached, rank, "left")])

    return {"p50": at(50), "p99": at(99), "max": int(distinct[-1])}
