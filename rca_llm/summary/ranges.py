"""The `ranges` rows: NVTX and probe ranges, annotations and operators, with the work in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.table import Array, Ints, known
from rca_llm.trace import KERNEL, SYSTEM_DOMAINS, Timeline

NO_RANGE = -1


Sums = dict[tuple[str, str | None], list[int]]
"""By name and domain: the numbers of a row."""


def range_sums(recording: Recording) -> Sums:
    """What one recording adds to the rows."""
    return _added(_rows_of(recording))


def range_rows(several: Iterable[Sums]) -> list[dict[str, Any]]:
    """One row for each name and domain, the longest total first."""
    found = _added(item for sums in several for item in sums.items())
    names = ("count", "total_ns", "self_ns", "kernels", "gpu_ns")
    return [
        {"name": name, "domain": domain, **dict(zip(names, sums, strict=True))}
        for (name, domain), sums in sorted(found.items(), key=lambda item: -item[1][1])
    ]


def _added(rows: Iterable[tuple[tuple[str, str | None], list[int]]]) -> Sums:
    """The sums of rows with one key."""
    found: Sums = {}
    for key, sums in rows:
        row = found.setdefault(key, [0] * len(sums))
        found[key] = [a + b for a, b in zip(row, sums, strict=True)]
    return found


def _rows_of(recording: Recording) -> list[tuple[tuple[str, str | None], list[int]]]:
    timeline = recording.timeline
    ranges = timeline["ranges"]
    rows = marked(timeline)
    rows = rows[known(ranges["start"][rows]) & (ranges["name"][rows] >= 0)]
    if not len(rows):
        return []
    name, domain = (
        ranges["name"][rows].astype(np.int64),
        ranges["domain"][rows].astype(np.int64),
    )
    codes, key = np.unique(name * (len(timeline.strings) + 1) + domain + 1, return_inverse=True)
    forest = _Forest(recording, rows)
    kernels, gpu_ns = _launched_in(recording, forest, key, len(codes))
    sums = [
        np.bincount(key, minlength=len(codes)),
        intervals.sum_by(key, forest.duration, len(codes)),
        intervals.sum_by(key, forest.own_time(), len(codes)),
        kernels,
        gpu_ns,
    ]
    columns = np.stack(sums, axis=1).tolist()
    names = [divmod(code, len(timeline.strings) + 1) for code in codes.tolist()]
    return [
        ((timeline.strings[n], timeline.text(d - 1)), row)
        for (n, d), row in zip(names, columns, strict=True)
    ]


def marked(timeline: Timeline) -> Ints:
    """The rows of `ranges` that a program, a framework or a probe marked."""
    domain = timeline["ranges"]["domain"]
    system = [timeline.strings.find(name) for name in SYSTEM_DOMAINS]
    return np.flatnonzero(~among(domain, [code for code in system if code >= 0]))


class _Forest:
    """How the ranges of each thread nest; rows are those given, in their order."""

    def __init__(self, recording: Recording, rows: Ints) -> None:
        timeline = recording.timeline
        ranges = timeline["ranges"].take(rows)
        self.start = ranges["start"]
        self.end = np.maximum(np.where(known(ranges["end"]), ranges["end"], self.start), self.start)
        thread = recording.host.range_thread[rows]
        order = np.lexsort([-self.end, self.start, thread])
        self.trees = [
            (int(thread[order[r.start]]), order[r]) for r in intervals.runs(thread[order])
        ]
        self.parent = np.full(len(rows), NO_RANGE, np.int64)
        for _, tree in self.trees:
            around = intervals.parents(self.start[tree], self.end[tree])
            self.parent[tree] = np.where(around >= 0, tree[np.maximum(around, 0)], NO_RANGE)

    @property
    def duration(self) -> Ints:
        """How long each range lasted, ns."""
        return self.end - self.start

    def own_time(self) -> Ints:
        """How long each range lasted without the ranges nested in it, ns."""
        nested = self.parent >= 0
        start, end = self.start[nested], self.end[nested]
        # The union: siblings may cross, and their sum could then exceed what is around them.
        inside = intervals.lengths_by(self.parent[nested], start, end, len(self.parent))
        return self.duration - inside

    def innermost(self, thread: Ints, time: Ints) -> Ints:
        """The innermost range on a thread that contains each time, -1 for none."""
        found = np.full(len(time), NO_RANGE, np.int64)
        for number, tree in self.trees:
            mine = np.flatnonzero(thread == number)
            place = np.searchsorted(self.start[tree], time[mine], "right") - 1
            found[mine] = np.where(place >= 0, tree[np.maximum(place, 0)], NO_RANGE)
        outside = np.flatnonzero((found >= 0) & (self.end[found] <= time))
        while len(outside):
            found[outside] = self.parent[found[outside]]
            outside = outside[(found[outside] >= 0) & (self.end[found[outside]] <= time[outside])]
        return found


def _launched_in(recording: Recording, forest: _Forest, key: Array, keys: int) -> tuple[Ints, Ints]:
    """For every key, the kernels launched in its ranges: their number and their union, ns."""
    gpu, api = recording.timeline["gpu"], recording.timeline["api"]
    call = recording.links.api_row
    kernels = np.flatnonzero((gpu["kind"] == KERNEL) & (call >= 0))
    if not len(kernels):
        return np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    at = forest.innermost(recording.host.api_thread[call[kernels]], api["start"][call[kernels]])
    pairs: list[Ints] = []
    while True:
        inside = at >= 0
        kernels, at = kernels[inside], at[inside]
        if not len(kernels):
            break
        pairs.append(key[at].astype(np.int64) * len(gpu) + kernels)
        at = forest.parent[at]
    owner, row = np.divmod(
        intervals.distinct(np.concatenate([*pairs, np.empty(0, np.int64)])), len(gpu)
    )
    timed = known(gpu["start"][row])
    lengths = intervals.lengths_by(
        owner[timed], gpu["start"][row[timed]], gpu["end"][row[timed]], keys
    )
    return np.bincount(owner, minlength=keys), lengths
