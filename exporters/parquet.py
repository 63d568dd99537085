"""Parquet tables: a folder with the summary's lists and, for every input, the trace's tables.

`trace/INPUT` is a saved timeline (`rca_llm.saved`). Unknown is null; times are int64 ns UTC.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rca_llm.exporters import flat

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ""


def write(report: Report, target: Path) -> None:
    """Write the folder: `summary/NAME.parquet` and `trace/INPUT/TABLE.parquet`."""
    from rca_llm import columns, saved

    folder = target / "summary"
    folder.mkdir(parents=True)
    for name, names, rows in flat.tables(report.summary):
        found = {column: _column([row.get(column) for row in rows]) for column in names}
        columns.write(folder / f"{name}.parquet", found)
    for number, timeline in enumerate(report.trace.timelines):
        folder = target / "trace" / f"{number:05}"
        folder.mkdir(parents=True)
        saved.save(timeline, folder)


def _column(values: list[Any]) -> Any:
    """A column of the one type that holds all its values; texts where there is none."""
    from rca_llm import columns

    unknown = np.array([value is None for value in values], np.bool_)
    types: set[type] = {type(value) for value in values if value is not None}
    if types == {bool}:
        return columns.numbers(np.array([bool(value) for value in values]), unknown)
    if types == {int}:
        return columns.numbers(np.array([value or 0 for value in values], np.int64), unknown)
    if types and types <= {int, float}:
        return columns.numbers(np.array([value or 0 for value in values], np.float64), unknown)
    texts = [None if value is None else str(value) for value in values]
    vocabulary = list(dict.fromkeys(text for text in texts if text is not None))
    index = {text: code for code, text in enumerate(vocabulary)}
    codes = [-1 if text is None else index[text] for text in texts]
    return columns.texts(vocabulary, np.array(codes, np.int32))
