"""A plain reader of segment files for tests: one cell after another, nothing clever."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers import cupti_facts, cupti_rows, cupti_tables
from rca_llm.table import Array
from rca_llm.trace import Input, Timeline


@dataclass(frozen=True)
class Cell:
    """One cell: its place in the file, its type and flags, its fields, its payload."""

    at: int
    kind: int
    flags: int
    a: int
    b: int
    c: int
    d: int
    e: int
    payload: bytes = b""


@dataclass
class Segment:
    """A segment file as a test wants it."""

    header: dict[str, int | bytes]
    cells: list[Cell] = field(default_factory=list[Cell])

    @property
    def names(self) -> dict[int, str]:
        """Texts by NAME id."""
        return {cell.c: cell.payload.decode() for cell in self.of(layout.NAME)}

    def of(self, kind: int) -> list[Cell]:
        """The cells of a type."""
        return [cell for cell in self.cells if cell.kind == kind]

    def number(self, name: str) -> int:
        """A numeric header field."""
        value = self.header[name]
        assert isinstance(value, int)
        return value

    def infos(self) -> list[tuple[str, int, str | None]]:
        """INFO cells as key, number, text."""
        names = self.names
        return [(names[cell.c], cell.b, names.get(cell.d)) for cell in self.of(layout.INFO)]


def read_segment(path: Path) -> Segment:
    """The whole cells of a file, in their order."""
    data = path.read_bytes()
    assert data[:8] == layout.MAGIC
    values = layout.HEADER.unpack_from(data, 8)
    segment = Segment(dict(zip(layout.HEADER_FIELDS, values, strict=True)))
    at = layout.HEADER_BYTES
    while at + layout.CELL_BYTES <= len(data):
        a, b, c, d, e, tag = layout.CELL.unpack_from(data, at)
        kind, flags = tag & 0xFF, tag >> layout.FLAG_SHIFT & 0xFF
        after = at + layout.CELL_BYTES
        if tag & layout.TAG_MASK == layout.TAG and kind:
            size = b if kind in (layout.NAME, layout.BUFFER, layout.PENDING) else 0
            segment.cells.append(Cell(at, kind, flags, a, b, c, d, e, data[after : after + size]))
            after += layout.payload_cells(size) * layout.CELL_BYTES
        at = after
    return segment


def read_run(run: Path) -> list[Segment]:
    """All segments of a run, by file name."""
    return [read_segment(path) for path in sorted((run / "segments").glob("*.seg"))]


def collector_segments(run: Path) -> list[Segment]:
    """Those that the GPU collector wrote, in the order in which it wrote them."""
    segments = [
        s for s in read_run(run) if bytes(s.header["thread_name"]).startswith(b"rca-llm-gpu")
    ]
    return sorted(segments, key=lambda segment: segment.number("sequence"))


def timeline_of(run: Path) -> Timeline:
    """The collector's records of a run as the tables that readers make of them."""
    timeline = Timeline(Input(str(run), "run"))
    rows = cupti_rows.Rows()
    pid = 0
    for segment in collector_segments(run):
        pid = segment.number("pid")
        codes = cupti_rows.codes_of(timeline, segment.names)
        for cell in segment.of(layout.BUFFER):
            rows.add(cell.c, cell.d, cell.payload, codes)
        cupti_facts.add_facts(timeline, segment.infos(), pid)
    cupti_tables.add_rows(timeline, rows, pid)
    return timeline


def texts(timeline: Timeline, table: str, column: str) -> list[str | None]:
    """A text column as texts."""
    return [timeline.text(code) for code in timeline[table][column].tolist()]


def ends_after_starts(table: dict[str, Array]) -> bool:
    """Whether no record ends before it starts."""
    return bool(np.all(table["end"] >= table["start"]))
