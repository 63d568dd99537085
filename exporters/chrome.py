"""Chrome's JSON trace in the words of Kineto, for chrome://tracing, Perfetto and our own reader.

A trace of one input is one file, one of several a folder with a file for each, as torch.profiler
writes them. Requests, parts and samples are there to be seen; what Kineto has no words for stands
besides in a block that our own reader takes back (`chrome_rest`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rca_llm.exporters import chrome_rest
from rca_llm.exporters.records import Record, records, rows_of
from rca_llm.exporters.tracks import FIRST_ID, Processes, Track, analysis, counters
from rca_llm.table import UNKNOWN, known
from rca_llm.trace import COPY_KINDS, KERNEL, MEMCPY, MEMORY_KINDS, MEMSET, TABLES, Timeline

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ".json"

_CATEGORIES = {KERNEL: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset"}
_DIRECTIONS = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP", "H2H": "HtoH"}
_LIMITS = {
    "sms": "numSms",
    "warp_size": "warpSize",
    "max_threads_per_sm": "maxThreadsPerMultiprocessor",
    "registers_per_sm": "regsPerMultiprocessor",
    "shared_per_sm": "sharedMemPerMultiprocessor",
    "memory_bytes": "totalGlobalMem",
    "major": "computeMajor",
    "minor": "computeMinor",
}
"""Device attributes and Kineto's names of them."""

_TORCH_TYPES = {
    "bf16": ("BFloat16", 2),
    "fp16": ("Half", 2),
    "fp32": ("Float", 4),
    "fp64": ("Double", 8),
    "uint8": ("Byte", 1),
    "int8": ("Char", 1),
    "int16": ("Short", 2),
    "int32": ("Int", 4),
    "int64": ("Long", 8),
    "bool": ("Bool", 1),
    "fp8_e4m3": ("Float8_e4m3fn", 1),
    "fp8_e5m2": ("Float8_e5m2", 1),
}
"""Torch's name and the size in bytes of each type."""

_MARGIN_NS = 1_000_000
"""The base time lies before every event, since a time of 0 is none to Kineto."""


def write(report: Report, target: Path) -> None:
    """Write one file, or a folder with a file for every input of the trace."""
    timelines = report.trace.timelines
    if len(timelines) == 1:
        _write_file(report, 0, target)
        return
    target.mkdir()
    for number in range(len(timelines)):
        _write_file(report, number, target / f"{number:05}{suffix}")


def _write_file(report: Report, number: int, target: Path) -> None:
    timeline = report.trace.timelines[number]
    base = max(_first_time(timeline) - _MARGIN_NS, 0)
    encode = msgspec.json.Encoder().encode
    with target.open("wb") as file:
        file.write(encode(_outer(timeline, base))[:-1] + b',\n"traceEvents": [')
        separator = b"\n"
        ids = _Ids(timeline, Processes(), number)
        for event in _events(report, number, base, ids):
            file.write(separator + encode(event))
            separator = b",\n"
        rest = {chrome_rest.KEY: chrome_rest.block(report, number, ids.of)}
        file.write(b"\n],\n" + encode(rest)[1:-1] + b"}\n")


def _first_time(timeline: Timeline) -> int:
    """The first known time of any table, ns."""
    times = [
        values[known(values)]
        for name, table in timeline.tables.items()
        for column, values in table.known.items()
        if TABLES[name][column] == "time"
    ]
    return min((int(found.min()) for found in times if len(found)), default=0)


def _outer(timeline: Timeline, base: int) -> Record:
    """What the file says beside its events."""
    header = timeline.header
    job = {"rank": header.rank, "world_size": header.world_size, "nccl_version": header.nccl}
    outer: Record = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base,
        "deviceProperties": [
            {"id": device.device, "name": device.name}
            | {_LIMITS[name]: v for name, v in device.limits.items() if name in _LIMITS}
            for device in timeline.devices
        ],
        "distributedInfo": {name: value for name, value in job.items() if value is not None},
    }
    return outer | ({"host_name": header.host} if header.host else {})


def _events(report: Report, number: int, base: int, ids: _Ids) -> Iterator[Record]:
    timeline = report.trace.timelines[number]
    yield from ids.names()
    for row in records(timeline, "ranges"):
        yield _range(row, ids, base)
    for row in records(timeline, "api"):
        yield from _call(row, ids, base)
    yield from _device_work(timeline, ids, base)
    if number == 0:
        yield from _seen_only(report, ids.processes, base)


class _Ids:
    """The processes and threads of one input as the viewers can take them."""

    def __init__(self, timeline: Timeline, processes: Processes, number: int) -> None:
        self._timeline, self.processes, self._number = timeline, processes, number

    def of(self, row: Record) -> Record:
        """The process and thread of a record."""
        process = self.processes.process(self._number, self._timeline, row.get("process", UNKNOWN))
        return {"pid": process, "tid": self.processes.thread(process, row.get("thread", UNKNOWN))}

    def names(self) -> Iterator[Record]:
        """The metadata that names processes, threads and devices."""
        for row in records(self._timeline, "processes"):
            if "name" in row:
                yield _named("process_name", self.of(row), row["name"])
        for row in records(self._timeline, "threads"):
            if "name" in row:
                yield _named("thread_name", self.of(row), row["name"])
        for device in np.unique(self._timeline["gpu"]["device"]).tolist():
            ids = {"pid": _device_id(device), "tid": 0}
            yield _named("process_name", ids, f"GPU {device}")
            yield {"ph": "M", "name": "process_labels", **ids, "args": {"labels": f"GPU {device}"}}


def _named(kind: str, ids: Record, name: str) -> Record:
    return {"ph": "M", "name": kind, **ids, "args": {"name": name}}


def _device_id(device: int) -> int:
    """The process that stands for a device: an id that no process has."""
    return FIRST_ID + 100_000_000 + device


def _micros(ns: int) -> msgspec.Raw:
    """A time as microseconds with three decimals, exact."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03}".encode())


def _span(row: Record, base: int) -> Record:
    """Start and duration, as far as they are known."""
    if "start" not in row:
        return {}
    span = {"ts": _micros(row["start"] - base)}
    return span | ({"dur": _micros(row["end"] - row["start"])} if "end" in row else {})


def _range(row: Record, ids: _Ids, base: int) -> Record:
    args = chrome_rest.of_range(row)
    category = "user_annotation" if args else chrome_rest.DOMAINS.get(row.get("domain", ""))
    return {
        "ph": "X",
        "cat": category or "user_annotation",
        "name": row.get("name"),
        **ids.of(row),
        **_span(row, base),
        "args": args,
    }


def _call(row: Record, ids: _Ids, base: int) -> Iterator[Record]:
    """An API call, and the arrow from it to what it launched."""
    name, place = row.get("name", ""), ids.of(row)
    maker = "hip" if name.startswith("hip") else "cuda"
    level = "driver" if name.startswith("cu") and not name.startswith("cuda") else "runtime"
    args = {"correlation": row["correlation"]} if "correlation" in row else {}
    event = {"ph": "X", "cat": f"{maker}_{level}", "name": name, **place, **_span(row, base)}
    yield event | {"args": args}
    if args and "ts" in event:
        yield {"ph": "s", "id": row["correlation"], **place, "ts": event["ts"], **_ARROW}


_ARROW = {"cat": "ac2g", "name": "ac2g"}


def _device_work(timeline: Timeline, ids: _Ids, base: int) -> Iterator[Record]:
    """Kernels, copies and memsets; those that overlap on a stream on tracks of their own."""
    described = _collectives(timeline)
    gpu = timeline["gpu"].sorted_by("start")
    free: dict[tuple[int, int], list[int]] = {}
    for row in rows_of(timeline, gpu):
        lanes = free.setdefault((row.get("device", -1), row.get("stream", 0)), [])
        lane = _lane(lanes, row)
        track = row.get("stream", 0) + lane * 1_000_000
        place = {"pid": _device_id(row.get("device", -1)), "tid": track}
        args = _device_args(row) | described.get((row.get("process"), row.get("correlation")), {})
        category = _CATEGORIES.get(row["kind"], "cuda_graph")
        event = {"ph": "X", "cat": category, "name": _device_name(row), **place, **_span(row, base)}
        yield event | {"args": args}
        if "correlation" in row and "ts" in event:
            arrow = {"id": row["correlation"], **place, "ts": event["ts"], **_ARROW}
            yield {"ph": "f", "bp": "e", **arrow}


def _lane(lanes: list[int], row: Record) -> int:
    """The first of a stream's tracks that is free at the start of a record; takes it."""
    start, end = row.get("start", 0), row.get("end", 0)
    at = next((n for n, until in enumerate(lanes) if until <= start), len(lanes))
    if at == len(lanes):
        lanes.append(end)
    lanes[at] = max(end, start)
    return at


def _device_name(row: Record) -> str | None:
    """The name; a copy's in Kineto's way, which tells direction and memory."""
    name: str | None = row.get("name")
    if row["kind"] != MEMCPY or "copy" not in row or (name and "Memcpy" in name and "->" in name):
        return name
    memory: list[str] = [MEMORY_KINDS[row[k]].title() if k in row else "?" for k in ("src", "dst")]
    return f"Memcpy {_DIRECTIONS[COPY_KINDS[row['copy']]]} ({memory[0]} -> {memory[1]})"


def _device_args(row: Record) -> Record:
    names = {
        "device": "device",
        "stream": "stream",
        "correlation": "correlation",
        "registers": "registers per thread",
        "shared": "shared memory",
        "bytes": "bytes",
        "graph_node": "graph node id",
    }
    args = {kineto: row[ours] for ours, kineto in names.items() if ours in row}
    for name in ("grid", "block"):
        if f"{name}_x" in row:
            args[name] = [row.get(f"{name}_{axis}", 1) for axis in "xyz"]
    return args | chrome_rest.of_device(row)


def _collectives(timeline: Timeline) -> dict[tuple[Any, Any], Record]:
    """What the kernel of each collective says of it, by process and correlation id."""
    return {
        (row.get("process"), row["correlation"]): _description(row)
        for row in records(timeline, "collectives")
        if "correlation" in row and "op" in row
    }


def _description(row: Record) -> Record:
    dtype, width = _TORCH_TYPES.get(row.get("dtype", ""), (row.get("dtype"), None))
    count = row["bytes"] // width if width and "bytes" in row else None
    if count is not None and row["op"] == "all_to_all":
        count *= max(row.get("group_size", 1), 1)
    told = {
        "Collective name": row["op"],
        "dtype": dtype,
        "In msg nelems": count,
        "Out msg nelems": count,
        "Group size": row.get("group_size"),
        "Process Group Name": row.get("comm"),
        "Seq": row.get("seq"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _seen_only(report: Report, processes: Processes, base: int) -> Iterator[Record]:
    """Requests, parts and samples: categories that Kineto's readers pass over."""
    named: set[int] = set()
    for at, track in enumerate(analysis(report, processes, lives=False)):
        if track.process not in named:
            named.add(track.process)
            yield _named(
                "process_name", {"pid": track.process, "tid": 0}, processes.names[track.process]
            )
        yield from _track(track, at, base)
    for counter in counters(report, processes):
        for time, value in counter.points:
            yield {
                "ph": "C",
                "name": counter.name,
                "pid": counter.process,
                "ts": _micros(time - base),
                "args": {"value": value},
            }


def _track(track: Track, number: int, base: int) -> Iterator[Record]:
    ids = {"pid": track.process, "tid": FIRST_ID + number}
    yield _named("thread_name", ids, track.name)
    for lane in track.lanes():
        for piece in lane:
            span = _span({"start": piece.start, "end": piece.end}, base)
            yield {"ph": "X", "cat": "rca", "name": piece.name, **ids, **span}
