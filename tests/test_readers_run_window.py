"""The last stretch of a growing run: the same as of the whole, at a cost that does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from rca_llm.monitor import Monitor, last
from rca_llm.probes import format as layout
from rca_llm.readers import load
from rca_llm.readers.run_window import Window
from rca_llm.trace import Trace

S, MS = 1_000_000_000, 1_000_000
T0 = 1000 * S
WINDOW = 5 * S
EVENTS = {name: code for code, name in enumerate(layout.REQUEST_EVENTS)}


class Growing:
    """A run of one thread: requests one after another, each a span, a step and some samples."""

    def __init__(self, path: Path) -> None:
        self.path, self.cells, self.made = path, list[bytes](), 0
        (path / layout.SEGMENTS_NAME).mkdir(parents=True)
        for text in ("forward", "compute", "queue.waiting"):
            self.name(text)
        self.cell(layout.ANCHOR, T0, T0 + 10**18, 100)

    def cell(self, kind: int, *fields: int, flags: int = 0, real: float | None = None) -> None:
        """One cell; what is not given is 0."""
        a, b, c, d, e = (*fields, 0, 0, 0, 0, 0)[:5]
        if real is not None:
            self.cells.append(layout.CELL_FLOAT.pack(a, real, c, d, e, layout.tag(kind, flags)))
        else:
            self.cells.append(layout.CELL.pack(a, b, c, d, e, layout.tag(kind, flags)))

    def name(self, text: str) -> int:
        """A new name, with its payload."""
        self.made += 1
        data = text.encode()
        self.cell(layout.NAME, 0, len(data), self.made)
        self.cells.append(data.ljust(layout.payload_cells(len(data)) * layout.CELL_BYTES, b"\0"))
        return self.made

    def serve(self, begin: int, end: int) -> None:
        """Ten requests a second from one second to another, and the file as it then is."""
        for t in range(T0 + begin * S, T0 + end * S, S // 10):
            request = self.name(f"r{t}")
            self.cell(layout.REQUEST, t, 0, EVENTS["arrival"], request)
            self.cell(layout.REQUEST, t + MS, 0, EVENTS["scheduled"], request)
            place = layout.HEADER_BYTES + len(b"".join(self.cells))
            self.cell(layout.SPAN, t + MS, 0, request, 2, 1)
            self.cell(layout.STEP, t + MS, t + 50 * MS, 1, 1, flags=layout.FLAG_MORE)
            self.cell(layout.MORE, t // MS, -1)
            self.cell(layout.STEP_REQUEST, 7, 1, 1, request)
            self.cell(layout.SAMPLE, t, 0, 3, layout.ALL, real=2.5)
            self.cell(layout.END, t + 50 * MS, place)
            self.cell(layout.REQUEST, t + 50 * MS, 0, EVENTS["first_token"], request)
            self.cell(layout.REQUEST, t + 60 * MS, 0, EVENTS["finished"], request)
        self.write()

    def write(self) -> None:
        """The segment file, in whole blocks."""
        values = [0] * 22 + [b"host", b"thread", b"process"]
        values[:7] = [layout.VERSION, layout.HEADER_BYTES, layout.CELL_BYTES, 1, 7, 1, 7]
        header = layout.MAGIC + layout.HEADER.pack(*values)
        data = header.ljust(layout.HEADER_BYTES, b"\0") + b"".join(self.cells)
        data += bytes(-len(data) % layout.FIRST_BLOCK_BYTES)
        (self.path / layout.SEGMENTS_NAME / ("7-0-7-0" + layout.SEGMENT_SUFFIX)).write_bytes(data)


def rows(trace: Trace) -> dict[str, list[tuple[object, ...]]]:
    """The tables that hold rows, texts as texts, whatever codes these have."""
    from rca_llm.exporters.records import records

    [line] = trace.timelines
    return {
        name: [tuple(sorted(row.items())) for row in records(line, name)]
        for name in line.tables
        if len(line[name]) and name != "batch"
    }


def test_it_holds_what_the_last_stretch_of_the_whole_holds(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    watched = Monitor(run.path, WINDOW)
    for second in range(0, 40, 2):
        run.serve(second, second + 2)
        seen, whole = watched.stretch(), last(load(run.path), WINDOW)
        assert seen.attribute().summary["parts"] == whole.attribute().summary["parts"]
        assert rows(seen) == rows(whole)
        assert len(seen.timelines[0]["batch"]) == len(whole.timelines[0]["batch"]) > 0


def test_a_look_costs_the_same_in_a_run_ten_times_as_long(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    watched = Monitor(run.path, WINDOW)
    read: list[int] = []
    for second in range(0, 400, 2):
        run.serve(second, second + 2)
        watched.stretch()
        read.append(watched.records.cells)
    whole = Window(run.path)
    whole.read()
    assert max(read[180:]) == pytest.approx(max(read[10:20]), rel=0.05)
    assert max(read) * 10 < whole.cells


def test_a_record_that_is_being_written_is_not_lost(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    watched = Monitor(run.path, WINDOW)
    run.serve(0, 20)
    pending = len(run.cells)
    run.cell(layout.PENDING, 0, 32)
    run.cells.append(bytes(layout.CELL_BYTES))
    run.serve(20, 30)
    watched.stretch()
    data = b"late".ljust(layout.CELL_BYTES, b"\0")
    run.cells[pending] = layout.CELL.pack(0, 4, run.made + 1, 0, 0, layout.tag(layout.NAME))
    run.cells[pending + 1] = data
    run.cell(layout.MARK, T0 + 30 * S, 0, 0, 0, run.made + 1)
    run.made += 1
    run.serve(30, 31)
    [line] = watched.stretch().timelines
    assert "late" in [line.text(code) for code in line["marks"]["name"].tolist()]
