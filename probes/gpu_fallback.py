"""GPU records through cupti-python, where the collector could not be built.

CUPTI then hands over a Python object a record, in whatever thread it likes: an eager decode step of
965 kernels took 26 times as long on an H200, and a launch of a microsecond 225 to 317 us. So this
records kernels, copies and memsets alone, and the trace says by what it was made.
Standard library only besides cupti-python, Python >= 3.7.
"""

from __future__ import annotations

import os
from struct import Struct
from time import perf_counter_ns, time_ns

from . import format as layout
from .recorder import FAULTS, current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

BUFFER_BYTES = 8 << 20
FLUSH_SECONDS = 0.5

# Rows as in native/rows.h.
_ROW_KERNEL, _ROW_COPY, _ROW_MEMSET = 1, 2, 3
_KERNEL = Struct("<QQQIIIIIIIiii3HHH3BBH")
_COPY = Struct("<QQQQIIIIHHHBBBB6x")

_started = False


def needed() -> bool:
    """Whether this process is to record the GPU and nothing else does."""
    return (
        bool(os.environ.get("RCA_LLM_RUN"))
        and os.environ.get("RCA_LLM_GPU") != "off"
        and not os.environ.get("CUDA_INJECTION64_PATH")
    )


def start() -> bool:
    """Begin to collect, once, before CUDA is initialised; whether that was possible."""
    global _started
    if _started or not needed():
        return False
    _started = True
    try:
        from importlib import import_module

        _enable(import_module("cupti.cupti"))
    except Exception:  # not installed, or CUPTI belongs to another client: the program goes on
        return False
    return True


def _enable(cupti: Any) -> None:
    cupti.activity_register_callbacks(_request, _receiver(cupti))
    for name in ("CONCURRENT_KERNEL", "MEMCPY", "MEMSET"):
        cupti.activity_enable(getattr(cupti.ActivityKind, name))
    current().info("gpu.status", "cupti-python", 1)
    current().info("gpu.mode", "kernels")
    current().info("gpu.graph", "node")
    _flush_regularly(cupti)


def _request() -> tuple[int, int]:
    return BUFFER_BYTES, 0


def _flush_regularly(cupti: Any) -> None:
    import atexit
    from _thread import start_new_thread
    from time import sleep

    def flush() -> None:
        while True:
            sleep(FLUSH_SECONDS)
            cupti.activity_flush_all(0)

    atexit.register(cupti.activity_flush_all, 1)
    start_new_thread(flush, ())


def _receiver(cupti: Any) -> Callable[[Iterable[Any]], None]:
    """What CUPTI calls with records, which are on the UTC clock unless someone changed it."""
    kernel, copy = int(cupti.ActivityKind.CONCURRENT_KERNEL), int(cupti.ActivityKind.MEMCPY)

    def receive(records: Iterable[Any]) -> None:
        try:
            here = current()
            offset = perf_counter_ns() - time_ns()
            rows: dict[int, list[bytes]] = {_ROW_KERNEL: [], _ROW_COPY: [], _ROW_MEMSET: []}
            for record in records:
                kind = int(record.kind)
                if kind == kernel:
                    name = here.ids[record.name]
                    rows[_ROW_KERNEL].append(_kernel(record, name, offset))
                elif kind == copy:
                    rows[_ROW_COPY].append(_copy(record, offset))
                else:
                    rows[_ROW_MEMSET].append(_memset(record, offset))
            for row, parts in rows.items():
                size = (_KERNEL if row == _ROW_KERNEL else _COPY).size
                if parts:
                    here.payload(layout.BUFFER, b"".join(parts), perf_counter_ns(), row, size)
        except FAULTS:
            pass

    return receive


def _on_our_clock(time: int, offset: int) -> int:
    """A time of CUPTI on CLOCK_MONOTONIC; 0, which means none, stays."""
    return time + offset if time else 0


def _kernel(record: Any, name: int, offset: int) -> bytes:
    return _KERNEL.pack(
        _on_our_clock(record.start, offset),
        _on_our_clock(record.end, offset),
        record.graph_node_id,
        record.correlation_id,
        name,
        record.stream_id,
        record.context_id,
        record.graph_id,
        record.static_shared_memory + record.dynamic_shared_memory,
        record.local_memory_per_thread,
        record.grid_x,
        record.grid_y,
        record.grid_z,
        record.block_x,
        record.block_y,
        record.block_z,
        record.registers_per_thread,
        record.device_id,
        record.cluster_x & 255,
        record.cluster_y & 255,
        record.cluster_z & 255,
        record.launch_type,
        0,
    )


def _copy(record: Any, offset: int) -> bytes:
    return _transfer(record, offset, record.copy_kind, record.src_kind, record.dst_kind)


def _memset(record: Any, offset: int) -> bytes:
    return _transfer(record, offset, 0, record.memory_kind, 0)


def _transfer(record: Any, offset: int, copy: int, src: int, dst: int) -> bytes:
    device = record.device_id
    return _COPY.pack(
        _on_our_clock(record.start, offset),
        _on_our_clock(record.end, offset),
        record.bytes,
        record.graph_node_id,
        record.correlation_id,
        record.stream_id,
        record.context_id,
        record.graph_id,
        device,
        device,
        device,
        copy,
        src,
        dst,
        record.flags_ & 255,
    )
