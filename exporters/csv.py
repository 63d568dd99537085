"""CSV tables: a folder with the summary's lists and, for every input, the trace's tables.

Texts that a spreadsheet would take for a formula get an apostrophe in front, so a name cannot run
one (OWASP, "CSV Injection"). Unknown is empty. Times are ns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rca_llm.exporters import flat
from rca_llm.exporters.records import records
from rca_llm.exporters.text import visible
from rca_llm.trace import TABLES

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
"""What begins a formula, or is dropped before one, in some spreadsheet."""


def write(report: Report, target: Path) -> None:
    """Write the folder: `summary/NAME.csv` and `trace/INPUT/TABLE.csv`."""
    folder = target / "summary"
    folder.mkdir(parents=True)
    for name, columns, rows in flat.tables(report.summary):
        _write(folder / f"{name}.csv", columns, rows)
    for number, timeline in enumerate(report.trace.timelines):
        folder = target / "trace" / f"{number:05}"
        folder.mkdir(parents=True)
        for name in TABLES:
            columns = list(timeline[name].known)
            if len(timeline[name]):
                _write(folder / f"{name}.csv", columns, records(timeline, name))


def _write(path: Path, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(map(cell, columns))
        writer.writerows([cell(row.get(column)) for column in columns] for row in rows)


def cell(value: object) -> object:
    """A value as a spreadsheet may have it: texts visible, and never a formula."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if value.lstrip(" ").startswith(FORMULA) else text
