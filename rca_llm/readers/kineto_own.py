"""What our own Chrome export adds to Kineto's words (`exporters/chrome_rest.py`), taken back.

Arguments of events under the key `rca`, and a block beside the events with the tables that Kineto
has none for. Nothing of it is trusted: what does not fit is left out, and reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rca_llm.readers.events_restore import restore as restore_header
from rca_llm.readers.events_values import Values, as_dict, as_list
from rca_llm.table import NO_TEXT, Array, Strings, Table
from rca_llm.trace import CUT, NUMBER_FORMATS, PARTIAL, RANGES, TABLES, Device, Timeline

KEY = "rcaLlm"
SCHEMA = "rca-llm/chrome/1"

_OF_RANGES = [name for name in RANGES if name not in ("start", "end", "name", "process", "thread")]
_OF_DEVICE = ("step", "flops", "moved")
_EVENTS = ("gpu", "api", "ranges")
_LOST = "exported by RCA-LLM, but without the block of what Kineto has no words for: {}"


def codes(said: Sequence[Any], count: int, texts: Mapping[Any, int]) -> Array:
    """The code of what each of `count` events says to us, as JSON; `NO_TEXT` of all others."""
    found = np.full(count, NO_TEXT, np.int32)
    for row, told in enumerate(said):
        if isinstance(told, dict):
            found[row] = texts[msgspec.json.encode(told).decode()]
    return found


def _told(own: Array, strings: Strings) -> tuple[Array, list[dict[str, Any]]]:
    """The rows that say something to us, and what each says."""
    rows = np.flatnonzero(own != NO_TEXT)
    texts = {code: as_dict(msgspec.json.decode(strings[code])) for code in set(own[rows].tolist())}
    return rows, [texts[code] for code in own[rows].tolist()]


def fill_ranges(columns: dict[str, Array], timeline: Timeline) -> None:
    """Complete the columns of ranges by what these say to us."""
    rows, told = _told(columns.pop("own"), timeline.strings)
    if not len(rows):
        return
    values = Values(timeline.strings)
    for name in _OF_RANGES:
        if any(name in one for one in told):
            column = values.column(RANGES[name], [one.get(name) for one in told], "ranges")
            columns[name] = columns.get(name, Table(RANGES, columns)[name]).copy()
            columns[name][rows] = column
    values.note(timeline)


def fill_device(columns: dict[str, Array], timeline: Timeline) -> None:
    """Complete the columns of device work likewise."""
    rows, told = _told(columns.pop("own"), timeline.strings)
    if not len(rows):
        return
    values = Values(timeline.strings)
    columns["step"] = np.full(len(columns["start"]), np.iinfo(np.int64).min)
    for name in _OF_DEVICE:
        columns[name][rows] = values.ints([one.get(name) for one in told], "gpu")
    formats = [one.get("format") for one in told]
    known = [NUMBER_FORMATS.index(f) if f in NUMBER_FORMATS else NO_TEXT for f in formats]
    columns["format"][rows] = known
    values.note(timeline)


def restore(timeline: Timeline, said: Mapping[str, Any], spoken: bool) -> None:
    """Take the tables, the header and the findings of the block; `spoken` if events speak to us."""
    block = as_dict(said.get(KEY))
    if block.get("schema") != SCHEMA:
        if spoken:
            detail = _LOST.format("requests, steps, thread states and samples")
            timeline.note("dropped_records", 1, timeline.input.path, detail)
        return
    _restore_header(timeline, as_dict(block.get("header")))
    for name, columns in as_dict(block.get("tables")).items():
        if name in TABLES and name not in _EVENTS:
            _restore_table(timeline, name, as_dict(columns))
    _check_batch(timeline)


def _check_batch(timeline: Timeline) -> None:
    """Leave out the parts of batches of steps that are not there."""
    batch = timeline["batch"]
    there = (batch["step"] >= 0) & (batch["step"] < len(timeline["steps"]))
    if not there.all():
        timeline.tables["batch"] = batch.take(there)
        detail = "table batch: rows of no step; left out"
        timeline.note("dropped_records", int((~there).sum()), timeline.input.path, detail)


def _restore_header(timeline: Timeline, told: dict[str, Any]) -> None:
    header, found = timeline.header, timeline.devices
    header.utc = told.get("clock") == "utc"
    for name in ("job", "host", "engine", "nccl"):
        if isinstance(told.get(name), str):
            setattr(header, name, told[name])
    extra, header.extra, timeline.devices = header.extra, told, []
    restore_header(timeline)
    header.extra = extra | {name: True for name in (CUT, PARTIAL) if told.get(name) is True}
    timeline.devices = _devices(found, timeline.devices)


def _devices(found: Sequence[Device], told: Sequence[Device]) -> list[Device]:
    """The devices that worked, as the block describes them, and those that did not."""
    by_number = {device.device: device for device in told}
    worked = [
        Device(one.device, same.name, one.process, same.limits)
        if (same := by_number.get(one.device))
        else one
        for one in found
    ]
    return worked + [one for one in told if one.device not in {other.device for other in found}]


def _restore_table(timeline: Timeline, name: str, told: dict[str, Any]) -> None:
    schema, values = TABLES[name], Values(timeline.strings)
    lists = {c: as_list(v) for c, v in told.items() if c in schema}
    if len({len(column) for column in lists.values()}) != 1:
        where, detail = timeline.input.path, f"table {name}: columns of different lengths; left out"
        timeline.note("dropped_records", 1, where, detail)
        return
    columns = {c: values.column(schema[c], column, name) for c, column in lists.items()}
    timeline.tables[name] = Table(schema, columns)
    values.note(timeline)
