"""What Kineto has no words for, as a block of a Chrome JSON file that our own reader takes back.

Requests, engine steps, thread states, samples and the names of things stand in it as columns of
integer nanoseconds, beside who recorded it and what is wrong with the data. Other tools pass over
a key that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rca_llm.exporters import events
from rca_llm.exporters.records import Record, columns_of
from rca_llm.trace import NUMBER_FORMATS, Timeline

if TYPE_CHECKING:
    from rca_llm.report import Report

KEY = "rcaLlm"
"""The block's key beside `traceEvents`."""

ARGS = "rca"
"""The key of an event's arguments under which ours stand, so that they are nobody else's."""

SCHEMA = "rca-llm/chrome/1"

EVENTS = ("gpu", "api", "ranges")
"""The tables whose rows are events of Kineto, and hence in no block."""

Place = Callable[[Record], Record]
"""The process and thread of a record under the ids that the file gives them."""


def block(report: Report, number: int, place: Place) -> Record:
    """The block of one input."""
    timeline, trace = report.trace.timelines[number], report.trace
    findings = [] if number else events.of_job(trace)
    tables = {name: _columns(timeline, name, place) for name in timeline.tables}
    return {
        "schema": SCHEMA,
        "header": events.header_of(timeline, findings),
        "tables": {n: columns for n, columns in tables.items() if columns and n not in EVENTS},
    }


def _columns(timeline: Timeline, name: str, place: Place) -> dict[str, list[Any]]:
    """A table's columns, its processes and threads under the ids of the file."""
    if name in EVENTS or not len(timeline[name]):
        return {}
    columns = columns_of(timeline, timeline[name])
    if "process" in columns:
        threads = columns.get("thread")
        rows = zip(columns["process"], threads or columns["process"], strict=True)
        placed = [place(_given(process=p, thread=t if threads else None)) for p, t in rows]
        columns["process"] = [ids["pid"] for ids in placed]
        if threads is not None:
            columns["thread"] = [ids["tid"] for ids in placed]
    return columns


def _given(**ids: int | None) -> Record:
    return {name: value for name, value in ids.items() if value is not None}


def of_range(row: Record) -> Record:
    """The arguments of a range that only we understand; none where Kineto's words suffice."""
    plain = ("start", "end", "name", "process", "thread", "domain")
    told = {key: value for key, value in row.items() if key not in plain}
    domain = row.get("domain")
    if not told and domain in (*DOMAINS, "annotation"):
        return {}
    return {ARGS: told | {"domain": domain}}


DOMAINS = {"cpu_op": "cpu_op", "python": "python_function"}
"""The domains of ranges that Kineto has a category for, besides annotations."""


def of_device(row: Record) -> Record:
    """The same of device work."""
    told: Record = {name: row[name] for name in ("step", "flops", "moved") if name in row}
    if "format" in row:
        told["format"] = NUMBER_FORMATS[row["format"]]
    return {ARGS: told} if told else {}
