"""The summary's lists as flat tables: one value a cell, for Parquet and CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rca_llm.exporters.verdict import listed

Flat = dict[str, "str | int | float | bool | None"]

TABLES = (
    "inputs",
    "devices",
    "requests",
    "windows",
    "marks",
    "steps",
    "ranges",
    "api",
    "tracks",
    "threads",
    "short_calls",
    "load",
    "idle",
    "transfers",
    "kernels",
    "copies",
    "collectives",
    "ranks",
    "groups",
    "hints",
    "quality",
)
"""The summary's lists, each a table."""


def tables(summary: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[Flat]]]:
    """Name, columns and rows of every list that has rows, and of the totals as `overview`.

    Objects within a row become columns such as `shares.compute`, lists become JSON text.
    """
    rows = [_overview(summary)]
    yield "overview", list(rows[0]), rows
    for name in TABLES:
        rows = [flat(row) for row in summary.get(name) or ()]
        if rows:
            columns = dict.fromkeys(column for row in rows for column in row)
            yield name, list(columns), rows


def _overview(summary: Mapping[str, Any]) -> Flat:
    """The figures of the whole trace in one row."""
    names = ("window", "totals", "shares", "hidden", "parts", "latency", "class_stats")
    return flat({"schema": summary["schema"]} | {name: summary[name] for name in names})


def flat(row: Mapping[str, Any], prefix: str = "") -> Flat:
    """An object with the objects inside it spread out."""
    found: Flat = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= flat(_object(value), f"{name}.")
        elif isinstance(value, (list, tuple)):
            found[name] = json.dumps(listed(value), ensure_ascii=False)
        else:
            found[name] = value
    return found


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {str(key): inner for key, inner in value.items()}
    return found
