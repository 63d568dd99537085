"""The tables of a run that its processes wrote themselves: spans, marks, requests and samples.

Steps, looks at threads and device records have modules of their own, which are called here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers import run_calls, run_collectives, run_gpu, run_pauses, run_steps
from rca_llm.readers.mending import mend
from rca_llm.readers.run_ends import Ends
from rca_llm.readers.run_looks import Watched
from rca_llm.readers.run_requests import Requests
from rca_llm.readers.segments import Codes, Segment, coded, or_unknown, pauses
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Mask, Table
from rca_llm.trace import DEVICE_RECORDS, HOST_RECORDS, MARKS, RANGES, SAMPLES, Timeline

_REQUEST_KIND = "request"
_STATE_EVENTS = ("queued", "scheduled", "preempted", "resumed", "aborted")
_DEVICE, _PROCESS = layout.SUBJECTS.index("device"), layout.SUBJECTS.index("process")


def fill(timeline: Timeline, segments: Sequence[Segment], ends: Ends) -> None:
    """Append everything that the segments of a run hold to the tables of a timeline.

    `ends` close what was never closed.
    """
    paused = pauses(segments)
    reading = _Reading(timeline, paused)
    for segment in segments:
        reading.read(segment)
    reading.finish(ends)
    run_gpu.add(timeline, segments)
    run_pauses.leave_out(timeline, paused)
    ends.close(timeline)
    run_steps.close(timeline)
    run_calls.take_callers(timeline)
    mend(timeline)


class _Reading:
    """Fills the tables of a timeline segment by segment; what began in a pause is left out."""

    def __init__(self, timeline: Timeline, pauses: Sequence[tuple[int, int]]) -> None:
        self.timeline = timeline
        self.strings = timeline.strings
        self.requests = Requests()
        self.watched = Watched()
        self.pauses = pauses

    def read(self, segment: Segment) -> None:
        """Append what a segment holds, or keep it until all are read."""
        codes = segment.codes(self.strings)
        self._spans(segment, codes)
        self._calls(segment, codes)
        self._marks(segment, codes)
        self._events(segment)
        steps = self._recorded(segment, layout.STEP)
        run_steps.add(self.timeline, segment, codes, steps, self.requests)
        self.watched.read(segment)
        self._samples(segment, codes)
        self.timeline.note(
            "dropped_records",
            int(segment.header["dropped"]),
            f"process {segment.pid}",
            _why_dropped(int(segment.header["writer"]), int(segment.header["stop_errno"])),
        )

    def finish(self, ends: Ends) -> None:
        """Append what no segment tells by itself: requests, tokens, and what threads did."""
        requests, tokens = self.requests.tables(self.strings, ends)
        self.timeline.add("requests", requests)
        self.timeline.add("tokens", tokens)
        self.requests.note(self.timeline)
        self.watched.add_to(self.timeline)

    def _recorded(self, segment: Segment, kind: int) -> Ints:
        """The places of the cells of a type that began while nothing was paused."""
        places = segment.of(kind)
        return places[~self._in_pause(segment.cells["a"][places])]

    def _spans(self, segment: Segment, codes: Codes) -> None:
        cells, places = segment.cells, self._recorded(segment, layout.SPAN)
        places = places[cells["a"][places] != 0]
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
                "end": or_unknown(cells["b"][places], 0),
                "name": coded(codes, cells["e"][places]),
                "domain": np.where(nvtx, domain, self.strings.code("probe")),
                "kind": np.where(nvtx, NO_TEXT, host),
                "process": np.full(len(places), segment.pid),
                "thread": self._thread_of(segment, places, flags),
                "request": coded(codes, cells["c"][places]),
                "step": np.where(has_more, or_unknown(cells["a"][more], -1), UNKNOWN),
                "bytes": np.where(has_more, or_unknown(cells["b"][more], -1), UNKNOWN),
                "path": np.where(has_more, coded(codes, cells["c"][more]), NO_TEXT),
            },
        )

    def _thread_of(self, segment: Segment, places: Ints, flags: Array) -> Ints:
        """The thread of each record; none for what may overlap others, as coroutines do."""
        thread = segment.threads(places)
        thread[(flags & layout.FLAG_ASYNC) != 0] = UNKNOWN
        return thread

    def _scopes(self, segment: Segment, places: Ints) -> None:
        failed = (segment.flags[places] & layout.FLAG_ERROR) != 0
        rows, threads = _rows(segment.cells[places], "c", "a", "b"), segment.threads(places)
        for (request, *times), thread, has_failed in zip(
            rows, threads.tolist(), failed.tolist(), strict=True
        ):
            if request in segment.names:
                scope, home = (times[0], times[1] or None), (segment.pid, thread)
                self.requests.scope(segment.names[request], scope, home, has_failed)

    def _calls(self, segment: Segment, codes: Codes) -> None:
        table = run_calls.calls(segment, codes, self.strings)
        if len(table):
            self.timeline.add("ranges", table.take(~self._in_pause(table["start"])))

    def _marks(self, segment: Segment, codes: Codes) -> None:
        outside = segment.header["writer"] == layout.WRITER_LAUNCHER  # rca-llm ctl
        cells = segment.cells
        # The user's word about time counts in a pause too.
        places = segment.of(layout.MARK) if outside else self._recorded(segment, layout.MARK)
        process, thread = np.full(len(places), segment.pid), segment.threads(places)
        table = Table(
            MARKS,
            {
                "t": cells["a"][places],
                "name": coded(codes, cells["e"][places]),
                "request": coded(codes, cells["c"][places]),
                "process": np.where(outside, UNKNOWN, process),
                "thread": np.where(outside, UNKNOWN, thread),
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
            for number in segment.numbers_behind(place):
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
            self.requests.event(request, name, time, count, segment.pid)
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

    def _samples(self, segment: Segment, codes: Codes) -> None:
        cells, places = segment.cells, segment.of(layout.SAMPLE)
        value = np.ascontiguousarray(cells["b"][places]).view(np.float64)
        places, value = places[np.isfinite(value)], value[np.isfinite(value)]  # others are damage
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
                    "value": value,
                },
            ),
        )

    def _in_pause(self, times: Array) -> Mask:
        return run_pauses.inside(self.pauses, times)


def _rows(cells: Array, *fields: str) -> Iterable[tuple[int, ...]]:
    """Some fields of cells, row by row, which Python reads faster from lists than from arrays."""
    return zip(*(cells[field].tolist() for field in fields), strict=True)


def _value(segment: Segment, place: int) -> float:
    value = segment.cells["b"][place]
    if segment.flags[place] & layout.FLAG_FLOAT:
        return float(value.view(np.float64))
    return float(value)


def _why_dropped(writer: int, number: int) -> str:
    """What is said of records that a writer did not write, by the error number in a segment."""
    what = DEVICE_RECORDS if writer == layout.WRITER_NATIVE else HOST_RECORDS
    if not number:
        return f"{what} were not written, recording went on"
    return f"{what} were not written: recording ended: {os.strerror(number)}"
