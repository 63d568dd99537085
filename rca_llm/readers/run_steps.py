"""Engine steps of a run: when each ran, whose requests it worked for, and the tokens it gave out.

A step whose batch is that of an earlier one, as while all requests decode, refers to that one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers.run_requests import Requests
from rca_llm.readers.segments import Codes, Segment, coded, or_unknown
from rca_llm.table import UNKNOWN, Ints, Mask, Table
from rca_llm.trace import BATCH, STEPS, Timeline

MOST_ROWS = 1 << 24
"""Requests of all steps of a run together: 256 at once in 65,536 steps. More are left out."""


def add(
    timeline: Timeline, segment: Segment, codes: Codes, places: Ints, requests: Requests
) -> None:
    """Append the steps whose STEP cells stand at some places; their tokens go to `requests`."""
    cells = segment.cells
    more, has_more = segment.followers(places, layout.MORE)
    modes = timeline.strings.codes(_known(layout.STEP_MODES))
    whole = _with_batch(segment, places)
    size = np.minimum(cells["d"][whole].astype(np.int64), _room(segment, whole))
    first_row = len(timeline["steps"])
    columns = {
        "id": np.where(has_more, cells["a"][more], UNKNOWN),
        "process": np.full(len(places), segment.pid),
        "start": cells["a"][places],
        "end": or_unknown(cells["b"][places], 0),
        "mode": modes[np.minimum(cells["c"][places], len(modes) - 1)],
        "batch": size,
    }
    timeline.add("steps", Table(STEPS, columns))
    held = _bounded(timeline, segment, size, shared=whole != places)
    rows, members = _members(segment, whole, held)
    timeline.add("batch", _batch(timeline, segment, codes, rows + first_row, members))
    told = has_more & (whole != places)  # of all requests at once
    out = np.where(told[rows], cells["b"][more][rows], cells["b"][members])
    _tokens(segment, members, cells["b"][places][rows], out, requests)


def _with_batch(segment: Segment, places: Ints) -> Ints:
    """Of each STEP the place of the one that has its batch: itself, or an earlier one."""
    earlier = places - segment.cells["e"][places].astype(np.int64)
    known = (earlier >= 0) & (segment.kinds[np.maximum(earlier, 0)] == layout.STEP)
    return np.where(known, earlier, places)


def _room(segment: Segment, whole: Ints) -> Ints:
    """How many cells of a batch may follow each STEP: up to the next, whatever its cell claims."""
    steps = segment.of(layout.STEP)
    ends = np.append(steps, len(segment.cells))[np.searchsorted(steps, whole, "right")]
    return np.maximum(ends - whole - 2, 0)


def _bounded(timeline: Timeline, segment: Segment, size: Ints, shared: Mask) -> Ints:
    """How many rows each step's batch gets: none where too many steps share large batches.

    A batch of its own takes cells of the file; one that is shared takes a single cell a step,
    so that a small file could ask for more rows than any memory holds.
    """
    rows = np.cumsum(size) + len(timeline["batch"])
    beyond = shared & (rows > MOST_ROWS)
    left_out = int(np.count_nonzero(beyond))
    detail = f"steps left without their requests: over {MOST_ROWS:,} in all"
    timeline.note("truncated", left_out, segment.name, detail)
    return np.where(beyond, 0, size)


def _members(segment: Segment, whole: Ints, size: Ints) -> tuple[Ints, Ints]:
    """The step (by its place in `whole`) and the place of every STEP_REQUEST cell of its batch."""
    rows = np.repeat(np.arange(len(whole)), size)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
    at = np.minimum(whole[rows] + 2 + within, max(len(segment.cells) - 1, 0))
    there = segment.kinds[at] == layout.STEP_REQUEST
    return rows[there], at[there]


def _batch(timeline: Timeline, segment: Segment, codes: Codes, steps: Ints, members: Ints) -> Table:
    cells = segment.cells
    phases = timeline.strings.codes(_known(layout.PHASES))
    return Table(
        BATCH,
        {
            "step": steps,
            "request": coded(codes, cells["d"][members]),
            "phase": phases[np.minimum(cells["c"][members], len(phases) - 1)],
            "tokens": or_unknown(cells["a"][members], -1),
        },
    )


def _tokens(segment: Segment, members: Ints, ends: Ints, out: Ints, requests: Requests) -> None:
    """Tokens that left the engine when the step of each STEP_REQUEST cell ended."""
    rows = np.flatnonzero((out > 0) & (ends != 0))
    names = segment.cells["d"][members[rows]].tolist()
    for name, end, count in zip(names, ends[rows].tolist(), out[rows].tolist(), strict=True):
        request = segment.names.get(name)
        if request is not None:
            requests.event(request, "token", end, count, segment.pid)


def _known(names: tuple[str, ...]) -> Iterable[str | None]:
    return (None if name == "unknown" else name for name in names)


def close(timeline: Timeline) -> None:
    """Let steps that a killed process left open end with its last range."""
    steps = timeline["steps"]
    still_open = np.flatnonzero(steps["end"] == UNKNOWN)
    if not len(still_open):
        return
    end = np.array(steps["end"])
    for row in still_open.tolist():
        own = timeline["ranges"]["process"] == steps["process"][row]
        last = timeline["ranges"]["end"][own].max(initial=UNKNOWN)
        end[row] = max(int(last), int(steps["start"][row]))
    timeline.tables["steps"] = steps.with_columns(end=end)
    timeline.note("repaired", len(still_open), "run", "steps that were never closed")
