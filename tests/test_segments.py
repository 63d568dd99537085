"""Segment files of any content are read up to what is whole, and never raise."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm import readers
from rca_llm.finish import trim
from rca_llm.probes import format as layout
from rca_llm.probes.recorder import Recorder, new_segment, put
from rca_llm.readers import run_steps
from rca_llm.readers.segments import CELL, Segment, parse

_ROOT = Path(__file__).resolve().parent.parent


def _header() -> bytes:
    values = [0] * 22 + [b"host", b"thread", b"process"]
    values[:3] = [layout.VERSION, layout.HEADER_BYTES, layout.CELL_BYTES]
    return (layout.MAGIC + layout.HEADER.pack(*values)).ljust(layout.HEADER_BYTES, b"\0")


def _cell(kind: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0) -> bytes:
    return layout.CELL.pack(a, b, c, d, e, layout.tag(kind))


def _parsed(*parts: bytes) -> Segment:
    segment = parse("x", _header() + b"".join(parts))
    assert segment is not None
    return segment


def test_layout_is_what_the_documentation_says() -> None:
    page = (_ROOT / "docs" / "format.md").read_text()
    for number, name in layout.TYPE_NAMES.items():
        assert f"| {number} | {name.upper()} |" in page
    offset = len(layout.MAGIC)
    letters = layout.HEADER.format.lstrip("<").rstrip("s0123456789")
    for letter, name in zip(letters, layout.HEADER_FIELDS, strict=False):
        kind = {"I": "u32", "Q": "u64", "q": "i64", "i": "i32"}.get(letter)
        if kind is not None:
            assert f"| {offset} | {kind} | {name} |" in page
            offset += struct.calcsize(f"<{letter}")
    for names in (
        layout.REQUEST_EVENTS,
        layout.STEP_MODES,
        layout.PHASES,
        layout.THREAD_STATES,
        layout.SUBJECTS,
    ):
        assert " ".join(names[:3]) in page
    assert CELL.itemsize == layout.CELL_BYTES == layout.CELL.size == layout.CELL_FLOAT.size


def test_torn_records_are_passed_over_silently() -> None:
    torn = bytearray(_cell(layout.MARK, 5))
    torn[28:] = bytes(4)
    segment = _parsed(_cell(layout.MARK, 1), bytes(torn), bytes(320), _cell(layout.MARK, 2))
    assert segment.cells["a"][segment.of(layout.MARK)].tolist() == [1, 2]
    assert segment.damaged == 0


def test_a_half_written_payload_is_never_taken_for_cells() -> None:
    pending = _cell(layout.PENDING, b=64) + _cell(layout.MARK, 9) + _cell(layout.MARK, 9)
    segment = _parsed(pending, _cell(layout.MARK, 1))
    assert segment.cells["a"][segment.of(layout.MARK)].tolist() == [1]


@pytest.mark.parametrize("time", [2**63 - 1, -(2**63), 2**62 + 1])
def test_times_that_no_clock_gives_are_damage(time: int) -> None:
    early, late = _cell(layout.MARK, time, e=1), _cell(layout.SPAN, 5, time, e=1)
    segment = _parsed(early, late, _cell(layout.SPAN, 1, 2), _cell(layout.MARK, 4))
    assert segment.damaged == 2
    assert [len(segment.of(kind)) for kind in (layout.MARK, layout.SPAN)] == [1, 1]


def test_payloads_that_look_like_cells_are_not() -> None:
    inner = _cell(layout.MARK, 9) + _cell(layout.NAME, b=10**6)
    segment = _parsed(_cell(layout.BUFFER, 3, 64, 7) + inner, _cell(layout.MARK, 1))
    assert [bytes(buffer.data) for buffer in segment.buffers] == [inner]
    assert segment.cells["a"][segment.of(layout.MARK)].tolist() == [1]
    assert segment.damaged == 0


def test_damage_is_counted() -> None:
    foreign = _cell(layout.MARK, 1)[:28] + b"junk"
    endless = _cell(layout.NAME, b=10**9, c=1)
    negative = _cell(layout.BUFFER, b=-5)
    segment = _parsed(foreign, endless, negative, _cell(layout.MARK, 2))
    assert segment.damaged == 3 + 2  # the two payload cells count as no cells as well
    assert segment.cells["a"][segment.of(layout.MARK)].tolist() == [2]


def test_end_cells_close_what_they_name() -> None:
    begun = _cell(layout.SPAN, 10, 0, 0, 0, 1)
    end = _cell(layout.END, 25, layout.HEADER_BYTES)
    foreign = _cell(layout.END, 30, layout.HEADER_BYTES, d=7)
    wild = _cell(layout.END, 30, 10**12)
    segment = _parsed(begun, end, foreign, wild)
    assert segment.cells["b"][segment.of(layout.SPAN)].tolist() == [25]


def test_a_file_without_a_whole_header_is_no_segment() -> None:
    assert parse("x", b"") is None
    assert parse("x", bytes(4096)) is None
    assert parse("x", _header()[:-1]) is None
    assert parse("x", layout.MAGIC + bytes(600)) is None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 40))
def test_any_bytes_are_read(noise: bytes, cut: int) -> None:
    tagged = b"".join(_cell(kind, 1, 40, 1, 1, 1) for kind in layout.TYPE_NAMES)
    data = _header() + noise + tagged + noise
    segment = parse("x", data[: len(data) - cut])
    assert segment is not None
    assert len(segment.kinds) == len(segment.cells) == len(segment.flags)
    for place in segment.of(layout.SPAN).tolist():
        segment.followers(np.array([place]), layout.MORE)


cells = st.tuples(
    st.sampled_from(sorted(set(layout.TYPE_NAMES) - {layout.PENDING, layout.NAME, layout.BUFFER})),
    *[st.integers(-(2**62), 2**62)] * 2,  # beyond lie times that no clock gives
    *[st.integers(0, 2**32 - 1)] * 3,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(cells, st.text(max_size=200)), max_size=40))
def test_what_is_recorded_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, ...] | str]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / layout.SEGMENTS_NAME).mkdir()
    recorder = Recorder(*new_segment(str(folder)))
    for record in records:
        if isinstance(record, str):
            recorder.name_id(record)
        else:
            room = recorder.reserve_always(1)
            assert room is not None
            put(*room, *record)
    [path] = (folder / layout.SEGMENTS_NAME).iterdir()
    segment = parse(path.name, path.read_bytes())
    assert segment is not None
    expected = [record for record in records if not isinstance(record, str)]
    places = np.flatnonzero((segment.kinds != 0) & (segment.kinds != layout.NAME))
    found = [
        (int(kind), *(int(cell[field]) for field in "abcde"))
        for kind, cell in zip(segment.kinds[places], segment.cells[places], strict=True)
    ]
    if not any(record[0] == layout.END for record in expected):
        assert found == expected
    texts = [record for record in records if isinstance(record, str)]
    clipped = [text.encode("utf-8", "replace").decode("utf-8", "replace") for text in texts]
    assert [segment.names[number] for number in sorted(segment.names)] == clipped


def _recorded(folder: Path, marks: int) -> Path:
    """A segment as a process leaves it behind, with so many marks."""
    (folder / layout.SEGMENTS_NAME).mkdir(parents=True)
    recorder = Recorder(*new_segment(str(folder)))
    for time in range(1, marks + 1):
        room = recorder.reserve_always(1)
        assert room is not None
        put(*room, layout.MARK, time)
    [path] = (folder / layout.SEGMENTS_NAME).iterdir()
    return path


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.97])
def test_a_file_that_lost_its_end_is_told_apart_from_a_torn_record(
    tmp_path: Path, kept: float
) -> None:
    data = _recorded(tmp_path / "run", 5000).read_bytes()
    whole, cut = parse("x", data), parse("x", data[: int(len(data) * kept) // 32 * 32])
    assert whole is not None
    assert cut is not None
    assert whole.cut is None
    assert cut.cut is not None
    assert 0 < len(cut.of(layout.MARK)) <= len(whole.of(layout.MARK)) == 5000


def test_a_finished_file_says_how_long_it_was(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "run", 5000)
    trim(path)
    data = path.read_bytes()
    assert len(data) == layout.HEADER_BYTES + 5000 * layout.CELL_BYTES
    whole, cut = parse("x", data), parse("x", data[:-32])
    assert whole is not None
    assert cut is not None
    assert whole.cut is None
    assert cut.cut == f"byte {len(data) - 32}: expected {len(data)} bytes"


def test_the_quality_of_a_run_names_a_file_that_lost_its_end(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "run", 5000)
    path.write_bytes(path.read_bytes()[:70_000])
    found = readers.read(tmp_path / "run").timelines[0].findings
    (finding,) = (one for one in found if one.where != "manifest.json")  # there is none
    assert (finding.code, finding.where) == ("truncated", path.name)
    assert "byte 70000" in finding.detail


def test_steps_that_share_one_large_batch_make_no_more_rows_than_a_run_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_steps, "MOST_ROWS", 100)
    size = 30
    own = _cell(layout.STEP, 1, 2, d=size) + _cell(layout.MORE)
    shared = (_cell(layout.STEP, 3 + i, 4 + i, e=size + 2 + i) for i in range(size))
    data = _header() + own + _cell(layout.STEP_REQUEST, 1) * size + b"".join(shared)
    (tmp_path / "run" / layout.SEGMENTS_NAME).mkdir(parents=True)
    data += bytes(-len(data) % layout.FIRST_BLOCK_BYTES)
    (tmp_path / "run" / layout.SEGMENTS_NAME / f"1{layout.SEGMENT_SUFFIX}").write_bytes(data)
    [timeline] = readers.read(tmp_path / "run").timelines
    assert len(timeline["batch"]) == 3 * size
    [finding] = (one for one in timeline.findings if one.where != "manifest.json")  # there is none
    assert (finding.code, finding.count) == ("truncated", size - 2)
