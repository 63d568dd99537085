"""Run directories of `rca-llm trace`: spans, marks, requests, steps, samples and GPU records.

Everything stays on CLOCK_MONOTONIC; `Header.anchors` maps it to UTC. Torn records, which processes
that are killed leave behind, are passed over silently: at most the one being written is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rca_llm import __version__, saved
from rca_llm.errors import UnreadableInput
from rca_llm.probes import format as layout
from rca_llm.readers import (
    run_aliases,
    run_counters,
    run_header,
    run_manifest,
    run_nodes,
    run_stacks,
    run_tables,
)
from rca_llm.readers.files import Source, entries, is_url, source
from rca_llm.readers.run_ends import Ends
from rca_llm.readers.segments import Segment, parse
from rca_llm.run import TABLES
from rca_llm.trace import PAUSES, Input, Timeline, Trace


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
    if timeline.header.extra.get(PAUSES):
        return "recording was not switched on (rca-llm ctl RUN start)"
    return "is it Python 3.7 or later, without -I, -E, -S or a wiped environment?"


def _names(found: Source) -> list[str]:
    return [_base(path) for path in entries(found.path)]


def _tables_alone(found: Source) -> Timeline:
    """A timeline that `Trace.save` wrote; there is nothing else to read it from."""
    folder = Path(found.path) / TABLES
    try:
        return saved.load(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableInput(f"{folder}: byte 0: expected saved tables; {error}") from error


def _saved(found: Source) -> Timeline | None:
    """The timeline in the tables of a finished run; None where segments must be read instead."""
    folder = Path(found.path) / TABLES
    if is_url(found.path) or not saved.is_saved(folder):
        return None
    try:
        timeline = saved.load(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if timeline.input.tool_version != __version__:
        return None  # this version may read more out of the segments
    timeline.input = replace(timeline.input, path=found.path)
    return timeline


def read_segments(found: Source) -> Timeline:
    """What the segments of a run hold; `UnreadableInput` where that is nothing."""
    folder = os.path.join(found.path, layout.SEGMENTS_NAME)
    timeline = Timeline(Input(found.path, "run", tool="rca-llm", tool_version=__version__))
    timeline = assembled(timeline, found.path, list(_segments(timeline, folder)))
    run_manifest.judge(timeline, run_manifest.content(found.path))
    return timeline


def assembled(timeline: Timeline, path: str, segments: list[Segment]) -> Timeline:
    """The timeline filled with what segments of a run hold, and what stands beside them."""
    run_aliases.rename(segments)
    manifest = run_manifest.content(path)
    run_tables.fill(timeline, segments, Ends(segments, manifest))
    run_counters.align(timeline)
    run_stacks.add(timeline, path)
    run_header.describe(timeline, segments, manifest)
    run_nodes.add(timeline, segments)
    events = sum(len(table) for table in timeline.tables.values())
    if not events:
        raise UnreadableInput(
            f"{path}/{layout.SEGMENTS_NAME}: byte 0: expected segments with records; found none"
        )
    timeline.input = replace(timeline.input, rank=timeline.header.rank, events=events)
    return timeline


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


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
