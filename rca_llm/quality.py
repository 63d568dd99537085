"""Repairs of device records that cannot be true, and the findings that tell of them.

Definitions of impossible, negative and missing times: CONTRACT section 6, "repaired records". A
repaired record keeps its place in every count.
"""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.table import UNKNOWN, Array, Ints, Mask, Table, known
from rca_llm.trace import MEMCPY, Timeline

MEDIANS = 100
"""A duration over this many medians of its name is suspect."""

PASSED_STARTS = 3
"""A suspect record is impossible if it also runs past this many later starts on its stream."""

SLOWEST_COPY_BYTES_S = 1_000_000
LONG_COPY_NS = 10_000_000
"""A copy that is slower than the one and longer than the other is impossible."""

_UNIQUE = ("gpu", "api", "collectives", "marks")
"""Tables in which no two true records are equal in every field."""


def repair(timeline: Timeline) -> None:
    """Make the device records of a timeline usable, noting every change.

    Afterwards `gpu` is sorted by start, records without a start come first, and every other one
    ends at or after its start.
    """
    for name in _UNIQUE:
        _drop_repeated(timeline, name)
    gpu = timeline["gpu"].sorted_by("start")
    if not len(gpu):
        return
    start: Ints = gpu["start"]
    end: Ints = np.array(gpu["end"], np.int64)
    timed = known(start)
    _note_untimed(timeline, gpu, ~timed)
    _mend_negative(timeline, gpu, end, timed)
    for rows in _streams(gpu, timed):
        _mend_impossible(timeline, gpu, end, rows)
        _note_overlap(timeline, gpu, end, rows)
    timeline.tables["gpu"] = gpu.with_columns(end=end)


def _drop_repeated(timeline: Timeline, name: str) -> None:
    """Keep one of several rows of a table that are equal in every field."""
    table = timeline[name]
    repeated = table.repeated()
    if repeated.any():
        detail = "records equal in every field to an earlier one; left out"
        timeline.note("duplicate_records", int(repeated.sum()), name, detail)
        timeline.tables[name] = table.take(~repeated)


def _note_untimed(timeline: Timeline, gpu: Table, untimed: Mask) -> None:
    timeline.note(
        "no_timestamp",
        int(untimed.sum()),
        _where(gpu, np.flatnonzero(untimed)),
        "device records without a start; counted in the totals and in no interval",
    )


def _mend_negative(timeline: Timeline, gpu: Table, end: Ints, timed: Mask) -> None:
    start = gpu["start"]
    open_ended = timed & (end == UNKNOWN)
    end[open_ended] = start[open_ended]
    timeline.note(
        "no_timestamp",
        int(open_ended.sum()),
        _where(gpu, np.flatnonzero(open_ended)),
        "device records without an end; taken as instants",
    )
    negative = timed & (end < start)
    shortest = int((end - start)[negative].min(initial=0))
    timeline.note(
        "negative_duration",
        int(negative.sum()),
        _where(gpu, np.flatnonzero(negative)),
        f"device records that end before they start, by up to {-shortest} ns; taken as instants",
    )
    end[negative] = start[negative]


def _streams(gpu: Table, timed: Mask) -> list[Ints]:
    """The timed rows of every stream of every device and process, by start."""
    rows = np.flatnonzero(timed)
    columns = [gpu[name][rows] for name in ("stream", "device", "process")]
    order = np.lexsort([np.arange(len(rows)), *columns])
    keys = np.stack([column[order] for column in columns])
    cuts = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    return np.split(rows[order], cuts) if len(rows) else []


def _mend_impossible(timeline: Timeline, gpu: Table, end: Ints, rows: Ints) -> None:
    """Cut the impossible records of one stream at the next start."""
    start = gpu["start"][rows]
    passed = np.searchsorted(start, end[rows], "left") - np.searchsorted(start, start, "right")
    duration = end[rows] - start
    medians = _median_by(gpu["name"][rows], duration)
    outlier = (duration > MEDIANS * medians) & (passed >= PASSED_STARTS)
    for place in np.flatnonzero(outlier | _crawling(gpu, rows, duration)).tolist():
        following = np.searchsorted(start, start[place], "right")
        cut = int(start[following]) if following < len(start) else int(start[place])
        cut = min(cut, int(end[rows[place]]))
        timeline.note(
            "impossible_duration",
            1,
            _where(gpu, rows[place : place + 1]),
            f"{timeline.text(int(gpu['name'][rows[place]]))!s:.200} lasted {duration[place]} ns"
            f" ({duration[place] / 1e6:.4g} ms) as recorded; cut to {cut - start[place]} ns",
        )
        end[rows[place]] = cut


def _median_by(name: Array, duration: Ints) -> Ints:
    """The median duration of every row's name."""
    order = np.lexsort([duration, name])
    medians = np.empty(len(name), np.int64)
    for rows in intervals.runs(name[order]):
        medians[order[rows]] = duration[order[(rows.start + rows.stop - 1) // 2]]
    return medians


def _crawling(gpu: Table, rows: Ints, duration: Ints) -> Mask:
    """Copies that are too slow to be true."""
    size = gpu["bytes"][rows]
    copies = (gpu["kind"][rows] == MEMCPY) & known(size) & (duration > LONG_COPY_NS)
    needed = np.where(copies, size, 0) * (1_000_000_000 // SLOWEST_COPY_BYTES_S)
    return np.asarray(copies & (needed < duration))


def _note_overlap(timeline: Timeline, gpu: Table, end: Ints, rows: Ints) -> None:
    """Report records of one stream that start before an earlier one has ended."""
    if len(rows) < 2:
        return
    start, reach = gpu["start"][rows], np.maximum.accumulate(end[rows])
    overlap = np.minimum(reach[:-1], end[rows][1:]) - start[1:]
    overlap = overlap[(overlap > 0)]
    timeline.note(
        "overlap_same_stream",
        len(overlap),
        _where(gpu, rows[:1]),
        f"starting before an earlier record of the same stream has ended; overlap of"
        f" {overlap.sum()} ns in all, at most {overlap.max(initial=0)} ns; left as recorded",
    )


def _where(gpu: Table, rows: Array) -> str:
    """The device and stream of the first of some rows."""
    if not len(rows):
        return ""
    row = int(rows[0])
    process, device, stream = (int(gpu[name][row]) for name in ("process", "device", "stream"))
    places = [
        f"process {process}" if process != UNKNOWN else "",
        f"device {device}" if device >= 0 else "",
        f"stream {stream}" if stream != UNKNOWN else "",
    ]
    return ", ".join(filter(None, places))
