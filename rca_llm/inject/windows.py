"""A part of a trace as a trace of its own: what a process recorded between two instants."""

from __future__ import annotations

import numpy as np

from rca_llm.attribute.links import link
from rca_llm.table import UNKNOWN, Ints, Mask, Table, known
from rca_llm.trace import Timeline, Trace

_TIMES = {
    **dict.fromkeys(("ranges", "collectives", "steps", "states"), "start"),
    **dict.fromkeys(("tokens", "marks", "samples"), "t"),
    "requests": "arrival",
}
"""The column that says when a record was; other tables are kept whole."""


def between(trace: Trace, start: int, end: int) -> Trace:
    """The records of a trace that begin in [start, end), times of its own clocks.

    A call and the device work that it launched are there together or not at all: a launch near the
    end whose kernel begins later would look as if the kernel had been lost. Work that was launched
    before the part begins and ran in it is kept, as the device was busy with it.
    """
    return Trace([_timeline(timeline, start, end) for timeline in trace.timelines])


def _timeline(timeline: Timeline, start: int, end: int) -> Timeline:
    found = timeline.copy()
    found.findings = []
    for name, column in _TIMES.items():
        table = timeline[name]
        found.tables[name] = table.take(_inside(table, column, start, end))
    found.tables |= _device(timeline["gpu"], timeline["api"], start, end)
    found.tables["batch"] = _batch(timeline, start, end)
    found.tables["processes"] = _processes(timeline["processes"], start, end)
    return found


def _device(gpu: Table, api: Table, start: int, end: int) -> dict[str, Table]:
    """Device work and calls; a call with work is there where its first work begins in time."""
    caller = link(gpu, api).api_row
    same = link(api, api).api_row  # a runtime and a driver call of one launch share an id
    first = np.full(len(api), np.iinfo(np.int64).max)
    linked = caller >= 0
    np.minimum.at(first, caller[linked], gpu["start"][linked])
    late = np.append((first >= end) & (first < np.iinfo(np.int64).max), False)
    calls = _inside(api, "start", start, end)
    by_call = np.append(calls & ~late[:-1], False)[caller]
    work = np.where(np.append(calls, False)[caller], by_call, _inside(gpu, "start", start, end))
    return {"gpu": gpu.take(work), "api": api.take(calls & ~late[same])}


def _processes(table: Table, start: int, end: int) -> Table:
    """All of them, alive within the part alone."""
    kept = {
        column: np.where(known(table[column]), np.clip(table[column], start, end), UNKNOWN)
        for column in ("start", "end")
        if column in table
    }
    return table.with_columns(**kept)


def _inside(table: Table, column: str, start: int, end: int) -> Mask:
    return np.asarray((table[column] >= start) & (table[column] < end))


def _batch(timeline: Timeline, start: int, end: int) -> Table:
    """Who was in the steps that are kept; the rows of `steps` have new numbers."""
    steps, batch = timeline["steps"], timeline["batch"]
    kept = _inside(steps, "start", start, end)
    number: Ints = np.where(kept, np.cumsum(kept) - 1, -1)
    if not len(batch):
        return batch
    row = np.append(number, -1)[batch["step"]]
    return batch.with_columns(step=row).take(row >= 0)
