"""Device work and devices of an Nsight Systems export."""

from __future__ import annotations

import re

import numpy as np

from rca_llm.readers.demangle import demangled
from rca_llm.readers.nsys_store import Export, nonzero, process, small
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Table, concat, known
from rca_llm.trace import (
    COPY_KINDS,
    GPU,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMORY_KINDS,
    MEMSET,
    Device,
    Timeline,
)

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_PLACE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_NAMES = ("demangledName", "shortName", "mangledName")
_LONGEST_NAME = 1 << 14
"""Characters of a mangled name that the C++ library is trusted with."""

_SHAPE = {
    "gridX": "grid_x",
    "gridY": "grid_y",
    "gridZ": "grid_z",
    "blockX": "block_x",
    "blockY": "block_y",
    "blockZ": "block_z",
    "registersPerThread": "registers",
}

_COPIES = "HTOD DTOH HTOA ATOH ATOA ATOD DTOA DTOD HTOH PTOP HTOD DTOH DTOD"
_COPY_ENUM = dict(enumerate(_COPIES.split(), 1))
_MEMORIES = "PAGEABLE PINNED DEVICE ARRAY MANAGED DEVICE_STATIC MANAGED_STATIC"
_MEMORY_ENUM = dict(enumerate(_MEMORIES.split()))
"""The enumerations, for exports without their tables. CUPTI's own memory kinds are numbered
differently."""

_LIMITS = {
    "smCount": "sms",
    "threadsPerWarp": "warp_size",
    "maxBlocksPerSm": "max_blocks_per_sm",
    "maxRegistersPerSm": "registers_per_sm",
    "maxShmemPerSm": "shared_per_sm",
    "totalMemory": "memory_bytes",
    "memoryBandwidth": "memory_bytes_s",
    "clockRate": "clock_hz",
    "computeMajor": "major",
}


def add(export: Export, timeline: Timeline) -> None:
    """Add the table `gpu`, the devices, and whether graph replays were recorded as one piece."""
    parts = [_kernels(export), _copies(export), _memsets(export), _graphs(export)]
    gpu = concat(GPU, parts)
    timeline.tables["gpu"] = gpu
    timeline.devices = _devices(export)
    if len(parts[-1]):
        timeline.header.graph_level = True
    elif bool(np.any(known(gpu["graph_node"]))):
        timeline.header.graph_level = False


def _kernels(export: Export) -> Table:
    names = (
        *_PLACE,
        *_NAMES,
        *_SHAPE,
        "staticSharedMemory",
        "dynamicSharedMemory",
        "graphNodeId",
    )
    raw = export.columns(_KERNEL, *names)
    static, dynamic = raw["staticSharedMemory"], raw["dynamicSharedMemory"]
    shared = np.where(known(static) & known(dynamic), static + dynamic, UNKNOWN)
    shape = {own: small(raw[name]) for name, own in _SHAPE.items()}
    return Table(
        GPU,
        _placed(export, raw, KERNEL)
        | shape
        | {
            "name": _kernel_names(export, raw),
            "shared": small(shared),
            "graph_node": nonzero(raw["graphNodeId"]),
        },
    )


def _kernel_names(export: Export, raw: dict[str, Ints]) -> Array:
    """The names as other tools give them.

    Nsight Systems demangles in a way of its own; the mangled names, where they are there, are
    demangled here as PyTorch's profiler and CUPTI's users do it.
    """
    names = export.texts(raw["mangledName"], _demangled)
    for column in _NAMES:
        missing = names == NO_TEXT
        if np.any(missing):
            names[missing] = export.texts(raw[column][missing])
    return names


def _demangled(name: str) -> str | None:
    """The C++ form of a mangled name, None for any other."""
    found = demangled(name) if len(name) <= _LONGEST_NAME else name
    return found if found != name else None


def _copies(export: Export) -> Table:
    sides = ("srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
    raw = export.columns(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        *_PLACE,
        *sides,
        "copyKind",
        "bytes",
        "graphNodeId",
    )
    memory = _memory_kinds(export)
    src, dst = _translated(raw["srcKind"], memory), _translated(raw["dstKind"], memory)
    copy = _translated(raw["copyKind"], _copy_kinds(export))
    peers = (raw["srcDeviceId"], raw["dstDeviceId"])
    between = known(peers[0]) & known(peers[1]) & (peers[0] != peers[1])
    copy[between & (copy == COPY_KINDS.index("D2D"))] = COPY_KINDS.index("P2P")
    copy = np.where(copy < 0, _copy_kind_of(src, dst), copy)
    labels = [export.strings.code(f"Memcpy {kind}") for kind in (*COPY_KINDS, "")]
    return Table(
        GPU,
        _placed(export, raw, MEMCPY)
        | {
            "name": np.array(labels, np.int32)[copy],
            "copy": copy,
            "src": src,
            "dst": dst,
            "bytes": raw["bytes"],
            "graph_node": nonzero(raw["graphNodeId"]),
        },
    )


def _copy_kind_of(src: Array, dst: Array) -> Array:
    """The direction of copies by the memory at both ends, where the export does not tell it."""
    host, device = [MEMORY_KINDS.index(kind) for kind in ("pageable", "pinned")], 2
    kinds = np.full(len(src), -1, np.int32)
    for direction, one, other in (
        ("H2D", np.isin(src, host), dst == device),
        ("D2H", src == device, np.isin(dst, host)),
        ("D2D", src == device, dst == device),
        ("H2H", np.isin(src, host), np.isin(dst, host)),
    ):
        kinds[one & other] = COPY_KINDS.index(direction)
    return kinds


def _memsets(export: Export) -> Table:
    raw = export.columns("CUPTI_ACTIVITY_KIND_MEMSET", *_PLACE, "memKind", "bytes", "graphNodeId")
    name = export.strings.code("Memset") if len(raw["start"]) else NO_TEXT
    return Table(
        GPU,
        _placed(export, raw, MEMSET)
        | {
            "name": np.full(len(raw["start"]), name),
            "dst": _translated(raw["memKind"], _memory_kinds(export)),
            "bytes": raw["bytes"],
            "graph_node": nonzero(raw["graphNodeId"]),
        },
    )


def _graphs(export: Export) -> Table:
    raw = export.columns(_GRAPH, *_PLACE)
    name = export.strings.code("CUDA graph") if len(raw["start"]) else NO_TEXT
    return Table(GPU, _placed(export, raw, GRAPH) | {"name": np.full(len(raw["start"]), name)})


def _placed(export: Export, raw: dict[str, Ints], kind: int) -> dict[str, Array]:
    """The columns that all device records have."""
    return {
        "kind": np.full(len(raw["start"]), kind, np.int32),
        "start": export.time(raw["start"]),
        "end": export.time(raw["end"]),
        "process": process(raw["globalPid"]),
        "device": small(raw["deviceId"]),
        "stream": raw["streamId"],
        "correlation": nonzero(raw["correlationId"]),
    }


def _translated(values: Ints, meanings: dict[int, int]) -> Array:
    """Values of an enumeration as ours, -1 where unknown."""
    result = np.full(len(values), -1, np.int32)
    for value, meaning in meanings.items():
        result[values == value] = meaning
    return result


def _copy_kinds(export: Export) -> dict[int, int]:
    """Our copy kind for each of the export's; arrays are device memory."""
    kinds: dict[int, int] = {}
    for value, name in (_COPY_ENUM | _enumeration(export, "ENUM_CUDA_MEMCPY_OPER")).items():
        match = re.search(r"([HDAP])TO([HDAP])$", name)
        text = f"{match[1]}2{match[2]}".replace("A", "D") if match else ""
        if text in COPY_KINDS:
            kinds[value] = COPY_KINDS.index(text)
    return kinds


def _memory_kinds(export: Export) -> dict[int, int]:
    """Our memory kind for each of the export's."""
    kinds: dict[int, int] = {}
    for value, name in (_MEMORY_ENUM | _enumeration(export, "ENUM_CUDA_MEM_KIND")).items():
        text = name.lower().removesuffix("_static").rsplit("_", 1)[-1].replace("array", "device")
        if text in MEMORY_KINDS:
            kinds[value] = MEMORY_KINDS.index(text)
    return kinds


def _enumeration(export: Export, table: str) -> dict[int, str]:
    rows = export.records(table, ["id"], ["name"])
    return {row["id"]: texts["name"] for row, texts in rows if "id" in row and "name" in texts}


def _devices(export: Export) -> list[Device]:
    """The GPUs; once for each process that sees it, and as it numbers it, where that is told."""
    gpus = _gpus(export)
    seen: list[Device] = []
    for row, _ in export.records("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"]):
        if "cudaId" in row:
            gpu = gpus.get(row.get("gpuId", UNKNOWN), Device(UNKNOWN))
            limits = dict(gpu.limits)
            seen.append(Device(row["cudaId"], gpu.name, row.get("pid"), limits, gpu.uuid))
    return seen or list(gpus.values())


def _gpus(export: Export) -> dict[int, Device]:
    """The GPUs of the machine, by the export's own id."""
    gpus: dict[int, Device] = {}
    numbers = ["id", "cuDevice", "maxWarpsPerSm", "computeMinor", *_LIMITS]
    for row, texts in export.records("TARGET_INFO_GPU", numbers, ["name", "uuid"]):
        id, uuid = row.get("id", len(gpus)), texts.get("uuid")
        name, number = texts.get("name"), row.get("cuDevice", id)
        uuid = f"GPU-{uuid.removeprefix('GPU-')}" if uuid else None
        gpus[id] = Device(number, name, None, _limits(row), uuid)
    return gpus


def _limits(row: dict[str, int]) -> dict[str, int]:
    """The attributes of a device; old exports write 0 for unknown."""
    limits = {own: row[name] for name, own in _LIMITS.items() if row.get(name)}
    if row.get("maxWarpsPerSm") and row.get("threadsPerWarp"):
        limits["max_threads_per_sm"] = row["maxWarpsPerSm"] * row["threadsPerWarp"]
    if "major" in limits and "computeMinor" in row:
        limits["minor"] = row["computeMinor"]
    return limits
