"""Ends for what was still open when a recording broke off."""

from __future__ import annotations

import numpy as np

from rca_llm.table import UNKNOWN, known
from rca_llm.trace import Timeline

_TIMED = ("gpu", "api", "ranges", "steps")


def close_ranges(timeline: Timeline, where: str = "") -> None:
    """Let ranges that were never closed end with the last record of their process."""
    ranges = timeline["ranges"]
    rows = np.flatnonzero(known(ranges["start"]) & ~known(ranges["end"]))
    if not len(rows):
        return
    end = np.array(ranges["end"])
    for process in np.unique(ranges["process"][rows]).tolist():
        own = rows[ranges["process"][rows] == process]
        end[own] = np.maximum(_last(timeline, process), ranges["start"][own])
    timeline.tables["ranges"] = ranges.with_columns(end=end)
    detail = "ranges that were never closed; taken to end with the last record of their process"
    timeline.note("repaired", len(rows), where, detail)


def _last(timeline: Timeline, process: int) -> int:
    """The last time in any record of a process."""
    last = UNKNOWN
    for table in _TIMED:
        rows = timeline[table]["process"] == process
        for column in ("start", "end"):
            last = max(last, int(timeline[table][column][rows].max(initial=UNKNOWN)))
    return last
