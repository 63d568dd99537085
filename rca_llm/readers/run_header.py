"""Who recorded a run: its header, and the names of its processes and threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers import run_calls
from rca_llm.readers.segments import Segment, device_gaps, pauses
from rca_llm.table import UNKNOWN, Table
from rca_llm.trace import PAUSES, PROCESSES, SETTINGS, SWITCHED_OFF, THREADS, Header, Timeline

_TOLD = ("command", "kernel", "options", "status")
"""What the manifest says of how a run was made; secrets left the command when it was written."""

_OTHER_GAP = "stretches in which the device was not recorded"
_GAPS = {
    "displaced": _OTHER_GAP + ", as another profiler held CUPTI",
    "queued limit": _OTHER_GAP + ", as times of queueing had used up CUPTI's buffers",
}


def describe(timeline: Timeline, segments: list[Segment], manifest: dict[str, Any]) -> None:
    """Fill in the header of a run's timeline, and its tables of processes and threads."""
    header, paused, gaps = timeline.header, pauses(segments), device_gaps(segments)
    timeline.header = Header(
        utc=False,
        anchors=_anchors(segments, manifest),
        host=next((segment.text("host") for segment in segments), None) or None,
        rank=_single(segments, "rank"),
        world_size=_single(segments, "world_size"),
        engine=next((text for _, _, text in _told(segments, "engine")), None),
        nccl=header.nccl,
        graph_level=header.graph_level,
        extra={
            **header.extra,
            **{key: manifest.get(key) for key in _TOLD},
            PAUSES: [*paused, *((start, end) for start, end, _ in gaps)],
            "probes": _probes(segments),
            SETTINGS: _settings(segments),
            "neighbours": {str(pid): text for pid, _, text in _told(segments, "neighbour")},
            "short_calls": run_calls.short_calls(segments),
        },
    )
    traced = [own for own in segments if own.header["writer"] != layout.WRITER_LAUNCHER]
    processes = _processes(timeline, segments, traced)
    timeline.add("processes", _with_life(processes, segments, manifest))
    timeline.add("threads", _thread_names(timeline, segments, traced))
    timeline.note("dropped_records", len(paused), "run", SWITCHED_OFF)
    for why in sorted({why for _, _, why in gaps}):
        count = sum(why == other for _, _, other in gaps)
        timeline.note("dropped_records", count, "run", _GAPS.get(why, _OTHER_GAP))


def _anchors(segments: list[Segment], manifest: dict[str, Any]) -> list[tuple[int, int]]:
    """All pairs of the two clocks, by time; the sharpest first hand is the launcher's."""
    pairs: set[tuple[int, int]] = set()
    for segment in segments:
        if segment.header["writer"] == layout.WRITER_LAUNCHER:
            rows = segment.cells[segment.of(layout.ANCHOR)]
            pairs.update((int(row["a"]), int(row["b"])) for row in rows)
    for first, second in manifest.get("anchors", []):
        pairs.add((int(first), int(second)))
    if not pairs:
        names = ("anchor_monotonic_ns", "anchor_utc_ns")
        pairs = {(own.header[names[0]], own.header[names[1]]) for own in segments}
    return sorted(pairs)


def _single(segments: list[Segment], key: str) -> int | None:
    """A header number that all processes which know it agree on."""
    values = {int(segment.header[key]) for segment in segments} - {-1}
    return values.pop() if len(values) == 1 else None


def _probes(segments: list[Segment]) -> dict[str, list[str]]:
    """The functions of engines that were wrapped, that were not there, and what failed."""
    states = ("attached", "missing", "failed")
    return {
        state: sorted({text for _, _, text in _told(segments, f"probe.{state}")})
        for state in states
    }


def _settings(segments: list[Segment]) -> dict[str, bool]:
    """Settings of the engine that its processes tell, on or off; none on which they differ."""
    told: dict[str, set[str]] = {}
    for _, _, text in _told(segments, "engine.setting"):
        name, _, value = text.partition("=")
        told.setdefault(name, set()).add(value)
    return {name: value == {"on"} for name, value in told.items() if value in ({"on"}, {"off"})}


def _told(segments: list[Segment], key: str) -> Iterable[tuple[int, int, str]]:
    """INFO cells of a key: process, number, text; later ones follow earlier ones."""
    for segment in segments:
        for place in segment.of(layout.INFO).tolist():
            cell = segment.cells[place]
            text = segment.names.get(int(cell["d"]))
            if segment.names.get(int(cell["c"])) == key and text is not None:
                yield int(cell["e"]) or segment.pid, int(cell["b"]), text


def _processes(timeline: Timeline, segments: list[Segment], traced: list[Segment]) -> Table:
    names = {own.pid: own.text("process_name") for own in traced}
    names.update({pid: text for pid, _, text in _told(segments, "process")})
    ranks = {own.pid: int(own.header["rank"]) for own in traced if own.header["rank"] >= 0}
    return Table(
        PROCESSES,
        {
            "process": list(names),
            "name": timeline.strings.codes(name or None for name in names.values()),
            "rank": [UNKNOWN if ranks.get(pid, -1) < 0 else ranks[pid] for pid in names],
        },
    )


def _with_life(processes: Table, segments: list[Segment], manifest: dict[str, Any]) -> Table:
    """The processes, and of a program without Python when its command began and ended.

    Python's own records begin and end with the process. Those of others are what they did to be
    seen, and the time before and after belongs to the run as well; not while it was paused.
    """
    if any(own.header["writer"] == layout.WRITER_PYTHON for own in segments):
        return processes
    begin, end = _time(manifest.get("began_ns")), _time(manifest.get("ended_ns"))
    for paused, resumed in pauses(segments):
        begin = resumed if paused <= begin < resumed else begin
        end = paused if paused <= end < resumed else end
    if UNKNOWN not in (begin, end) and begin >= end:
        return processes
    own = processes["process"] == _time(manifest.get("pid"))
    times = {"start": np.where(own, begin, UNKNOWN), "end": np.where(own, end, UNKNOWN)}
    return processes.with_columns(**times)


def _time(value: object) -> int:
    """A number of the manifest; UNKNOWN where it is none."""
    return value if isinstance(value, int) and 0 <= value < 2**62 else UNKNOWN


def _thread_names(timeline: Timeline, segments: list[Segment], traced: list[Segment]) -> Table:
    names = {(pid, tid): text for pid, tid, text in _told(segments, "thread.name")}
    for own in traced:
        if own.text("thread_name"):
            names[own.pid, int(own.header["tid"])] = own.text("thread_name")
        for place in own.of(layout.THREAD).tolist():
            cell = own.cells[place]
            if int(cell["c"]) in own.names:
                names[own.pid, int(cell["b"])] = own.names[int(cell["c"])]
    return Table(
        THREADS,
        {
            "process": [pid for pid, _ in names],
            "thread": [tid for _, tid in names],
            "name": timeline.strings.codes(names.values()),
        },
    )
