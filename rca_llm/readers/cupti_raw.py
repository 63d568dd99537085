"""Raw recordings of CUPTI 13.0 activity buffers: the walk over their records, their translation.

Records of a buffer have different sizes and lie one after another, so the walk is a loop;
everything after it works on all records of a kind at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rca_llm.readers.cupti_names import DRIVER, RUNTIME
from rca_llm.table import UNKNOWN, Array

_HEADER = struct.Struct("<IIQ")
_NAME, _BUFFER = 1, 2
_LONGEST = 1 << 30

_KIND_MEMCPY, _KIND_MEMSET, _KIND_DRIVER, _KIND_RUNTIME, _KIND_KERNEL = 1, 2, 4, 5, 10
_KIND_OVERHEAD, _KIND_PEER, _KIND_SYNC, _KIND_EXTERNAL, _KIND_GRAPH, _KIND_JIT = (
    17,
    22,
    38,
    39,
    51,
    52,
)

_SIZES = {
    _KIND_MEMCPY: 96,
    _KIND_MEMSET: 88,
    _KIND_DRIVER: 40,
    _KIND_RUNTIME: 40,
    _KIND_KERNEL: 216,
    _KIND_OVERHEAD: 56,
    _KIND_PEER: 96,
    _KIND_SYNC: 56,
    _KIND_EXTERNAL: 24,
    _KIND_GRAPH: 56,
    _KIND_JIT: 72,
}
"""Bytes of each kind of record in CUDA 13.0."""

_THREAD_OBJECT = 2
_CUSTOM2 = 5


def _record(size: int, **fields: tuple[str, int]) -> np.dtype[np.void]:
    """A record of `size` bytes, its members as (type, offset)."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


_TIMES = {"start": ("<u8", 16), "end": ("<u8", 24)}
_COPY_FIELDS = {
    "copy": ("u1", 4),
    "src": ("u1", 5),
    "dst": ("u1", 6),
    "flags": ("u1", 7),
    "bytes": ("<u8", 8),
    **_TIMES,
    "device": ("<u4", 32),
    "context": ("<u4", 36),
    "stream": ("<u4", 40),
}
_RECORDS = {
    _KIND_KERNEL: _record(
        216,
        registers=("<u2", 6),
        **_TIMES,
        device=("<u4", 40),
        context=("<u4", 44),
        stream=("<u4", 48),
        grid=("<3i4", 52),
        block=("<3i4", 64),
        static=("<i4", 76),
        dynamic=("<i4", 80),
        local=("<u4", 84),
        correlation=("<u4", 92),
        pointer=("<u8", 104),
        queued=("<u8", 120),
        launch=("u1", 136),
        graph_node=("<u8", 144),
        graph=("<u4", 156),
        cluster=("<3u4", 176),
    ),
    _KIND_MEMCPY: _record(
        96, **_COPY_FIELDS, correlation=("<u4", 44), graph_node=("<u8", 64), graph=("<u4", 72)
    ),
    _KIND_PEER: _record(
        96,
        **_COPY_FIELDS,
        src_device=("<u4", 44),
        dst_device=("<u4", 52),
        correlation=("<u4", 60),
        graph_node=("<u8", 72),
        graph=("<u4", 80),
    ),
    _KIND_MEMSET: _record(
        88,
        bytes=("<u8", 8),
        **_TIMES,
        device=("<u4", 32),
        context=("<u4", 36),
        stream=("<u4", 40),
        correlation=("<u4", 44),
        flags=("<u2", 48),
        src=("<u2", 50),
        graph_node=("<u8", 64),
        graph=("<u4", 72),
    ),
    _KIND_RUNTIME: _record(
        40,
        cbid=("<u4", 4),
        start=("<u8", 8),
        end=("<u8", 16),
        process=("<u4", 24),
        thread=("<u4", 28),
        correlation=("<u4", 32),
        result=("<u4", 36),
    ),
    _KIND_SYNC: _record(
        56,
        type=("<u4", 4),
        start=("<u8", 8),
        end=("<u8", 16),
        correlation=("<u4", 24),
        context=("<u4", 28),
        stream=("<u4", 32),
    ),
    _KIND_OVERHEAD: _record(
        56,
        kind=("<u4", 4),
        object=("<u4", 8),
        process=("<u4", 12),
        thread=("<u4", 16),
        start=("<u8", 24),
        end=("<u8", 32),
    ),
    _KIND_EXTERNAL: _record(24, kind=("<u4", 4), id=("<u8", 8), correlation=("<u4", 16)),
    _KIND_GRAPH: _record(
        56,
        correlation=("<u4", 4),
        start=("<u8", 8),
        end=("<u8", 16),
        device=("<u4", 24),
        graph=("<u4", 28),
        context=("<u4", 32),
        stream=("<u4", 36),
    ),
    _KIND_JIT: _record(
        72,
        entry=("<u4", 4),
        operation=("<u4", 8),
        device=("<u4", 12),
        start=("<u8", 16),
        end=("<u8", 24),
        correlation=("<u4", 32),
    ),
}
_RECORDS[_KIND_DRIVER] = _RECORDS[_KIND_RUNTIME]

_ROW_OF = {
    _KIND_KERNEL: 1,
    _KIND_MEMCPY: 2,
    _KIND_PEER: 2,
    _KIND_MEMSET: 3,
    _KIND_DRIVER: 4,
    _KIND_RUNTIME: 4,
    _KIND_SYNC: 5,
    _KIND_GRAPH: 6,
    _KIND_OVERHEAD: 7,
    _KIND_EXTERNAL: 8,
    _KIND_JIT: 9,
}
"""Which row of the collector a kind of record becomes."""


@dataclass
class Raw:
    """What a recording holds: records by kind, and names by id."""

    records: dict[int, list[Array]] = field(default_factory=dict[int, list[Array]])
    names: dict[int, str] = field(default_factory=dict[int, str])
    ids: dict[int, int] = field(default_factory=dict[int, int])
    """Name ids by the pointer that kernels hold."""
    end: int = 0
    """Where reading ended, bytes."""
    damaged: bool = False

    @property
    def process(self) -> int:
        """The process id of the API records, unknown without any."""
        for kind in (_KIND_RUNTIME, _KIND_DRIVER):
            for part in self.records.get(kind, ()):
                return int(part["process"][0])
        return UNKNOWN

    def add_name(self, text: str, pointer: int = 0) -> int:
        """A new name; kernels with the pointer mean it from here on."""
        number = len(self.names) + 1
        self.names[number] = text
        if pointer:
            self.ids[pointer] = number
        return number


def matches(head: bytes) -> bool:
    """Whether a file that begins so is a sequence of names and activity buffers."""
    at = seen = 0
    while at + _HEADER.size <= len(head) and seen < 8:
        tag, length, pointer = _HEADER.unpack_from(head, at)
        body = head[at + _HEADER.size : at + _HEADER.size + length]
        if not _plausible(tag, length, pointer, body):
            return False
        at += _HEADER.size + length
        seen += 1
    return seen > 0


def _plausible(tag: int, length: int, pointer: int, body: bytes) -> bool:
    if not 0 < length < _LONGEST:
        return False
    if tag == _NAME:
        return pointer > 0 and length < 1 << 16 and min(body, default=32) >= 32
    return tag == _BUFFER and length % 8 == 0 and int.from_bytes(body[:4], "little") in _SIZES


def parse(data: memoryview) -> Raw:
    """The records of a recording up to its end, or to the first byte that makes no sense."""
    raw = Raw()
    while raw.end < len(data):
        at = raw.end + _HEADER.size
        if at > len(data):
            raw.damaged = True
            break
        tag, length, pointer = _HEADER.unpack_from(data, raw.end)
        body = data[at : at + length]
        if tag == _NAME:
            raw.add_name(bytes(body).decode("utf-8", "replace"), pointer)
        elif tag == _BUFFER:
            _add_buffer(raw, body)
        if tag not in (_NAME, _BUFFER) or len(body) < length:
            raw.damaged = True
            break
        raw.end = at + length
    return raw


def _add_buffer(raw: Raw, body: memoryview) -> None:
    """Split a buffer into records by kind; kernels get the id of the name they point to now."""
    offsets = _walk(body[: len(body) // 8 * 8].cast("I"))
    if sum(len(at) * _SIZES[kind] for kind, at in offsets.items()) < len(body) // 8 * 8:
        raw.damaged = True
    words = np.frombuffer(body, np.uint8)
    for kind, starts in offsets.items():
        size = _SIZES[kind]
        place = np.array(starts, np.int64)[:, None] * 4 + np.arange(size)
        records = words[place].view(_RECORDS[kind])[:, 0]
        if kind == _KIND_KERNEL:
            records["pointer"] = _numbers(records["pointer"], raw.ids)
        raw.records.setdefault(kind, []).append(records)


def _walk(words: memoryview) -> dict[int, list[int]]:
    """The places of the whole records of a buffer by kind, in u32 words."""
    steps = {kind: size // 4 for kind, size in _SIZES.items()}
    found: dict[int, list[int]] = {kind: [] for kind in steps}
    at, end = 0, len(words)
    while at < end:
        kind = words[at]
        step = steps.get(kind)
        if step is None or at + step > end:
            break
        found[kind].append(at)
        at += step
    return {kind: places for kind, places in found.items() if places}


def _numbers(values: Array, numbers: Mapping[int, int]) -> Array:
    """`numbers` of many values, 0 where there is none."""
    distinct, place = np.unique(values, return_inverse=True)
    found = [numbers.get(value, 0) for value in distinct.tolist()]
    return np.array(found, np.uint64)[place]


def rows(raw: Raw, layouts: Mapping[int, np.dtype[np.void]]) -> Iterator[tuple[int, Array]]:
    """The recording as rows of the collector: kind of row and rows, `name` an id of `raw.names`."""
    for kind in sorted(raw.records):
        records = np.concatenate(raw.records[kind])
        if kind == _KIND_EXTERNAL:
            records = records[records["kind"] == _CUSTOM2]
        out = np.zeros(len(records), layouts[_ROW_OF[kind]])
        for name in set(out.dtype.names or ()) & set(records.dtype.names or ()):
            out[name] = records[name]
        _fill_special(raw, kind, records, out)
        yield _ROW_OF[kind], out


def _fill_special(raw: Raw, kind: int, records: Array, out: Array) -> None:
    """What a row holds in other words than the record."""
    if kind == _KIND_KERNEL:
        out["name"] = records["pointer"]
        out["shared"] = records["static"] + records["dynamic"]
    elif kind in (_KIND_RUNTIME, _KIND_DRIVER):
        table = RUNTIME if kind == _KIND_RUNTIME else DRIVER
        ids = {
            cbid: raw.add_name(table.get(cbid, f"{'cuda' if table is RUNTIME else 'cu'}#{cbid}"))
            for cbid in np.unique(records["cbid"]).tolist()
        }
        out["name"] = _numbers(records["cbid"], ids)
    elif kind == _KIND_OVERHEAD:
        out["thread"][records["object"] != _THREAD_OBJECT] = 0
