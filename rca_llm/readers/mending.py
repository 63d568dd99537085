"""Mending of what recorders leave behind: open ranges and missing times."""

from __future__ import annotations

import numpy as np

from rca_llm.table import UNKNOWN, Ints, Mask, Table, known
from rca_llm.trace import Timeline

_SPANS = ("api", "ranges", "steps", "states", "collectives")
"""Tables of the host whose rows last from a start to an end."""

_LASTING = ("ranges", "collectives")
"""Those of which one that was never closed is told of: it lasted until the end."""

_POINTS = ("marks", "tokens", "samples")
_TIMED = ("gpu", "api", "ranges", "steps")


def mend(timeline: Timeline) -> None:
    """Bring the tables into a state that analysis can rely on, noting every change.

    Afterwards host records have a start, and an end that is not before it. Device records are
    repaired later, since they need more than their own times, and so are records that came twice.
    """
    for name in _SPANS:
        _mend_spans(timeline, name)
    for name in _POINTS:
        rows = timeline[name]
        timeline.tables[name] = _timed(timeline, name, rows, known(rows["t"]))
    for name in _LASTING:
        _close(timeline, name)


def _mend_spans(timeline: Timeline, name: str) -> None:
    """Leave out records without a start, and let none end before it starts."""
    if name == "steps":
        _renumber(timeline, known(timeline["steps"]["start"]))
    table = timeline[name]
    table = _timed(timeline, name, table, known(table["start"]))
    start, end = table["start"], table["end"]
    instants = known(end) & (end < start)
    timeline.note("negative_duration", int(instants.sum()), name, "taken as instants")
    if name not in _LASTING:
        timeline.note("no_timestamp", int((~known(end)).sum()), name, "no end; taken as instants")
        instants |= ~known(end)
    if np.any(instants):
        table = table.with_columns(end=np.where(instants, start, end))
    timeline.tables[name] = table


def _timed(timeline: Timeline, name: str, table: Table, timed: Mask) -> Table:
    """The rows that have a time."""
    if timed.all():
        return table
    timeline.note("no_timestamp", int((~timed).sum()), name, "no start; left out")
    return table.take(timed)


def _renumber(timeline: Timeline, kept: Mask) -> None:
    """Let the rows of `batch` point to their steps once some steps are left out."""
    if not kept.all():
        batch = timeline["batch"]
        batch = batch.with_columns(step=np.where(kept, np.cumsum(kept) - 1, -1)[batch["step"]])
        timeline.tables["batch"] = batch.take(batch["step"] >= 0)


def _close(timeline: Timeline, name: str) -> None:
    """Let what was never closed end with the last record of its process."""
    table = timeline[name]
    rows = np.flatnonzero(~known(table["end"]))
    if not len(rows):
        return
    end = np.array(table["end"])
    for process in np.unique(table["process"][rows]).tolist():
        own = rows[table["process"][rows] == process]
        end[own] = np.maximum(_last(timeline, process), table["start"][own])
    timeline.tables[name] = with_ends(table, rows, end)
    detail = "never closed; taken to end with the last record of their process"
    timeline.note("repaired", len(rows), name, detail)


def with_ends(table: Table, rows: Ints, end: Ints) -> Table:
    """A table with other ends, and its `rows` marked as never closed where it has such a column."""
    table = table.with_columns(end=end)
    if "open" not in table.schema:
        return table
    opened = np.zeros(len(end), np.int32)
    opened[rows] = 1
    return table.with_columns(open=opened)


def _last(timeline: Timeline, process: int) -> int:
    """The last time in any record of a process."""
    last = UNKNOWN
    for table in _TIMED:
        rows = timeline[table]["process"] == process
        for column in ("start", "end"):
            last = max(last, int(timeline[table][column][rows].max(initial=UNKNOWN)))
    return last
