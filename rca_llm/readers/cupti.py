"""CUPTI activity records: those of our collector, and recordings of raw activity buffers.

The collector writes rows of one kind side by side (`ROWS`, the layout of `probes/native/rows.h`),
so that NumPy reads them without a loop. A raw recording is a sequence of headers (u32 tag, u32
length, u64 pointer), each followed by `length` bytes: tag 1 is the name that kernels refer to by
`pointer`, tag 2 an activity buffer as CUPTI 13.0 returned it. Both become the same rows, and those
the `gpu`, `api` and `ranges` tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rca_llm.errors import UnreadableInput
from rca_llm.readers import cupti_raw
from rca_llm.readers.demangle import demangled
from rca_llm.readers.files import Source
from rca_llm.readers.segments import Codes, coded, packed_rows
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Table, first_rows
from rca_llm.trace import (
    API,
    GPU,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    RANGES,
    Device,
    Header,
    Input,
    Timeline,
    Trace,
)

(
    ROW_KERNEL,
    ROW_COPY,
    ROW_MEMSET,
    ROW_API,
    ROW_SYNC,
    ROW_GRAPH,
    ROW_OVERHEAD,
    ROW_EXTERNAL,
    ROW_JIT,
    ROW_DEVICE,
) = range(1, 11)
"""Kinds of rows, as `RowKind` in `probes/native/rows.h`."""

_COPY = (
    "start:u8 end:u8 bytes:u8 graph_node:u8 correlation:u4 stream:u4 context:u4 graph:u4 device:u2 "
    "src_device:u2 dst_device:u2 copy:u1 src:u1 dst:u1 flags:u1 pad:6u1"
)
_LAYOUTS = {
    ROW_KERNEL: "start:u8 end:u8 graph_node:u8 correlation:u4 name:u4 stream:u4 context:u4 "
    "graph:u4 shared:u4 local:u4 grid:3i4 block:3u2 registers:u2 device:u2 cluster:3u1 launch:u1 "
    "pad:u2",
    ROW_COPY: _COPY,
    ROW_MEMSET: _COPY,
    ROW_API: "start:u8 end:u8 correlation:u4 thread:u4 name:u4 result:u4",
    ROW_SYNC: "start:u8 end:u8 correlation:u4 stream:u4 context:u4 type:u4",
    ROW_GRAPH: "start:u8 end:u8 correlation:u4 stream:u4 context:u4 graph:u4 device:u4 pad:u4",
    ROW_OVERHEAD: "start:u8 end:u8 kind:u4 thread:u4",
    ROW_EXTERNAL: "id:u8 correlation:u4 kind:u4",
    ROW_JIT: "start:u8 end:u8 correlation:u4 device:u4 entry:u4 operation:u4",
    ROW_DEVICE: "memory_bytes:u8 memory_bytes_s:u8 clock_hz:u8 device:u4 name:u4 sms:u4 warp:u4 "
    "warps_per_sm:u4 blocks_per_sm:u4 registers_per_sm:u4 shared_per_sm:u4 major:u4 minor:u4 "
    "l2_bytes:u4 pad:u4",
}


def _dtype(layout: str) -> np.dtype[np.void]:
    """The packed little-endian dtype of fields written as `name:type`."""
    fields = [item.split(":") for item in layout.split()]
    return np.dtype([(name, re.sub(r"([iu]\d)$", r"<\1", kind)) for name, kind in fields])


ROWS = {kind: _dtype(layout) for kind, layout in _LAYOUTS.items()}
"""The dtype of each kind of row. What a newer collector appends to its rows is passed over."""

_NAMED = (ROW_KERNEL, ROW_API, ROW_DEVICE)

_COPY_CODES = np.array([-1, 0, 1, 0, 1, 2, 2, 2, 2, 4, 3], np.int32)
"""`CUpti_ActivityMemcpyKind` to an index into `COPY_KINDS`; array copies count as device copies."""

_MEMORY_CODES = np.array([-1, 0, 1, 2, 2, 3, 2, 3], np.int32)
"""`CUpti_ActivityMemoryKind` to an index into `MEMORY_KINDS`."""

_SYNC_NAMES = {
    1: "cudaEventSynchronize",
    2: "cudaStreamWaitEvent",
    3: "cudaStreamSynchronize",
    4: "cudaDeviceSynchronize",
}
"""The call behind a `CUpti_ActivitySynchronizationType`, where it has no record of its own."""

_OVERHEADS = {
    1: "driver compiler",
    1 << 16: "CUPTI buffer flush",
    2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resource",
    4 << 16: "module loading",
    5 << 16: "lazy function loading",
    6 << 16: "command buffer full",
    7 << 16: "CUPTI buffer request",
    8 << 16: "UVM activity initialisation",
}
_LOADING = (1, 4 << 16, 5 << 16)
"""Overheads of CUDA itself that a program pays at the first use of a kernel: kind `jit`."""

_FALLBACK = (
    "no C compiler when installed: records came through cupti-python, which made an eager decode "
    "step 26 times as long where it was measured"
)

_API_SUFFIX = re.compile(r"(?:_pt(?:sz|ds))?_v\d{4,}$")


@dataclass
class Rows:
    """Rows of one process by kind, the names already codes of the timeline's strings."""

    parts: dict[int, list[Array]] = field(default_factory=dict[int, list[Array]])

    def add(self, kind: int, row_bytes: int, payload: bytes | memoryview, codes: Codes) -> None:
        """Append the payload of one BUFFER cell; `codes` translates NAME ids of its segment.

        Rows of an unknown kind, or shorter than this version knows, are passed over.
        """
        rows = packed_rows(payload, row_bytes, ROWS.get(kind))
        if rows is not None:
            self.append(kind, rows, codes)

    def append(self, kind: int, rows: Array, codes: Codes) -> None:
        """Append rows whose `name` is an index into `codes`; the rows are changed."""
        if kind in _NAMED and len(rows):
            rows["name"] = coded(codes, rows["name"]).astype(np.uint32)
        self.parts.setdefault(kind, []).append(rows)

    def of(self, kind: int) -> Array:
        """All rows of a kind."""
        parts = self.parts.get(kind)
        return np.concatenate(parts) if parts else np.zeros(0, ROWS[kind])


def codes_of(timeline: Timeline, names: Mapping[int, str]) -> Codes:
    """Text codes by NAME id of one segment, kernel names demangled; unknown ids have none.

    Index 0, and every id that is missing, is `NO_TEXT`.
    """
    codes = np.full(max(names, default=0) + 2, NO_TEXT, np.int32)
    for number, text in names.items():
        codes[number] = timeline.strings.code(api_name(demangled(text)))
    return codes


def api_name(name: str) -> str:
    """A function name without CUPTI's version suffix: `cudaMalloc_v3020` is `cudaMalloc`."""
    return _API_SUFFIX.sub("", name) if name.startswith("cuda") else name


def add_rows(timeline: Timeline, rows: Rows, process: int) -> None:
    """Append a process's rows to the timeline's tables and devices.

    Kernels of a marked step get its id; waits without an API record of their own become one.
    """
    steps = rows.of(ROW_EXTERNAL)
    for table in _gpu_tables(timeline, rows):
        marked = table.with_columns(
            process=np.full(len(table), process), step=_steps(table["correlation"], steps)
        )
        timeline.add("gpu", marked)
    timeline.add("api", _api(rows.of(ROW_API), process))
    timeline.add("api", _waits(timeline, rows, process))
    timeline.add("ranges", _overheads(timeline, rows.of(ROW_OVERHEAD), process))
    timeline.add("ranges", _compilations(timeline, rows.of(ROW_JIT), process))
    timeline.devices.extend(_device(timeline, row, process) for row in rows.of(ROW_DEVICE))
    _note_overhead(timeline, rows.of(ROW_OVERHEAD))


def _gpu_tables(timeline: Timeline, rows: Rows) -> Iterable[Table]:
    yield _kernels(rows.of(ROW_KERNEL))
    yield _copies(rows.of(ROW_COPY), MEMCPY)
    yield _copies(rows.of(ROW_MEMSET), MEMSET)
    yield _graphs(timeline, rows.of(ROW_GRAPH))


def _times(values: Array) -> Ints:
    """Times as int64, 0 (CUPTI had none) as unknown."""
    times = values.astype(np.int64)
    times[times == 0] = UNKNOWN
    return times


def _common(rows: Array, kind: int) -> dict[str, Array]:
    return {
        "kind": np.full(len(rows), kind),
        "start": _times(rows["start"]),
        "end": _times(rows["end"]),
        "device": rows["device"].astype(np.int32),
        "stream": rows["stream"].astype(np.int64),
        "correlation": rows["correlation"].astype(np.int64),
    }


def _nodes(rows: Array) -> Ints:
    """Graph node ids; 0 means that the record came from no graph."""
    nodes = rows["graph_node"].astype(np.int64)
    nodes[nodes == 0] = UNKNOWN
    return nodes


def _kernels(rows: Array) -> Table:
    columns = _common(rows, KERNEL)
    columns["name"] = rows["name"].astype(np.int32)
    columns["graph_node"] = _nodes(rows)
    for axis, letter in enumerate("xyz"):
        columns[f"grid_{letter}"] = rows["grid"][:, axis]
        columns[f"block_{letter}"] = rows["block"][:, axis].astype(np.int32)
    columns["registers"] = rows["registers"].astype(np.int32)
    columns["shared"] = rows["shared"].astype(np.int32)
    return Table(GPU, columns)


def _copies(rows: Array, kind: int) -> Table:
    columns = _common(rows, kind)
    columns["graph_node"] = _nodes(rows)
    columns["bytes"] = rows["bytes"].astype(np.int64)
    if kind == MEMCPY:
        columns["copy"] = _coded(_COPY_CODES, rows["copy"])
        columns["src"] = _coded(_MEMORY_CODES, rows["src"])
        columns["dst"] = _coded(_MEMORY_CODES, rows["dst"])
    else:
        columns["dst"] = _coded(_MEMORY_CODES, rows["src"])
    return Table(GPU, columns)


def _coded(codes: NDArray[np.int32], values: Array) -> NDArray[np.int32]:
    """`codes` by value, -1 for values beyond it."""
    return np.append(codes, np.int32(-1))[np.minimum(values, len(codes))]


def _graphs(timeline: Timeline, rows: Array) -> Table:
    columns = _common(rows, GRAPH)
    texts = (f"CUDA graph {number}" for number in rows["graph"].tolist())
    columns["name"] = timeline.strings.codes(texts)
    return Table(GPU, columns)


def _steps(correlation: Ints, external: Array) -> Ints:
    """The step of each correlation id, from the external ids that were pushed around its calls."""
    steps = np.full(len(correlation), UNKNOWN, np.int64)
    row = first_rows(external["correlation"].astype(np.int64), correlation)
    steps[row >= 0] = external["id"][row[row >= 0]].astype(np.int64)
    return steps


def _api(rows: Array, process: int) -> Table:
    return Table(
        API,
        {
            "start": _times(rows["start"]),
            "end": _times(rows["end"]),
            "name": rows["name"].astype(np.int32),
            "process": np.full(len(rows), process),
            "thread": rows["thread"].astype(np.int64),
            "correlation": rows["correlation"].astype(np.int64),
        },
    )


def _waits(timeline: Timeline, rows: Rows, process: int) -> Table:
    waits = rows.of(ROW_SYNC)
    alone = waits[~np.isin(waits["correlation"], rows.of(ROW_API)["correlation"])]
    names = (_SYNC_NAMES.get(kind, "synchronisation") for kind in alone["type"].tolist())
    return Table(
        API,
        {
            "start": _times(alone["start"]),
            "end": _times(alone["end"]),
            "name": timeline.strings.codes(names),
            "process": np.full(len(alone), process),
            "correlation": alone["correlation"].astype(np.int64),
        },
    )


def _overheads(timeline: Timeline, rows: Array, process: int) -> Table:
    kinds = rows["kind"].tolist()
    threads = rows["thread"].astype(np.int64)
    threads[threads == 0] = UNKNOWN
    strings = timeline.strings
    return Table(
        RANGES,
        {
            "start": _times(rows["start"]),
            "end": _times(rows["end"]),
            "name": strings.codes(_OVERHEADS.get(kind, "CUDA overhead") for kind in kinds),
            "domain": np.full(len(rows), strings.code("cuda")),
            "kind": strings.codes("jit" if kind in _LOADING else None for kind in kinds),
            "process": np.full(len(rows), process),
            "thread": threads,
        },
    )


def _compilations(timeline: Timeline, rows: Array, process: int) -> Table:
    strings = timeline.strings
    return Table(
        RANGES,
        {
            "start": _times(rows["start"]),
            "end": _times(rows["end"]),
            "name": np.full(len(rows), strings.code("JIT compilation")),
            "domain": np.full(len(rows), strings.code("cuda")),
            "kind": np.full(len(rows), strings.code("jit")),
            "process": np.full(len(rows), process),
        },
    )


def _device(timeline: Timeline, row: np.void, process: int) -> Device:
    warp = int(row["warp"])
    limits = {
        "sms": int(row["sms"]),
        "warp_size": warp,
        "max_threads_per_sm": int(row["warps_per_sm"]) * warp,
        "max_blocks_per_sm": int(row["blocks_per_sm"]),
        "registers_per_sm": int(row["registers_per_sm"]),
        "shared_per_sm": int(row["shared_per_sm"]),
        "memory_bytes": int(row["memory_bytes"]),
        "memory_bytes_s": int(row["memory_bytes_s"]),
        "clock_hz": int(row["clock_hz"]),
    }
    known = {name: value for name, value in limits.items() if value}
    version = {"major": int(row["major"]), "minor": int(row["minor"])} if row["major"] else {}
    name = timeline.text(int(np.int32(np.uint32(row["name"]))))
    return Device(int(row["device"]), name, process, known | version)


def _note_overhead(timeline: Timeline, rows: Array) -> None:
    ours = rows[~np.isin(rows["kind"], [*_LOADING, 6 << 16])]
    spent = int((ours["end"].astype(np.int64) - ours["start"].astype(np.int64)).sum())
    timeline.note("tracer_overhead", len(ours), "CUPTI", f"{spent} ns inside the program's threads")


# ------------------------------------------------------------------ facts that the collector wrote


def add_facts(
    timeline: Timeline, facts: Iterable[tuple[str, int, str | None]], process: int
) -> None:
    """Findings and header fields from the INFO cells `gpu.*` of one process: key, number, text."""
    counts: dict[str, int] = {}
    texts: dict[str, str] = {}
    for key, number, text in facts:
        counts[key] = counts.get(key, 0) + number
        if text is not None:
            texts[key] = text
    where = f"process {process}"
    _note_losses(timeline, counts, where)
    if "gpu.competitor" in texts:
        who = texts["gpu.competitor"] or "another client of CUPTI"
        timeline.note("competing_profiler", 1, where, f"{who} holds CUPTI: kernels not recorded")
    elif texts.get("gpu.status") in ("refused", "no libcupti"):
        why = texts.get("gpu.error", texts["gpu.status"])
        timeline.note(
            "not_traced", 1, where, f"GPU collector: {why} ({counts.get('gpu.error', 0)})"
        )
    if texts.get("gpu.status") == "cupti-python":
        timeline.note("tracer_overhead", 1, where, _FALLBACK)
    if texts.get("gpu.graph") == "graph":
        timeline.header.graph_level = True
    elif "gpu.graph" in texts and timeline.header.graph_level is None:
        timeline.header.graph_level = False
    if counts.get("gpu.cupti"):
        timeline.header.extra.setdefault("cupti", counts["gpu.cupti"])


def _note_losses(timeline: Timeline, counts: Mapping[str, int], where: str) -> None:
    note = timeline.note
    note("dropped_records", counts.get("gpu.dropped", 0), where, "dropped by CUPTI")
    note(
        "dropped_records", counts.get("gpu.foreign_buffers", 0), where, "buffers of another client"
    )
    note("dropped_records", counts.get("gpu.foreign_time", 0), where, "records on another clock")
    note("dropped_records", counts.get("gpu.overrun_bytes", 0), where, "bytes: writer held up")
    overflow = counts.get("gpu.counters_overflow", 0)
    note("dropped_records", overflow, where, "times that the GPU's counters overflowed")


# ------------------------------------------------------------------ raw recordings


def matches(source: Source) -> bool:
    """Whether the content is a sequence of names and activity buffers."""
    return not source.directory and cupti_raw.matches(source.head)


def read(source: Source) -> Trace:
    """The records of a raw recording, on the clock of the machine that made it."""
    with source.open() as stream:
        data = stream.readall()
    raw = cupti_raw.parse(memoryview(data))
    timeline = Timeline(Input(source.path, "cupti", tool="CUPTI"), Header(utc=False))
    found = list(cupti_raw.rows(raw, ROWS))  # which also names the API functions
    codes = codes_of(timeline, raw.names)
    rows = Rows()
    for kind, values in found:
        rows.append(kind, values, codes)
    add_rows(timeline, rows, raw.process)
    if raw.damaged or stream.truncated:
        timeline.note("truncated", 1, source.path, f"byte {raw.end}: expected a whole record")
    events = len(timeline["gpu"]) + len(timeline["api"])
    if not events:
        raise UnreadableInput(f"{source.path}: byte {raw.end}: expected CUPTI activity records")
    timeline.input = Input(source.path, "cupti", tool="CUPTI", events=events)
    return Trace([timeline])
