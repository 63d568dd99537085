"""A saved timeline is the same after loading, down to what is unknown."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm import saved
from rca_llm.table import UNKNOWN, Array, Kind, Table
from rca_llm.trace import TABLES, Device, Finding, Header, Input, Timeline

_TEXTS = ["a", "b 'quoted'", "ünïcode", "", "\0", "kernel<float, 4>(x)"]
_VALUES: dict[Kind, st.SearchStrategy[int] | st.SearchStrategy[float]] = {
    "time": st.one_of(st.just(UNKNOWN), st.integers(-(2**62), 2**63 - 1)),
    "int": st.one_of(st.just(UNKNOWN), st.integers(-(2**62), 2**63 - 1)),
    "small": st.integers(-1, 2**31 - 1),
    "text": st.integers(-1, len(_TEXTS) - 1),
    "float": st.floats(allow_nan=True),
}


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """A timeline with some columns of some tables."""
    timeline = Timeline(
        Input("/run", "run", "rca-llm", "1", draw(st.one_of(st.none(), st.integers(0, 9))), 5),
        Header(utc=False, anchors=[(1, 2), (3, 4)], host="h", extra={"gaps": [[1, 2]]}),
        devices=[Device(0, "H200", 7, {"sms": 132})],
        findings=[Finding("truncated", 2, "x", "y")],
    )
    timeline.strings.codes(_TEXTS)
    for name in draw(st.sets(st.sampled_from(sorted(TABLES)), max_size=4)):
        schema, length = TABLES[name], draw(st.integers(0, 6))
        wanted = draw(st.sets(st.sampled_from(sorted(schema)), min_size=1))
        columns = {
            column: draw(st.lists(_VALUES[schema[column]], min_size=length, max_size=length))
            for column in wanted
        }
        timeline.tables[name] = Table(schema, columns)
    return timeline


def _plain(timeline: Timeline, values: Array, kind: Kind) -> list[object]:
    if kind == "text":
        return [timeline.text(code) for code in values.tolist()]
    if kind == "float":
        return [None if np.isnan(value) else value for value in values.tolist()]
    return list(values.tolist())


@settings(max_examples=60, deadline=None)
@given(timelines())
def test_what_is_saved_is_what_is_loaded(timeline: Timeline) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saved.save(timeline, Path(folder))
        assert saved.is_saved(Path(folder))
        loaded = saved.load(Path(folder))
    assert loaded.input == timeline.input
    assert loaded.header == timeline.header
    assert (loaded.devices, loaded.findings) == (timeline.devices, timeline.findings)
    for name, schema in TABLES.items():
        assert len(loaded[name]) == len(timeline[name])
        for column, kind in schema.items():
            before = _plain(timeline, timeline[name][column], kind)
            assert _plain(loaded, loaded[name][column], kind) == before, (name, column)


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    assert not saved.is_saved(tmp_path)
    (tmp_path / saved.REST).write_text('{"schema": "else"}')
    with pytest.raises(ValueError, match="expected schema"):
        saved.load(tmp_path)
