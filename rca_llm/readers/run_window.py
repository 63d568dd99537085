"""The last stretch of a run that is being recorded, at a cost that does not grow with the run.

Records are only ever appended to a segment, so a window remembers up to where each file is older
than it, and reads on from there. Of what lies before, it keeps what later records rest on: names,
facts, gaps, clock pairs, the thread at work, the first device buffers. What began before the window
is not in it, however long it lasts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rca_llm import __version__
from rca_llm.errors import UnreadableInput
from rca_llm.probes import format as layout
from rca_llm.readers import run
from rca_llm.readers.segments import CELL, Segment, parse
from rca_llm.table import Array, Ints
from rca_llm.trace import Input, Timeline, Trace

_TIMED = (
    layout.SPAN,
    layout.MARK,
    layout.REQUEST,
    layout.STEP,
    layout.STATE,
    layout.SCHED,
    layout.SAMPLE,
    layout.CALL,
    layout.SUM,
    layout.BUFFER,
)
"""Cells that begin a record and whose `a` says when it began."""

MOST_FACTS = 4096
"""INFO cells of a file that are kept, the earliest; recorders write each fact once."""

_CLOCKS = 64
"""ANCHOR cells of a file that are kept, the latest."""

_FIRST_BUFFERS = 4
"""Device buffers of a file that are kept: the first ones describe the devices."""


@dataclass
class _Kept:
    """What one segment file still needs of the part that is older than the window."""

    base: int = layout.HEADER_BYTES
    """Where in the file the window begins."""
    names: dict[int, bytes] = field(default_factory=dict[int, bytes])
    pointers: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    """Names that other records of the process know by a pointer: those of kernels."""
    facts: dict[tuple[int, ...], bytes] = field(default_factory=dict[tuple[int, ...], bytes])
    gaps: list[int] = field(default_factory=list[int])
    """Where the GAP cells stand: the end of one is written later."""
    clocks: list[bytes] = field(default_factory=list[bytes])
    buffers: list[bytes] = field(default_factory=list[bytes])
    thread: bytes = b""

    def context(self, used: set[int], gaps: list[bytes]) -> bytes:
        """The kept cells, of the names those alone that are used."""
        parts = [self.names[id] for id in used if id in self.names]
        parts += [*self.pointers.values(), *self.facts.values(), *gaps, *self.clocks]
        return b"".join([*parts, *self.buffers, self.thread])


class Window:
    """The segments of a run from which the records of its last stretch are read again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, _Kept] = {}
        self.cells = 0
        """Cells that the last look read."""

    def read(self) -> Trace:
        """What was recorded since the window's beginning, or a little before."""
        timeline = Timeline(Input(str(self._path), "run", "rca-llm", __version__))
        self.cells = 0
        self._seen: list[tuple[_Kept, Segment, int]] = []
        for file in sorted((self._path / layout.SEGMENTS_NAME).glob("*" + layout.SEGMENT_SUFFIX)):
            segment = self._segment(file)
            if segment is not None:
                self.cells += len(segment.cells)
        segments = [segment for _, segment, _ in self._seen]
        if not segments:
            raise UnreadableInput(f"{self._path}: byte 0: expected segments with records")
        return Trace([run.assembled(timeline, str(self._path), segments)])

    def forget(self, before: int) -> None:
        """Let go of what the last look read before an instant, ns of the run's clock."""
        for kept, segment, context in self._seen:
            _advance(kept, segment, context, before)

    def _segment(self, file: Path) -> Segment | None:
        """The cells of a file from the window's beginning, behind those it rests on."""
        kept = self._kept.setdefault(file.name, _Kept())
        with file.open("rb") as stream:
            header = bytearray(stream.read(layout.HEADER_BYTES))
            gaps = [_at(stream.fileno(), place) for place in kept.gaps]
            stream.seek(kept.base)
            tail = bytearray(stream.read())
        del tail[len(tail) - len(tail) % layout.CELL_BYTES :]
        header[layout.LENGTH_OFFSET : layout.LENGTH_OFFSET + 8] = bytes(8)
        whole = np.frombuffer(tail, CELL)
        context = kept.context(_ids(whole, kept), gaps) if kept.names or kept.facts else b""
        _patch_ends(tail, kept.base, layout.HEADER_BYTES + len(context))
        data = bytes(header) + context + bytes(tail)
        segment = parse(file.name, data + bytes(-len(data) % layout.FIRST_BLOCK_BYTES))
        if segment is not None:
            self._seen.append((kept, segment, len(context) // layout.CELL_BYTES))
        return segment


def _at(file: int, place: int) -> bytes:
    return os.pread(file, layout.CELL_BYTES, place)


def _ids(cells: Array, kept: _Kept) -> set[int]:
    """The name ids that cells may use; some of these are other numbers."""
    facts = np.frombuffer(b"".join([*kept.facts.values(), kept.thread]), CELL)
    columns = [part[name] for part in (cells, facts) for name in ("c", "d", "e")]
    aliases = cells["b"][(cells["tag"] & 0xFF) == layout.REQUEST]
    return set(np.unique(np.concatenate([*columns, aliases])).tolist())


def _patch_ends(tail: bytearray, base: int, new_base: int) -> None:
    """Let END cells point to where their cells stand now; 0, which is none, for those left out."""
    cells = np.frombuffer(tail, CELL)
    ends = np.flatnonzero((cells["tag"] & 0xFFFF00FF) == layout.TAG | layout.END)
    places = cells["b"][ends]
    cells["b"][ends] = np.where(places >= base, places - base + new_base, 0)


def _advance(kept: _Kept, segment: Segment, context: int, before: int) -> None:
    """Move a file's beginning to the first record that began at an instant or later."""
    cut = _cut(segment, context, before)
    for place in np.flatnonzero(segment.kinds[context:cut]).tolist():
        _keep(kept, segment, context + place, kept.base + place * layout.CELL_BYTES)
    kept.base += (cut - context) * layout.CELL_BYTES


def _cut(segment: Segment, context: int, before: int) -> int:
    """The cell up to which a file is older than an instant; at least `context`."""
    kinds, cells = segment.kinds, segment.cells
    heads = np.flatnonzero(np.isin(kinds, _TIMED))
    heads = heads[heads >= context]
    young = heads[cells["a"][heads] >= before]
    cut = int(young[0]) if len(young) else int(heads[-1]) if len(heads) else context
    pending = np.flatnonzero(kinds == layout.PENDING)
    cut = min(cut, *map(int, pending[pending >= context][:1]), len(kinds))
    return max(min(cut, *map(int, _batches(segment, cut)), len(kinds)), context)


def _batches(segment: Segment, cut: int) -> Ints:
    """The steps before a cell whose batch later ones have."""
    steps = segment.of(layout.STEP)
    steps = steps[steps >= cut]
    places = steps - segment.cells["e"][steps].astype(np.int64)
    return places[places < cut]


def _keep(kept: _Kept, segment: Segment, place: int, offset: int) -> None:
    """Remember a cell that falls out of the window, if others rest on it."""
    kind, cell = int(segment.kinds[place]), segment.cells[place]
    if kind == layout.NAME:
        text = _with_payload(segment, place)
        if cell["a"]:
            kept.pointers[int(cell["a"]), int(cell["c"])] = text
        else:
            kept.names[int(cell["c"])] = text
    elif kind == layout.INFO and len(kept.facts) < MOST_FACTS:
        kept.facts[tuple(int(cell[name]) for name in "bcde")] = cell.tobytes()
    elif kind == layout.GAP:
        kept.gaps.append(offset)
    elif kind == layout.ANCHOR:
        kept.clocks = [*kept.clocks, cell.tobytes()][-_CLOCKS:]
    elif kind == layout.THREAD:
        kept.thread = cell.tobytes()
    elif kind == layout.BUFFER and len(kept.buffers) < _FIRST_BUFFERS:
        kept.buffers.append(_with_payload(segment, place))


def _with_payload(segment: Segment, place: int) -> bytes:
    """A cell and those that hold its payload."""
    count = layout.payload_cells(int(segment.cells["b"][place]))
    return segment.cells[place : place + 1 + count].tobytes()
