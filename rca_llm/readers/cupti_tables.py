"""The `gpu`, `api` and `ranges` tables, and the devices, from rows of CUPTI activity."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rca_llm.readers import cupti_markers
from rca_llm.readers.cupti_rows import (
    ROW_API,
    ROW_COPY,
    ROW_DEVICE,
    ROW_EXTERNAL,
    ROW_GRAPH,
    ROW_JIT,
    ROW_KERNEL,
    ROW_MARKER,
    ROW_MEMSET,
    ROW_OVERHEAD,
    ROW_SYNC,
    Rows,
)
from rca_llm.table import UNKNOWN, Array, Ints, Table, first_rows
from rca_llm.trace import API, GPU, GRAPH, KERNEL, MEMCPY, MEMSET, RANGES, Device, Timeline

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


def add_rows(timeline: Timeline, rows: Rows, process: int) -> None:
    """Append a process's rows to the timeline's tables and devices.

    Kernels of a marked step get its id; waits without an API record of their own become one.
    """
    for table in _gpu_tables(timeline, rows):
        marked = table.with_columns(process=np.full(len(table), process), step=_steps(table, rows))
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
    columns["queued"] = _times(rows["queued"])
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


def _steps(table: Table, rows: Rows) -> Ints:
    """The step of device work: that of the external id of its launch, else by markers around it."""
    correlation, external = table["correlation"], rows.of(ROW_EXTERNAL)
    markers = rows.of(ROW_MARKER)
    steps = cupti_markers.steps_of(markers, correlation, table["start"])
    if len(markers) and "graph_node" in table:
        steps[cupti_markers.repeated(correlation, table["graph_node"])] = UNKNOWN
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
    return Device(int(row["device"]), name, process, known | version, uuid=_uuid(row))


def _uuid(row: np.void) -> str | None:
    """The device's UUID as the driver writes it; None where an older collector did not say."""
    own = bytes(row["uuid"])
    return f"GPU-{UUID(bytes=own)}" if any(own) else None


def _note_overhead(timeline: Timeline, rows: Array) -> None:
    ours = rows[~np.isin(rows["kind"], [*_LOADING, 6 << 16])]
    spent = int((ours["end"].astype(np.int64) - ours["start"].astype(np.int64)).sum())
    timeline.note("tracer_overhead", len(ours), "CUPTI", f"{spent} ns inside the program's threads")
