"""Run directories of `rca-llm trace`: spans, marks, requests, steps, samples and GPU records.

Everything stays on CLOCK_MONOTONIC; `Header.anchors` maps it to UTC. Torn records, which processes
that are killed leave behind, are passed over silently: at most the one being written is lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from rca_llm import __version__, saved
from rca_llm.errors import RcaError, UnreadableInput
from rca_llm.probes import format as layout
from rca_llm.readers import run_aliases, run_calls, run_stacks, run_tables
from rca_llm.readers.files import Source, entries, is_url, source
from rca_llm.readers.segments import Segment, parse, pauses
from rca_llm.run import TABLES
from rca_llm.table import UNKNOWN, Table
from rca_llm.trace import (
    PROCESSES,
    SWITCHED_OFF,
    THREADS,
    Header,
    Input,
    Timeline,
    Trace,
)

_MANIFEST = "manifest.json"


def matches(found: Source) -> bool:
    """Whether a directory holds segments of a run, or the tables of a saved trace."""
    return found.directory and bool({layout.SEGMENTS_NAME, TABLES} & set(_names(found)))


_BESIDE = frozenset(("samples", "processes", "threads"))
"""Tables that tell of no event of the program: a run with these alone is empty."""


def read(found: Source) -> Trace:
    """What the processes of a run recorded; `UnreadableInput` where no segment has an event."""
    if layout.SEGMENTS_NAME not in _names(found):
        return Trace([_tables_alone(found)])
    timeline = _saved(found) or read_segments(found)
    if all(name in _BESIDE for name, table in timeline.tables.items() if len(table)):
        raise UnreadableInput(
            f"{found.path}/{layout.SEGMENTS_NAME}: expected records of a process, found only the"
            f" launcher's samples; {_why_empty(timeline)}"
        )
    return Trace([timeline])


def _why_empty(timeline: Timeline) -> str:
    if timeline.header.extra.get("gaps"):
        return "recording was not switched on (rca-llm ctl RUN start)"
    return "is it Python 3.7 or later, without -I, -E, -S or a wiped environment?"


def _names(found: Source) -> list[str]:
    return [_base(path) for path in entries(found.path)]


def _tables_alone(found: Source) -> Timeline:
    """A timeline that `Trace.save` wrote; there is nothing else to read it from."""
    folder = Path(found.path) / TABLES
    try:
        return saved.load(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableInput(f"{folder}: byte 0: expected saved tables; {error}") from error


def _saved(found: Source) -> Timeline | None:
    """The timeline in the tables of a finished run; None where segments must be read instead."""
    folder = Path(found.path) / TABLES
    if is_url(found.path) or not saved.is_saved(folder):
        return None
    try:
        timeline = saved.load(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if timeline.input.tool_version != __version__:
        return None  # this version may read more out of the segments
    timeline.input = replace(timeline.input, path=found.path)
    return timeline


def read_segments(found: Source) -> Timeline:
    """What the segments of a run hold; `UnreadableInput` where that is nothing."""
    folder = os.path.join(found.path, layout.SEGMENTS_NAME)
    manifest = _manifest(found.path)
    timeline = Timeline(Input(found.path, "run", tool="rca-llm", tool_version=__version__))
    segments = list(_segments(timeline, folder))
    run_aliases.rename(segments)
    run_tables.fill(timeline, segments)
    run_stacks.add(timeline, found.path)
    _describe(timeline, segments, manifest)
    events = sum(len(table) for table in timeline.tables.values())
    if not events:
        raise UnreadableInput(f"{folder}: byte 0: expected segments with records; found none")
    timeline.input = replace(timeline.input, rank=timeline.header.rank, events=events)
    return timeline


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _manifest(path: str) -> dict[str, Any]:
    """The manifest; empty where it is missing or damaged."""
    try:
        with source(f"{path.rstrip('/')}/{_MANIFEST}").open() as stream:
            content = json.loads(stream.readall())
    except (RcaError, OSError, ValueError):  # it only describes the run: the records count
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _segments(timeline: Timeline, folder: str) -> Iterable[Segment]:
    """Every segment with a whole header, oldest process first."""
    for path in entries(folder):
        if not path.endswith(layout.SEGMENT_SUFFIX):
            continue
        with source(path).open() as stream:
            segment = parse(_base(path), stream.readall())
        if segment is None:
            timeline.note("truncated", 1, _base(path), "byte 0: expected a segment header")
            continue
        timeline.note("truncated", segment.damaged, segment.name, "cells that hold no record")
        timeline.note("truncated", segment.cut is not None, segment.name, segment.cut or "")
        yield segment


# ------------------------------------------------------------------ who recorded


_TOLD = ("command", "kernel", "options", "status")
"""What the manifest says of how a run was made; secrets left the command when it was written."""


def _describe(timeline: Timeline, segments: list[Segment], manifest: dict[str, Any]) -> None:
    """Header, processes and threads."""
    header = timeline.header
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
            "gaps": pauses(segments),
            "probes": _probes(segments),
            "short_calls": run_calls.short_calls(segments),
        },
    )
    traced = [own for own in segments if own.header["writer"] != layout.WRITER_LAUNCHER]
    processes = _processes(timeline, segments, traced)
    timeline.add("processes", _with_life(processes, segments, manifest))
    timeline.add("threads", _thread_names(timeline, segments, traced))
    gaps = len(timeline.header.extra["gaps"])
    timeline.note("dropped_records", gaps, "run", SWITCHED_OFF)


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
