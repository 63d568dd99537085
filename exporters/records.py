"""The rows of a trace's tables as plain records, for the outputs that write one record a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rca_llm.table import UNKNOWN, Array, Kind, Table
from rca_llm.trace import Timeline

Record = dict[str, Any]

BLOCK = 65_536
"""Rows that are turned into records at a time."""


def records(timeline: Timeline, name: str) -> Iterator[Record]:
    """The rows of a table, texts as texts; what is unknown is absent."""
    yield from rows_of(timeline, timeline[name])


def rows_of(timeline: Timeline, table: Table) -> Iterator[Record]:
    """The rows of one of a timeline's tables, or of a part of it."""
    for first in range(0, len(table), BLOCK):
        part = table.take(np.arange(first, min(first + BLOCK, len(table))))
        columns = columns_of(timeline, part)
        names = list(columns)
        for row in zip(*columns.values(), strict=True):
            yield {key: value for key, value in zip(names, row, strict=True) if value is not None}


def columns_of(timeline: Timeline, table: Table) -> dict[str, list[Any]]:
    """The known columns of a table as Python values, texts as texts, None for the unknown."""
    return {name: _values(timeline, table.schema[name], v) for name, v in table.known.items()}


def _values(timeline: Timeline, kind: Kind, column: Array) -> list[Any]:
    """A column as Python values, None for the unknown."""
    if kind == "text":
        texts = [*timeline.strings.texts, None]
        return [texts[code] for code in column.tolist()]
    if kind == "float":
        return [value if value == value else None for value in column.tolist()]
    unknown = UNKNOWN if kind in ("time", "int") else -1
    return [None if value == unknown else value for value in column.tolist()]
