"""The trace as tracks of slices, for the viewers of other tools.

Viewers demand that the slices of a track nest, or hide those that do not
(google/perfetto#4280), and keep 32 bits of process and thread ids (google/perfetto#522). So every
track is split into as many lanes as its overlaps need, and ids that do not fit or that another
input has already taken are numbered anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rca_llm.attribute.parts import PARTS
from rca_llm.exporters.records import Record, rows_of
from rca_llm.exporters.text import shown
from rca_llm.intervals import Pieces, join
from rca_llm.table import UNKNOWN, Ints, Table, known
from rca_llm.trace import COPY_KINDS, MEMCPY, MEMSET, Timeline

if TYPE_CHECKING:
    from rca_llm.report import Report

FIRST_ID = 2_000_000_000
"""The first of the process and thread ids given anew; Linux gives none so high."""

ANALYSIS = "RCA-LLM"
"""The process under which the analysis itself stands: requests, and each rank's parts."""


@dataclass(frozen=True)
class Slice:
    """One interval of a track: ns UTC, with what is worth a look and the launch it belongs to."""

    start: int
    end: int
    name: str
    category: str
    flow: int | None = None
    launches: bool = False
    """Whether the flow starts here; it ends here otherwise."""
    about: Mapping[str, str | int | float] = field(default_factory=dict[str, "str | int | float"])


@dataclass(frozen=True)
class Track:
    """A named row of a process; `nests` says whether slices may lie within each other."""

    process: int
    thread: int | None
    name: str
    slices: list[Slice]
    nests: bool = True

    def lanes(self) -> list[list[Slice]]:
        """The slices on as few lanes as they need, each lane sorted and properly nested."""
        lanes: list[list[Slice]] = []
        open_ends: list[list[int]] = []
        for piece in sorted(self.slices, key=lambda s: (s.start, -s.end)):
            at = next(
                (n for n, ends in enumerate(open_ends) if self._fits(piece, ends)), len(lanes)
            )
            if at == len(lanes):
                lanes.append([])
                open_ends.append([])
            lanes[at].append(piece)
            open_ends[at].append(piece.end)
        return lanes

    def _fits(self, piece: Slice, ends: list[int]) -> bool:
        """Whether a lane has room, given the ends of what is open on it; closes what is over."""
        while ends and ends[-1] <= piece.start:
            ends.pop()
        return not ends or (self.nests and ends[-1] >= piece.end)


@dataclass(frozen=True)
class Counter:
    """A sampled metric of a process: times ns UTC, and values."""

    process: int
    name: str
    points: list[tuple[int, float]]


@dataclass
class Processes:
    """Ids of at most 31 bits for the processes and threads of all inputs, and their names."""

    names: dict[int, str] = field(default_factory=dict[int, str])
    _ids: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    _taken: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def process(self, number: int, timeline: Timeline, pid: int) -> int:
        """The id of a process of the input with this number."""
        found = self._id((number, pid), pid)
        self.names.setdefault(found, _process_name(timeline, pid))
        return found

    def thread(self, process: int, tid: int) -> int:
        """The id of a thread of a process."""
        return self._id((process, tid, 0), tid)

    def named(self, name: str) -> int:
        """A new process that no input has."""
        found = self._id((-1, len(self._ids)), UNKNOWN)
        self.names[found] = name
        return found

    def _id(self, key: tuple[int, ...], wanted: int) -> int:
        if key not in self._ids:
            kind = len(key)  # processes and threads are two spaces of numbers
            free = 0 <= wanted < FIRST_ID and (kind, wanted) not in self._taken
            self._ids[key] = wanted if free else FIRST_ID + len(self._ids)
            self._taken.add((kind, self._ids[key]))
        return self._ids[key]


def _process_name(timeline: Timeline, pid: int) -> str:
    """A process by name and id, as the input has them, with its rank and host."""
    table = timeline["processes"]
    rows = np.flatnonzero(table["process"] == pid)
    name = timeline.text(int(table["name"][rows[-1]])) if len(rows) else None
    rank = timeline.header.rank
    words = [
        f"rank {rank}" if rank is not None else "",
        timeline.header.host or "",
        name or "process",
        str(pid) if pid != UNKNOWN else "",
    ]
    return shown(" ".join(filter(None, words)))


def tracks(report: Report, processes: Processes) -> Iterator[Track]:
    """All tracks of a report: threads, streams, engine steps, requests and parts."""
    yield from analysis(report, processes)
    for number, timeline in enumerate(report.trace.timelines):
        yield from _threads(number, timeline, processes)
        yield from _streams(number, timeline, processes)
        yield from _steps(number, timeline, processes)


def counters(report: Report, processes: Processes) -> Iterator[Counter]:
    """The sampled metrics of all inputs."""
    for number, timeline in enumerate(report.trace.timelines):
        table = timeline["samples"].sorted_by("t")
        keys = zip(table["metric"].tolist(), table["device"].tolist(), strict=True)
        for metric, device in sorted(set(keys)):
            rows = (table["metric"] == metric) & (table["device"] == device)
            rows &= np.isfinite(table["value"]) & known(table["t"])
            name = shown(timeline.text(metric) or "sample")
            name += f", GPU {device}" if device >= 0 else ""
            points = zip(table["t"][rows].tolist(), table["value"][rows].tolist(), strict=True)
            pid = int(table["process"][rows][0]) if rows.any() else UNKNOWN
            yield Counter(processes.process(number, timeline, pid), name, list(points))


def analysis(report: Report, processes: Processes, *, lives: bool = True) -> Iterator[Track]:
    """What the report adds: every rank's parts, and every request, with its parts for `lives`."""
    home = processes.named(ANALYSIS)
    for segments in report.segments:
        name = f"parts of rank {segments.rank}"
        yield Track(home, None, name, _parts(segments.start, segments.end, segments.part))
    for request, life in report.request_segments.items():
        slices = _parts(life.start, life.end, life.part)
        if slices:
            whole = Slice(slices[0].start, slices[-1].end, shown(request), "request")
            yield Track(
                home, None, f"request {shown(request, 80)}", [whole, *(slices if lives else [])]
            )


def _parts(start: Ints, end: Ints, part: Ints) -> list[Slice]:
    """The pieces of a partition; those of one part that touch are one slice."""
    pieces = join(Pieces(start, end, part))
    begins, ends = map(int, pieces.start), map(int, pieces.end)
    names = (PARTS[int(code)] for code in pieces.label)
    return [Slice(*row, "part") for row in zip(begins, ends, names, strict=True)]


def _threads(number: int, timeline: Timeline, processes: Processes) -> Iterator[Track]:
    """Ranges and API calls, thread by thread."""
    tables = [(name, timeline[name]) for name in ("ranges", "api")]
    keys: set[tuple[int, int]] = set()
    for _, table in tables:
        keys |= set(zip(table["process"].tolist(), table["thread"].tolist(), strict=True))
    for pid, tid in sorted(keys):
        process = processes.process(number, timeline, pid)
        slices = [
            piece
            for name, table in tables
            for piece in _host_slices(number, timeline, name, _of(table, pid, tid))
        ]
        yield Track(
            process, processes.thread(process, tid), _thread_name(timeline, pid, tid), slices
        )


def _of(table: Table, pid: int, tid: int) -> Table:
    mine = (table["process"] == pid) & (table["thread"] == tid) & known(table["start"])
    return table.take(np.flatnonzero(mine))


def _thread_name(timeline: Timeline, pid: int, tid: int) -> str:
    table = timeline["threads"]
    rows = np.flatnonzero((table["process"] == pid) & (table["thread"] == tid))
    name = timeline.text(int(table["name"][rows[-1]])) if len(rows) else None
    words = [name or "thread", str(tid) if tid != UNKNOWN else ""]
    return shown(" ".join(filter(None, words)))


def _host_slices(number: int, timeline: Timeline, name: str, table: Table) -> Iterator[Slice]:
    for row in rows_of(timeline, table):
        flow = _flow(number, row) if name == "api" else None
        category = "api" if name == "api" else row.get("kind") or row.get("domain") or "range"
        start = row["start"]
        yield Slice(
            start,
            max(row.get("end", start), start),
            shown(row.get("name", "unnamed")),
            shown(category),
            flow,
            True,
            _about(row, "request", "step", "bytes", "path", "domain"),
        )


def _flow(number: int, row: Record) -> int | None:
    """One number for a launch and what it launched: input, process and correlation id."""
    if "correlation" not in row:
        return None
    key = hash((number, row.get("process", -1), row["correlation"]))
    return key & 0x7FFF_FFFF_FFFF_FFFF


def _about(row: Record, *names: str) -> dict[str, str | int | float]:
    return {
        name: shown(row[name]) if isinstance(row[name], str) else row[name]
        for name in names
        if name in row
    }


def _streams(number: int, timeline: Timeline, processes: Processes) -> Iterator[Track]:
    """Device records, stream by stream."""
    gpu = timeline["gpu"]
    gpu = gpu.take(np.flatnonzero(known(gpu["start"])))
    columns = [gpu[name].tolist() for name in ("process", "device", "stream")]
    for pid, device, stream in sorted(set(zip(*columns, strict=True))):
        mine = (gpu["process"] == pid) & (gpu["device"] == device) & (gpu["stream"] == stream)
        rows = rows_of(timeline, gpu.take(np.flatnonzero(mine)))
        names = [f"GPU {device}" if device >= 0 else "GPU"]
        names += [f"stream {stream}"] if stream != UNKNOWN else []
        process = processes.process(number, timeline, pid)
        slices = [_device_slice(number, row) for row in rows]
        yield Track(process, None, " ".join(names), slices, nests=False)


def _device_slice(number: int, row: Record) -> Slice:
    start, about = row["start"], _about(row, "registers", "shared", "bytes", "correlation", "step")
    for name in ("grid", "block"):
        sizes = [row[f"{name}_{axis}"] for axis in "xyz" if f"{name}_{axis}" in row]
        if sizes:
            about[name] = " × ".join(map(str, sizes))
    named = shown(row.get("name") or "graph replay")
    category = "kernel"
    if row["kind"] in (MEMCPY, MEMSET):
        category = "memcpy" if row["kind"] == MEMCPY else "memset"
        named = f"{category} {COPY_KINDS[row['copy']]}" if "copy" in row else named
    return Slice(start, max(row["end"], start), named, category, _flow(number, row), False, about)


def _steps(number: int, timeline: Timeline, processes: Processes) -> Iterator[Track]:
    table = timeline["steps"]
    for pid in sorted(set(table["process"].tolist())):
        rows = rows_of(timeline, table.take(np.flatnonzero(table["process"] == pid)))
        slices = [
            Slice(
                r["start"],
                max(r.get("end", r["start"]), r["start"]),
                f"step {r.get('id', '')}",
                "step",
            )
            for r in rows
        ]
        yield Track(processes.process(number, timeline, pid), None, "steps", slices)
