"""Segment files of a run directory as NumPy cells; `docs/format.md` says what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rca_llm.probes import format as layout
from rca_llm.table import NEVER, NO_TEXT, UNKNOWN, Array, Ints, Mask, Strings

Codes = NDArray[np.int32]

Fact = tuple[str, int, str | None]
"""What an INFO cell says: key, number and text."""

CELL = np.dtype(list(layout.CELL_FIELDS))
_MOST = {
    "tid": 2**63 - 1,
    "process_start": 2**63 - 1,
    "dropped": 2**63 - 1,
    "stop_errno": 2**31 - 1,
}
"""The largest values of header fields that are wider than what they are used for."""
MOST_LOST_NAMES = 65_536
"""Ids that may have been given out and not written, where there was no room."""
_LATEST_NS = 2**62
"""A time beyond 146 years after the start of the machine comes from damage."""
_PAYLOADS = (layout.PENDING, layout.NAME, layout.BUFFER)


@dataclass(frozen=True)
class Payload:
    """One whole payload: its cell and its bytes."""

    cell: np.void
    data: memoryview


@dataclass
class Segment:
    """One segment file: its header, its cells and the names in it.

    `cells` are all cells in file order, `kinds` their types: 0 for what is no cell (torn records,
    unused room, payloads).
    """

    name: str
    header: dict[str, Any]
    cells: Array
    kinds: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    names: dict[int, str] = field(default_factory=dict[int, str])
    buffers: list[Payload] = field(default_factory=list[Payload])
    damaged: int = 0
    """Cells that no recorder writes, and payloads that run past the end of the file."""
    cut: str | None = None
    """Where the file ends too early and what was expected, None where it is not known to."""

    @property
    def pid(self) -> int:
        """The process that wrote it."""
        return int(self.header["pid"])

    def of(self, kind: int) -> Ints:
        """The places of all cells of one type, in order."""
        return np.flatnonzero(self.kinds == kind)

    def text(self, field_name: str) -> str:
        """A string of the header."""
        return bytes(self.header[field_name]).split(b"\0")[0].decode("utf-8", "replace")

    def codes(self, strings: Strings) -> Codes:
        """Text codes by NAME id; 0 and unknown ids have none. Look up with `coded`."""
        codes = np.full(max(self.names, default=0) + 2, NO_TEXT, np.int32)
        for number, text in self.names.items():
            codes[number] = strings.code(text)
        return codes

    def followers(self, places: Ints, kind: int, distance: int = 1) -> tuple[Ints, Mask]:
        """The cells `distance` behind others, and whether those are of type `kind`."""
        behind = np.minimum(places + distance, max(len(self.cells) - 1, 0))
        return behind, (self.kinds[behind] == kind) & (behind == places + distance)

    def threads(self, places: Ints) -> Ints:
        """The thread that wrote each cell: the header's until a THREAD cell names another."""
        changes = self.of(layout.THREAD)
        owners = np.append(self.header["tid"], self.cells["b"][changes]).astype(np.int64)
        return owners[np.searchsorted(changes, places)]

    def numbers_behind(self, place: int) -> Iterator[int]:
        """The places of the NUMBER cells that follow another cell."""
        place += 1
        while place < len(self.kinds) and self.kinds[place] == layout.NUMBER:
            yield place
            place += 1

    def facts(self, prefix: str) -> Iterator[Fact]:
        """The INFO cells about the segment's own process whose key has a prefix."""
        for place in self.of(layout.INFO).tolist():
            cell = self.cells[place]
            key = self.names.get(int(cell["c"]), "")
            if key.startswith(prefix) and not cell["e"]:
                yield key, int(cell["b"]), self.names.get(int(cell["d"]))


def pauses(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    """When a whole run was paused, as its launcher says; the last may never have ended."""
    found: list[tuple[int, int]] = []
    for segment in segments:
        if segment.header["writer"] == layout.WRITER_LAUNCHER:
            rows = segment.cells[segment.of(layout.GAP)]
            found += [(int(row["a"]), int(row["b"]) or NEVER) for row in rows]
    return found


def device_gaps(segments: Iterable[Segment]) -> list[tuple[int, int, str]]:
    """When the device of a process was not recorded though nobody asked for that, and why."""
    found: list[tuple[int, int, str]] = []
    for segment in segments:
        if segment.header["writer"] == layout.WRITER_NATIVE:
            for row in segment.cells[segment.of(layout.GAP)]:
                why = segment.names.get(int(row["c"]), "")
                found.append((int(row["a"]), int(row["b"]) or NEVER, why))
    return [gap for gap in found if gap[2] != "paused"]


def or_unknown(values: Array, unknown: int) -> Ints:
    """The values with what a cell writes for an unknown one as `UNKNOWN`."""
    return np.where(values == unknown, UNKNOWN, values)


def coded(codes: Codes, ids: Array) -> Codes:
    """`codes` by id; ids beyond it have no text."""
    return codes[np.minimum(ids, len(codes) - 1)]


def packed_rows(
    payload: bytes | memoryview,
    row_bytes: int,
    dtype: np.dtype[np.void] | None,
    least: int | None = None,
) -> Array | None:
    """The rows of a BUFFER cell's payload; None for an unknown kind, or rows cut short.

    What a newer collector appends to its rows is passed over; what rows of `least` bytes, those of
    an older one, lack is 0.
    """
    if dtype is None or row_bytes < (least or dtype.itemsize):
        return None
    count = len(payload) // row_bytes
    wide = np.frombuffer(payload, np.uint8, count * row_bytes).reshape(count, row_bytes)
    rows = np.zeros(count, dtype)
    common = min(row_bytes, dtype.itemsize)
    rows.view(np.uint8).reshape(count, dtype.itemsize)[:, :common] = wide[:, :common]
    return rows


def parse(name: str, data: bytes | bytearray | memoryview) -> Segment | None:
    """The segment in a file's content; None where not even its header is whole."""
    view = memoryview(data)
    if len(view) < layout.HEADER_BYTES or bytes(view[: len(layout.MAGIC)]) != layout.MAGIC:
        return None
    values = layout.HEADER.unpack_from(view, len(layout.MAGIC))
    header = dict(zip(layout.HEADER_FIELDS, values, strict=True))
    for field_name, most in _MOST.items():  # what lies above comes from damage
        header[field_name] &= most
    if header["cell_bytes"] != layout.CELL_BYTES or header["header_bytes"] < layout.HEADER_BYTES:
        return None
    body = view[header["header_bytes"] :]
    cells = np.frombuffer(body, CELL, len(body) // layout.CELL_BYTES)
    segment = _classified(name, header, cells)
    segment.cut = _cut(view)
    _read_payloads(segment, body)
    _apply_ends(segment)
    _drop_impossible(segment)
    return segment


def _drop_impossible(segment: Segment) -> None:
    """Leave out cells whose times no clock gives: sums of such times overflow."""
    begins, ends = _of_types(segment, layout.TIMED), _of_types(segment, layout.ENDED)
    wrong = (begins & _impossible(segment.cells["a"])) | (ends & _impossible(segment.cells["b"]))
    segment.kinds[wrong] = 0
    segment.damaged += int(wrong.sum())


def _impossible(times: Array) -> Mask:
    return (times > _LATEST_NS) | (times < -_LATEST_NS)


def _of_types(segment: Segment, types: Iterable[int]) -> Mask:
    """Which cells are of one of some types."""
    wanted = np.zeros(256, bool)
    wanted[list(types)] = True
    return wanted[segment.kinds]


def _cut(view: memoryview) -> str | None:
    """Whether the file has lost its end: a torn last record is normal, a wrong length is not.

    Recorders allocate whole blocks, and a recording that was finished says its length.
    """
    length = int.from_bytes(view[layout.LENGTH_OFFSET : layout.LENGTH_OFFSET + 8], "little")
    if len(view) < length:
        return f"byte {len(view)}: expected {length} bytes"
    if not length and len(view) % layout.FIRST_BLOCK_BYTES:
        return f"byte {len(view)}: expected whole blocks of {layout.FIRST_BLOCK_BYTES} bytes"
    return None


def _classified(name: str, header: dict[str, Any], cells: Array) -> Segment:
    tags = cells["tag"]
    ours = (tags & layout.TAG_MASK) == layout.TAG
    kinds = np.where(ours, tags & 0xFF, 0).astype(np.uint8)
    flags = (tags >> layout.FLAG_SHIFT).astype(np.uint8)
    return Segment(name, header, cells, kinds, flags)


def _read_payloads(segment: Segment, body: memoryview) -> None:
    """Take payloads out of the cells: their bytes may look like any."""
    inside = np.zeros(len(segment.cells), bool)
    for place, cells in _payload_places(segment):
        inside[place + 1 : place + 1 + cells] = True
        cell = segment.cells[place]
        begin = (place + 1) * layout.CELL_BYTES
        data = body[begin : begin + int(cell["b"])]
        kind = segment.kinds[place]
        if kind == layout.NAME and int(cell["c"]) > len(segment.cells) + MOST_LOST_NAMES:
            segment.damaged += 1  # ids count up from 1, and every name takes cells
        elif kind == layout.NAME:
            segment.names[int(cell["c"])] = bytes(data).decode("utf-8", "replace")
        elif kind == layout.BUFFER:
            segment.buffers.append(Payload(cell, data))
    segment.kinds[inside] = 0
    unknown = (segment.cells["tag"] != 0) & (segment.kinds == 0) & ~inside
    segment.damaged += int(unknown.sum())


def _payload_places(segment: Segment) -> Iterator[tuple[int, int]]:
    """Where payload cells stand and how many cells follow each, those inside others left out."""
    sizes = segment.cells["b"]
    free = 0
    for place in np.flatnonzero(np.isin(segment.kinds, _PAYLOADS)).tolist():
        if place < free:
            continue
        size = int(sizes[place])
        cells = layout.payload_cells(max(size, 0))
        if size < 0 or place + 1 + cells > len(segment.cells):
            segment.damaged += 1
            segment.kinds[place] = 0
            continue
        free = place + 1 + cells
        yield place, cells


def _apply_ends(segment: Segment) -> None:
    """Store the ends that END cells bring to other cells of the same segment."""
    ends = segment.of(layout.END)
    ends = ends[segment.cells["d"][ends] == 0]
    if not len(ends):
        return
    first = segment.header["header_bytes"]
    places = (segment.cells["b"][ends] - first) // layout.CELL_BYTES
    inside = (places >= 0) & (places < len(segment.cells))
    segment.cells = segment.cells.copy()
    segment.cells["b"][places[inside]] = segment.cells["a"][ends[inside]]
    segment.flags[places[inside]] |= segment.flags[ends[inside]] & layout.FLAG_ERROR
