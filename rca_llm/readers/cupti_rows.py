"""Rows of CUPTI activity: fixed layouts, so that NumPy reads them without a loop.

The collector writes rows of one kind side by side (`ROWS`, the layout of `probes/native/rows.h`);
raw activity buffers are turned into the same rows by `cupti_raw`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rca_llm.readers.demangle import demangled
from rca_llm.readers.segments import Codes, coded, packed_rows
from rca_llm.table import NO_TEXT, Array
from rca_llm.trace import Timeline

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
    ROW_MARKER,
) = range(1, 12)
"""Kinds of rows, as `RowKind` in `probes/native/rows.h`."""

_COPY = (
    "start:u8 end:u8 bytes:u8 graph_node:u8 correlation:u4 stream:u4 context:u4 graph:u4 device:u2 "
    "src_device:u2 dst_device:u2 copy:u1 src:u1 dst:u1 flags:u1 pad:6u1"
)
_LAYOUTS = {
    ROW_KERNEL: "start:u8 end:u8 graph_node:u8 correlation:u4 name:u4 stream:u4 context:u4 "
    "graph:u4 shared:u4 local:u4 grid:3i4 block:3u2 registers:u2 device:u2 cluster:3u1 launch:u1 "
    "pad:u2 queued:u8",
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
    "l2_bytes:u4 pad:u4 uuid:16u1",
    ROW_MARKER: "time:u8 step:u8 correlation:u4 thread:u4 sequence:u2 state:u1 within:u1 pad:4u1",
}


def _dtype(layout: str) -> np.dtype[np.void]:
    """The packed little-endian dtype of fields written as `name:type`."""
    fields = [item.split(":") for item in layout.split()]
    return np.dtype([(name, re.sub(r"([iu]\d)$", r"<\1", kind)) for name, kind in fields])


ROWS = {kind: _dtype(layout) for kind, layout in _LAYOUTS.items()}
"""The dtype of each kind of row. What a newer collector appends to its rows is passed over."""

_LEAST = {ROW_KERNEL: 80, ROW_DEVICE: 72}
"""The bytes of rows that older collectors wrote; what they lack is 0, unknown."""

_NAMED = (ROW_KERNEL, ROW_API, ROW_DEVICE)

_API_SUFFIX = re.compile(r"(?:_pt(?:sz|ds))?_v\d{4,}$")


def unpacked(kind: int, row_bytes: int, payload: bytes | memoryview) -> Array | None:
    """The rows of one BUFFER cell, of whichever collector; None where they are not known."""
    return packed_rows(payload, row_bytes, ROWS.get(kind), _LEAST.get(kind))


@dataclass
class Rows:
    """Rows of one process by kind, the names already codes of the timeline's strings."""

    parts: dict[int, list[Array]] = field(default_factory=dict[int, list[Array]])

    def add(self, kind: int, row_bytes: int, payload: bytes | memoryview, codes: Codes) -> None:
        """Append the payload of one BUFFER cell; `codes` translates NAME ids of its segment.

        Rows of an unknown kind, or shorter than this version knows, are passed over.
        """
        rows = unpacked(kind, row_bytes, payload)
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
