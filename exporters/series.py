"""The series behind the page's plots: latencies, cohorts, steps and kernels, thinned to fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import Summary, given
from rca_llm.table import Ints

MOST_BARS = 120
"""Requests or steps drawn as bars of their own; more are thinned by rank or merged in time."""

MOST_POINTS = 600
"""Points of a line."""

MOST_KERNELS = 300
"""Rows of kernels that are drawn; they are in the order of their total time."""


def latency(summary: Summary) -> dict[str, Any] | None:
    """Requests by latency, slowest last, each with its classes, ns; None without requests."""
    rows = [r for r in summary["requests"] if r["latency_ns"] is not None and r.get("shares")]
    if not rows:
        return None
    rows.sort(key=lambda row: row["latency_ns"])
    kept = [rows[i] for i in _evenly(len(rows), MOST_BARS)]
    return {
        "count": len(rows),
        "ids": [shown(row["id"], 80) for row in kept],
        "total": [row["latency_ns"] for row in kept],
        "shares": {name: [row["shares"].get(name) for row in kept] for name in CLASSES},
        "marks": {n: given(summary["latency"]).get(n) for n in ("p50", "p90", "p99")},
        "curve": [rows[i]["latency_ns"] for i in _evenly(len(rows), MOST_POINTS)],
        "ranks": [(i + 1) / len(rows) for i in _evenly(len(rows), MOST_POINTS)],
    }


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, evenly spread, the first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(at * (count - 1) / (most - 1)) for at in range(most)})


def cohorts(summary: Summary) -> dict[str, Any] | None:
    """Mean parts of slow and fast requests, largest difference first; None unless both exist."""
    found = given(summary["cohorts"])
    slow, fast = given(found.get("slow")), given(found.get("fast"))
    if not slow.get("count") or not fast.get("count"):
        return None
    before, after = given(fast["parts"]), given(slow["parts"])
    names = sorted({*before, *after}, key=lambda n: -abs(after.get(n, 0) - before.get(n, 0)))[:10]
    return {
        "parts": names,
        "slow": [after.get(name, 0) for name in names],
        "fast": [before.get(name, 0) for name in names],
        "counts": [slow["count"], fast["count"]],
    }


def steps(summary: Summary, origin: int) -> dict[str, Any] | None:
    """Tokens and length of every step, merged where there are many; times are ns after `origin`."""
    rows = sorted(summary["steps"], key=lambda step: step["start_ns"])
    if not rows:
        return None
    merged = [[rows[i] for i in group.tolist()] for group in _neighbours(rows)]
    return {
        "count": len(rows),
        "merged": len(rows) > len(merged),
        "start": [group[0]["start_ns"] - origin for group in merged],
        "length": [group[-1]["end_ns"] - group[0]["start_ns"] for group in merged],
        "longest": [max(s["end_ns"] - s["start_ns"] for s in group) for group in merged],
        "prefill": [_total(group, "prefill_tokens") for group in merged],
        "decode": [_total(group, "decode_tokens") for group in merged],
        "ids": [shown(group[0]["id"], 40) for group in merged],
    }


def _neighbours(rows: list[Any]) -> list[Ints]:
    """As many steps each as leave few groups, and none across a gap that is seen, as in a pause."""
    most = MOST_POINTS // 2
    number = np.arange(len(rows)) * min(most, len(rows)) // len(rows)
    start = np.array([row["start_ns"] for row in rows])
    reached = np.maximum.accumulate([row["end_ns"] for row in rows])
    apart = start[1:] - reached[:-1] > (reached[-1] - start[0]) / most
    return np.split(np.arange(len(rows)), np.flatnonzero(apart | (np.diff(number) > 0)) + 1)


def _total(rows: list[Any], key: str) -> int | None:
    known = [row[key] for row in rows if row[key] is not None]
    return sum(known) if known else None


def kernels(summary: Summary) -> list[dict[str, Any]]:
    """The rows of kernels with most time; mean duration in ns."""
    return [_kernel(row) for row in summary["kernels"][:MOST_KERNELS] if row["count"]]


def _kernel(row: Summary) -> dict[str, Any]:
    return {
        "name": shown(row["name"], 100),
        "class": row["class"].partition(".")[0],
        "mean": row["total_ns"] / row["count"],
        "share": row["share"],
        "occupancy": row["occupancy"],
    }
