"""A builder of small Nsight Systems exports, with the tables and columns of schema 3.20."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from rca_llm import columns
from rca_llm.table import Strings

UTC = 1_700_000_000_000_000_000
PID, TID = 4100, 4101

ACTIVITY = "start end deviceId contextId greenContextId streamId correlationId globalPid"
TABLES = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{ACTIVITY} demangledName shortName mangledName launchType"
    " registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory"
    " dynamicSharedMemory graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{ACTIVITY} bytes copyKind srcKind dstKind srcDeviceId"
    " dstDeviceId graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{ACTIVITY} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{ACTIVITY} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end globalTid correlationId nameId overheadType",
    "NVTX_EVENTS": "start end eventType rangeId color text globalTid endGlobalTid textId domainId"
    " binaryData",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId schemaId idx flags type name offset",
    "OSRT_API": "start end eventClass globalTid nameId",
    "SCHED_EVENTS": "start cpu isSchedIn globalTid threadState threadBlock",
    "PROCESSES": "globalPid pid name",
    "ThreadNames": "nameId priority globalTid",
    "GPU_METRICS": "timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName metricId metricName",
    "TARGET_INFO_GPU": "id name uuid cuDevice totalMemory memoryBandwidth clockRate smCount"
    " maxRegistersPerSm maxShmemPerSm maxWarpsPerSm maxBlocksPerSm threadsPerWarp computeMajor"
    " computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime",
    "TARGET_INFO_SYSTEM_ENV": "name value",
    "DIAGNOSTIC_EVENT": "timestamp severity text globalPid",
    "PROFILER_OVERHEAD": "start end globalTid nameId",
    "META_DATA_EXPORT": "name value",
    "ENUM_CUDA_MEMCPY_OPER": "id name",
    "ENUM_SAMPLING_THREAD_STATE": "id name",
}
"""Columns by table; `id` of the string table is the row id, as in real exports."""


def global_id(pid: int, tid: int = 0, vm: int = 1) -> int:
    """The id of a process, or of one of its threads, on a virtual machine."""
    return vm << 48 | pid << 24 | tid


class Export:
    """An export in the making; `rename` maps tables and columns to the names to write."""

    def __init__(self, rename: dict[str, str] | None = None, drop: set[str] | None = None) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.strings: dict[str, int] = {}
        self.rename, self.drop = rename or {}, drop or set()
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC, utcTime="2023-11-14")
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2025.3.2.0")
        self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.20.3")

    def add(self, table: str, **row: Any) -> None:
        """A row of any table."""
        self.rows.setdefault(table, []).append(row)

    def string(self, value: str) -> int:
        """The id of a text."""
        return self.strings.setdefault(value, len(self.strings) + 1)

    def kernel(self, name: str, start: int, end: int, correlation: int, **more: Any) -> None:
        """A kernel of 8 blocks of 128 threads."""
        row = {
            **dict(zip(ACTIVITY.split(), (start, end, 0, 1, 0, 7, correlation, 0), strict=True)),
            "globalPid": global_id(PID),
            "demangledName": self.string(name),
            "shortName": self.string(name.split("<")[0]),
            "gridX": 8,
            "gridY": 1,
            "gridZ": 1,
            "blockX": 128,
            "blockY": 1,
            "blockZ": 1,
            "registersPerThread": 32,
            "staticSharedMemory": 1000,
            "dynamicSharedMemory": 24,
        }
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", **row | more)

    def copy(self, start: int, end: int, kind: int, memory: tuple[int, int], **more: Any) -> None:
        """A copy of 4,096 bytes."""
        values = (start, end, 0, 1, 0, 7, 900, global_id(PID))
        row = dict(zip(ACTIVITY.split(), values, strict=True))
        row |= {"bytes": 4096, "copyKind": kind, "srcKind": memory[0], "dstKind": memory[1]}
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", **row | more)

    def api(self, name: str, start: int, end: int, correlation: int, pid: int = PID) -> None:
        """A call of the runtime."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=0,
            globalTid=global_id(pid, TID),
            correlationId=correlation,
            nameId=self.string(name),
        )

    def nvtx(self, type: int, start: int, end: int | None, **more: Any) -> None:
        """An NVTX event."""
        row = {"start": start, "end": end, "eventType": type, "globalTid": global_id(PID, TID)}
        self.add("NVTX_EVENTS", **row | more)

    def write(self, path: Path) -> Path:
        """The path of the written database."""
        rows = self.rows | {"StringIds": [{"id": i, "value": v} for v, i in self.strings.items()]}
        connection = sqlite3.connect(path)
        for table, own in rows.items():
            columns = [c for c in TABLES[table].split() if f"{table}.{c}" not in self.drop]
            types = {"id": "INTEGER PRIMARY KEY"} if table == "StringIds" else {}
            names = [self.rename.get(f"{table}.{c}", c) for c in columns]
            spec = ", ".join(
                f'"{name}" {types.get(c, "")}' for c, name in zip(columns, names, strict=True)
            )
            name = self.rename.get(table, table)
            connection.execute(f'CREATE TABLE "{name}" ({spec})')
            marks = ", ".join("?" * len(columns))
            values = [tuple(row.get(c) for c in columns) for row in own]
            connection.executemany(f'INSERT INTO "{name}" VALUES ({marks})', values)
        connection.commit()
        connection.close()
        return path


def to_parquet(database: Path, folder: Path) -> Path:
    """The folder with the tables of a database as Parquet files, as `--type parquetdir` writes."""
    folder.mkdir()
    connection = sqlite3.connect(database)
    for (table,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
        cursor = connection.execute(f'SELECT * FROM "{table}"')
        names = [column[0] for column in cursor.description]
        if rows := cursor.fetchall():
            values = dict(zip(names, map(_column, zip(*rows, strict=True)), strict=True))
            columns.write(folder / f"{table}.parquet", values)
    connection.close()
    return folder


def _column(values: tuple[Any, ...]) -> Any:
    if any(isinstance(value, str) for value in values):
        strings = Strings()
        codes = strings.codes(values)
        return columns.texts(strings.texts, codes)
    known = np.array([value is not None for value in values])
    return columns.numbers(np.array([value or 0 for value in values], np.int64), ~known)
