"""Saves a timeline as Parquet tables in a folder, and loads it again.

One file a table that has rows, named after it, with only the columns that are known, and
`timeline.json` with what is not columnar: input, header, devices, findings. Unknown is null.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from arro3.core import Array as Column

from rca_llm import columns
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Kind, Strings, Table
from rca_llm.trace import TABLES, Device, Finding, Header, Input, Timeline

SCHEMA = "rca-llm/tables/1"
REST = "timeline.json"

_RISING = ("time",)
_RISING_NAMES = ("correlation",)
T = TypeVar("T")


def save(
    timeline: Timeline, folder: Path, progress: Callable[[str], None] = lambda _: None
) -> None:
    """Write a timeline into an existing, empty folder; `progress` hears of each table."""
    for name, schema in TABLES.items():
        table = timeline[name]
        progress(name)
        if len(table):
            known = {
                column: _column(table[column], kind, timeline.strings)
                for column, kind in schema.items()
                if column in table
            }
            rising = [c for c in known if schema[c] in _RISING or c in _RISING_NAMES]
            columns.write(folder / f"{name}.parquet", known, rising)
    _write_rest(timeline, folder / REST)


def _column(values: Array, kind: Kind, strings: Strings) -> Column:
    if kind == "text":
        used, codes = np.unique(values, return_inverse=True)
        first = int(np.searchsorted(used, 0))  # codes below 0 are no text
        vocabulary = [strings[code] for code in used[first:].tolist()]
        return columns.texts(vocabulary, np.maximum(codes - first, NO_TEXT).astype(np.int32))
    if kind == "float":
        return columns.numbers(values, np.isnan(values))
    unknown = UNKNOWN if kind in ("time", "int") else -1
    return columns.numbers(values, values == unknown)


def _write_rest(timeline: Timeline, path: Path) -> None:
    content = {
        "schema": SCHEMA,
        "input": dataclasses.asdict(timeline.input),
        "header": dataclasses.asdict(timeline.header),
        "devices": [dataclasses.asdict(device) for device in timeline.devices],
        "findings": [dataclasses.asdict(finding) for finding in timeline.findings],
    }
    path.write_text(json.dumps(content) + "\n", "utf-8")


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a saved timeline."""
    return (folder / REST).is_file()


def load(folder: Path) -> Timeline:
    """The timeline in a folder; `OSError` or `ValueError` where it is damaged."""
    rest: dict[str, Any] = json.loads((folder / REST).read_bytes())
    if rest.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, found {rest.get('schema')!r}")
    header = _made(Header, rest["header"])
    header.anchors = [(int(first), int(second)) for first, second in header.anchors]
    timeline = Timeline(_made(Input, rest["input"]), header)
    timeline.devices = [_made(Device, device) for device in rest["devices"]]
    timeline.findings = [_made(Finding, finding) for finding in rest["findings"]]
    for name in TABLES:
        path = folder / f"{name}.parquet"
        if path.exists():
            timeline.tables[name] = _table(path, name, timeline.strings)
    return timeline


def _made(kind: type[T], content: dict[str, Any]) -> T:
    """A dataclass from its saved fields; those that this version does not know are left out."""
    names = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is one
    return kind(**{name: value for name, value in content.items() if name in names})


def _table(path: Path, name: str, strings: Strings) -> Table:
    schema = TABLES[name]
    stored = {column: found for column, found in columns.read(path).items() if column in schema}
    return Table(schema, {c: _values(found, schema[c], strings) for c, found in stored.items()})


def _values(column: Column, kind: Kind, strings: Strings) -> Array:
    if kind == "text":
        vocabulary, codes = columns.to_texts(column)
        translation = np.append(strings.codes(vocabulary), np.int32(NO_TEXT))
        return translation[codes]
    if kind == "float":
        return columns.to_numbers(column, np.nan)
    return columns.to_numbers(column, UNKNOWN if kind in ("time", "int") else -1)
