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

from rca_llm import __version__, intervals, saved
from rca_llm.errors import RcaError, UnreadableInput
from rca_llm.probes import format as layout
from rca_llm.readers import (
    cupti,
    nccl,
    nccl_rows,
    run_aliases,
    run_calls,
    run_collectives,
    run_stacks,
    run_states,
)
from rca_llm.readers.files import Source, entries, is_url, source
from rca_llm.readers.mending import mend
from rca_llm.readers.run_requests import Requests
from rca_llm.readers.segments import Codes, Segment, coded, parse
from rca_llm.run import TABLES
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Mask, Table
from rca_llm.trace import (
    BATCH,
    MARKS,
    PROCESSES,
    RANGES,
    SAMPLES,
    STEPS,
    SWITCHED_OFF,
    THREADS,
    Header,
    Input,
    Timeline,
    Trace,
)

_MANIFEST = "manifest.json"
_REQUEST_KIND = "request"
_STATE_EVENTS = ("queued", "scheduled", "preempted", "resumed", "aborted")
_DEVICE, _PROCESS = layout.SUBJECTS.index("device"), layout.SUBJECTS.index("process")


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
    _Reading(timeline, segments).run()
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


class _Reading:
    """Fills the tables of a timeline from segments."""

    def __init__(self, timeline: Timeline, segments: list[Segment]) -> None:
        self.timeline = timeline
        self.segments = segments
        self.strings = timeline.strings
        self.requests = Requests()
        self.gaps = [gap for segment in segments for gap in _launcher_gaps(segment)]
        self.looks: dict[tuple[int, int], list[Array]] = {}

    def run(self) -> None:
        """Read everything."""
        for segment in self.segments:
            self._read(segment)
        self._finish_requests()
        self._watched_threads()
        self._gpu()
        self._close_steps()
        run_calls.take_callers(self.timeline)
        mend(self.timeline)

    def _read(self, segment: Segment) -> None:
        codes = segment.codes(self.strings)
        self._spans(segment, codes)
        self._calls(segment, codes)
        self._marks(segment, codes)
        self._events(segment)
        self._steps(segment, codes)
        self._sched(segment)
        self._samples(segment, codes)
        self.timeline.note(
            "dropped_records",
            int(segment.header["dropped"]),
            f"process {segment.pid}",
            f"recording ended: {os.strerror(segment.header['stop_errno'])}",
        )

    def _spans(self, segment: Segment, codes: Codes) -> None:
        cells, places = segment.cells, segment.of(layout.SPAN)
        places = places[cells["a"][places] != 0]
        places = places[~self._in_gap(cells["a"][places])]
        kind = coded(codes, cells["d"][places])
        scopes = kind == self.strings.code(_REQUEST_KIND)
        if scopes.any():
            self._scopes(segment, places[scopes])
            places, kind = places[~scopes], kind[~scopes]
        meetings = kind == self.strings.code(run_collectives.KIND)
        if meetings.any():
            found = run_collectives.table(segment, codes, places[meetings], self.strings)
            self.timeline.add("collectives", found)
            places, kind = places[~meetings], kind[~meetings]
        self.timeline.add("ranges", self._ranges(segment, codes, places, kind))

    def _ranges(self, segment: Segment, codes: Codes, places: Ints, kind: Codes) -> Table:
        cells, flags = segment.cells, segment.flags[places]
        more, has_more = segment.followers(places, layout.MORE)
        has_more &= (flags & layout.FLAG_MORE) != 0
        nvtx = (flags & layout.FLAG_NVTX) != 0
        domain = np.where(has_more, coded(codes, cells["d"][more]), NO_TEXT)
        host = np.where(cells["d"][places] == 0, self.strings.code("host"), kind)
        return Table(
            RANGES,
            {
                "start": cells["a"][places],
                "end": _or_unknown(cells["b"][places], 0),
                "name": coded(codes, cells["e"][places]),
                "domain": np.where(nvtx, domain, self.strings.code("probe")),
                "kind": np.where(nvtx, NO_TEXT, host),
                "process": np.full(len(places), segment.pid),
                "thread": self._thread_of(segment, places, flags),
                "request": coded(codes, cells["c"][places]),
                "step": np.where(has_more, _or_unknown(cells["a"][more], -1), UNKNOWN),
                "bytes": np.where(has_more, _or_unknown(cells["b"][more], -1), UNKNOWN),
                "path": np.where(has_more, coded(codes, cells["c"][more]), NO_TEXT),
            },
        )

    def _thread_of(self, segment: Segment, places: Ints, flags: Array) -> Ints:
        """The thread of each record; none for what may overlap others, as coroutines do."""
        thread = _threads(segment, places)
        thread[(flags & layout.FLAG_ASYNC) != 0] = UNKNOWN
        return thread

    def _scopes(self, segment: Segment, places: Ints) -> None:
        failed = (segment.flags[places] & layout.FLAG_ERROR) != 0
        rows = _rows(segment.cells[places], "c", "a", "b")
        for (request, start, end), has_failed in zip(rows, failed.tolist(), strict=True):
            if request in segment.names:
                self.requests.scope(segment.names[request], start, end or None, has_failed)

    def _calls(self, segment: Segment, codes: Codes) -> None:
        table = run_calls.calls(segment, codes, self.strings)
        if len(table):
            self.timeline.add("ranges", table.take(~self._in_gap(table["start"])))

    def _marks(self, segment: Segment, codes: Codes) -> None:
        cells, places = segment.cells, segment.of(layout.MARK)
        places = places[~self._in_gap(cells["a"][places])]
        table = Table(
            MARKS,
            {
                "t": cells["a"][places],
                "name": coded(codes, cells["e"][places]),
                "request": coded(codes, cells["c"][places]),
                "process": np.full(len(places), segment.pid),
                "thread": _threads(segment, places),
            },
        )
        self.timeline.add("marks", table)
        self._mark_numbers(segment, places)

    def _mark_numbers(self, segment: Segment, places: Ints) -> None:
        """The numbers of marks as samples called `<mark>.<number>`."""
        cells = segment.cells
        rows: list[tuple[int, int, float]] = []
        for place in places[segment.followers(places, layout.NUMBER)[1]].tolist():
            mark = segment.names.get(int(cells["e"][place]), "")
            for number in _numbers_behind(segment, place):
                key = segment.names.get(int(cells["e"][number]), "")
                code = self.strings.code(f"{mark}.{key}")
                rows.append((int(cells["a"][place]), code, _value(segment, number)))
        self.timeline.add(
            "samples",
            Table(
                SAMPLES,
                {
                    "t": [time for time, _, _ in rows],
                    "metric": [metric for _, metric, _ in rows],
                    "value": [value for _, _, value in rows],
                    "process": np.full(len(rows), segment.pid),
                },
            ),
        )

    def _events(self, segment: Segment) -> None:
        cells = segment.cells[segment.of(layout.REQUEST)]
        marks: list[tuple[int, str, str]] = []
        for number, code, time, count in _rows(cells, "d", "c", "a", "b"):
            request = segment.names.get(number)
            if request is None or code >= len(layout.REQUEST_EVENTS):
                continue
            name = layout.REQUEST_EVENTS[code]
            self.requests.event(request, name, time, count)
            if name in _STATE_EVENTS:
                marks.append((time, name, request))
        self.timeline.add(
            "marks",
            Table(
                MARKS,
                {
                    "t": [time for time, _, _ in marks],
                    "name": self.strings.codes(name for _, name, _ in marks),
                    "request": self.strings.codes(request for _, _, request in marks),
                    "process": np.full(len(marks), segment.pid),
                },
            ),
        )

    def _steps(self, segment: Segment, codes: Codes) -> None:
        cells, places = segment.cells, segment.of(layout.STEP)
        places = places[~self._in_gap(cells["a"][places])]
        more, has_more = segment.followers(places, layout.MORE)
        modes = self.strings.codes(_known_names(layout.STEP_MODES))
        whole = self._whole_steps(segment, places)
        batch = cells["d"][whole].astype(np.int64)
        first_row = len(self.timeline["steps"])
        self.timeline.add(
            "steps",
            Table(
                STEPS,
                {
                    "id": np.where(has_more, cells["a"][more], UNKNOWN),
                    "process": np.full(len(places), segment.pid),
                    "start": cells["a"][places],
                    "end": _or_unknown(cells["b"][places], 0),
                    "mode": modes[np.minimum(cells["c"][places], len(modes) - 1)],
                    "batch": batch,
                },
            ),
        )
        rows, at = self._batches(segment, codes, whole, batch, first_row)
        told = has_more & (whole != places)  # of all requests at once
        out = np.where(told[rows], cells["b"][more][rows], cells["b"][at])
        self._tokens_out(segment, at, cells["b"][places][rows], out)

    def _whole_steps(self, segment: Segment, places: Ints) -> Ints:
        """Of each STEP the place of the one that has its batch: itself, or an earlier one."""
        earlier = places - segment.cells["e"][places].astype(np.int64)
        known = (earlier >= 0) & (segment.kinds[np.maximum(earlier, 0)] == layout.STEP)
        return np.where(known, earlier, places)

    def _batches(
        self, segment: Segment, codes: Codes, places: Ints, batch: Ints, first_row: int
    ) -> tuple[Ints, Ints]:
        """Add the batches of some steps; the step and the place of each row, of those that are."""
        rows = np.repeat(np.arange(len(places)), batch)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(batch) - batch, batch)
        cells = segment.cells
        at = np.minimum(places[rows] + 2 + within, max(len(cells) - 1, 0))
        whole = segment.kinds[at] == layout.STEP_REQUEST
        at, rows = at[whole], rows[whole]
        phases = self.strings.codes(_known_names(layout.PHASES))
        self.timeline.add(
            "batch",
            Table(
                BATCH,
                {
                    "step": rows + first_row,
                    "request": coded(codes, cells["d"][at]),
                    "phase": phases[np.minimum(cells["c"][at], len(phases) - 1)],
                    "tokens": _or_unknown(cells["a"][at], -1),
                },
            ),
        )
        return rows, at

    def _tokens_out(self, segment: Segment, at: Ints, ends: Ints, out: Ints) -> None:
        """Tokens that left the engine when the step of each STEP_REQUEST cell ended."""
        rows = np.flatnonzero((out > 0) & (ends != 0))
        names = segment.cells["d"][at[rows]].tolist()
        for name, end, count in zip(names, ends[rows].tolist(), out[rows].tolist(), strict=True):
            request = segment.names.get(name)
            if request is not None:
                self.requests.event(request, "token", end, count)

    def _sched(self, segment: Segment) -> None:
        cells, places = segment.cells, segment.of(layout.SCHED)
        more, whole = segment.followers(places, layout.MORE)
        places, more = places[whole], more[whole]
        keys = cells["d"][places].astype(np.int64) << 32 | cells["e"][places]
        faults = np.where(
            cells["d"][more] & layout.SCHED_FAULTS, cells["c"][more].astype(np.int64), -1
        )
        kernel = cells["e"][more].astype(np.int64)
        itself = np.full(len(places), segment.header["writer"] != layout.WRITER_LAUNCHER)
        times = cells["a"][places], cells["b"][places], cells["a"][more]
        rows = np.stack([*times, faults, kernel, itself])
        order = np.argsort(keys, kind="stable")
        found, first = np.unique(keys[order], return_index=True)
        for key, own in zip(found.tolist(), np.split(order, first)[1:], strict=True):
            self.looks.setdefault((key >> 32, key & 0xFFFFFFFF), []).append(rows[:, own])

    def _watched_threads(self) -> None:
        """What threads did, from the looks at them and the calls that are known."""
        looks = self._looks()
        calls, locks = run_calls.spans(self.timeline), run_calls.spans(self.timeline, "gil")
        edges = run_calls.edges(self.timeline)
        known = run_states.Known(calls, locks, edges, self._throttled())
        self.timeline.add("states", run_states.states(looks, self.strings, known))
        self.timeline.add("ranges", run_states.faults(looks, self.strings, known))
        self.timeline.header.extra["threads"] = run_states.totals(looks)

    def _throttled(self) -> run_states.Spans:
        """When the quota of a cgroup kept its threads from running."""
        samples = self.timeline["samples"]
        found: list[run_states.Spans] = []
        for metric in ("cpu.throttled_ns", "cpu.throttled_count"):
            rows = samples["metric"] == self.strings.code(metric)
            order = np.argsort(samples["t"][rows], kind="stable")
            total = samples["value"][rows][order].astype(np.int64)
            least = 0 if metric.endswith("_ns") else run_states.BETWEEN_READINGS_NS
            found.append(run_states.throttled_spans(samples["t"][rows][order], total, least))
        start, end = (np.concatenate(columns) for columns in zip(*found, strict=True))
        return intervals.union(start, end)

    def _looks(self) -> dict[tuple[int, int], run_states.Looks]:
        looks: dict[tuple[int, int], run_states.Looks] = {}
        for key, parts in self.looks.items():
            rows = np.concatenate(parts, axis=1)
            time, *counters = rows[:, np.argsort(rows[0], kind="stable")]
            on_cpu, delay, faults, kernel, own = counters
            looks[key] = run_states.Looks(time, on_cpu, delay, faults, kernel, own > 0)
        return looks

    def _samples(self, segment: Segment, codes: Codes) -> None:
        cells, places = segment.cells, segment.of(layout.SAMPLE)
        subject, of = cells["e"][places], cells["d"][places].astype(np.int64)
        self.timeline.add(
            "samples",
            Table(
                SAMPLES,
                {
                    "t": cells["a"][places],
                    "metric": coded(codes, cells["c"][places]),
                    "device": np.where(subject == _DEVICE, of, -1),
                    "process": np.where(subject == _PROCESS, of, UNKNOWN),
                    "value": np.ascontiguousarray(cells["b"][places]).view(np.float64),
                },
            ),
        )

    def _finish_requests(self) -> None:
        requests, tokens = self.requests.tables(self.strings)
        self.timeline.add("requests", requests)
        self.timeline.add("tokens", tokens)

    def _gpu(self) -> None:
        """The rows of the native collector, process by process."""
        for pid in dict.fromkeys(segment.pid for segment in self.segments):
            rows, tasks = cupti.Rows(), nccl_rows.Rows()
            facts: list[tuple[str, int, str | None]] = []
            for segment in (own for own in self.segments if own.pid == pid):
                facts.extend(_facts(segment, "gpu."))
                nccl.add_facts(self.timeline, _facts(segment, "nccl."))
                threads = _threads(segment, segment.of(layout.SPAN))
                tasks.calls += nccl_rows.calls_of(segment, threads)
                if segment.buffers:
                    codes = cupti.codes_of(self.timeline, segment.names)
                    for buffer in segment.buffers:
                        kind, size = int(buffer.cell["c"]), int(buffer.cell["d"])
                        rows.add(kind, size, buffer.data, codes)
                        tasks.add(kind, size, buffer.data, codes)
            if rows.parts:
                cupti.add_rows(self.timeline, rows, pid)
            if facts:
                cupti.add_facts(self.timeline, facts, pid)
            if tasks.tasks or tasks.calls:
                nccl.add_rows(self.timeline, tasks, pid)

    def _close_steps(self) -> None:
        """Let steps that a killed process left open end with its last record."""
        steps = self.timeline["steps"]
        still_open = np.flatnonzero(steps["end"] == UNKNOWN)
        if not len(still_open):
            return
        end = np.array(steps["end"])
        for row in still_open.tolist():
            own = self.timeline["ranges"]["process"] == steps["process"][row]
            last = self.timeline["ranges"]["end"][own].max(initial=UNKNOWN)
            end[row] = max(int(last), int(steps["start"][row]))
        self.timeline.tables["steps"] = steps.with_columns(end=end)
        self.timeline.note("repaired", len(still_open), "run", "steps that were never closed")

    def _in_gap(self, times: Array) -> Mask:
        inside = np.zeros(len(times), bool)
        for start, end in self.gaps:
            inside |= (times >= start) & (times < end)
        return inside


def _rows(cells: Array, *fields: str) -> Iterable[tuple[int, ...]]:
    """Some fields of cells, row by row, which Python reads faster from lists than from arrays."""
    return zip(*(cells[field].tolist() for field in fields), strict=True)


def _or_unknown(values: Array, unknown: int) -> Ints:
    return np.where(values == unknown, UNKNOWN, values)


def _known_names(names: tuple[str, ...]) -> Iterable[str | None]:
    return (None if name == "unknown" else name for name in names)


def _threads(segment: Segment, places: Ints) -> Ints:
    """The thread that wrote each cell: the header's until a THREAD cell names another."""
    changes = segment.of(layout.THREAD)
    owners = np.append(segment.header["tid"], segment.cells["b"][changes]).astype(np.int64)
    return owners[np.searchsorted(changes, places)]


def _numbers_behind(segment: Segment, place: int) -> Iterable[int]:
    place += 1
    while place < len(segment.kinds) and segment.kinds[place] == layout.NUMBER:
        yield place
        place += 1


def _value(segment: Segment, place: int) -> float:
    value = segment.cells["b"][place]
    if segment.flags[place] & layout.FLAG_FLOAT:
        return float(value.view(np.float64))
    return float(value)


def _launcher_gaps(segment: Segment) -> list[tuple[int, int]]:
    """When the whole run was paused."""
    if segment.header["writer"] != layout.WRITER_LAUNCHER:
        return []
    rows = segment.cells[segment.of(layout.GAP)]
    last = np.iinfo(np.int64).max
    return [(int(row["a"]), int(row["b"]) or int(last)) for row in rows]


def _facts(segment: Segment, prefix: str = "") -> Iterable[tuple[str, int, str | None]]:
    """The INFO cells about the segment's own process whose key has a prefix."""
    for place in segment.of(layout.INFO).tolist():
        cell = segment.cells[place]
        key = segment.names.get(int(cell["c"]), "")
        if key.startswith(prefix) and not cell["e"]:
            yield key, int(cell["b"]), segment.names.get(int(cell["d"]))


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
            "gaps": _all_gaps(segments),
            "probes": _probes(segments),
            "short_calls": run_calls.short_calls(segments),
        },
    )
    traced = [own for own in segments if own.header["writer"] != layout.WRITER_LAUNCHER]
    timeline.add("processes", _processes(timeline, segments, traced))
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


def _all_gaps(segments: list[Segment]) -> list[tuple[int, int]]:
    return [gap for segment in segments for gap in _launcher_gaps(segment)]


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
