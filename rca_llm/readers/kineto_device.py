"""Device records of Kineto: whose they are, and what their names say of copies."""

from __future__ import annotations

import re

import numpy as np

from rca_llm.readers.kineto_events import Columns
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Table, repeated
from rca_llm.trace import COPY_KINDS, GPU, MEMCPY, MEMORY_KINDS, Timeline

_DIRECTION = re.compile(r"\b(?P<source>[HDPA])to(?P<target>[HDPA])\b")
_LONG_DIRECTION = re.compile(r"(?P<source>Host|Device)To(?P<target>Host|Device)")
_MEMORY = re.compile(r"\((?P<source>[\w ]+?)\s*->\s*(?P<target>[\w ]+?)\)")

_COPIES = {
    ("H", "D"): "H2D",
    ("D", "H"): "D2H",
    ("D", "D"): "D2D",
    ("P", "P"): "P2P",
    ("H", "H"): "H2H",
    ("H", "A"): "H2D",
    ("A", "H"): "D2H",
    ("A", "D"): "D2D",
    ("D", "A"): "D2D",
    ("A", "A"): "D2D",
}
"""The kind of copy between host, device, peer and (device) array."""


def without_duplicates(columns: Columns) -> tuple[Columns, int]:
    """The records without those that another one equals in every field, and how many went."""
    again = repeated(columns, "start")
    dropped = int(np.count_nonzero(again))
    if not dropped:
        return columns, 0
    return {name: column[~again] for name, column in columns.items()}, dropped


def gpu_table(columns: Columns, timeline: Timeline) -> Table:
    """The `gpu` rows of device records; adds the column `process` to the records."""
    columns["process"] = _processes(columns, timeline)
    rows = {name: values for name, values in columns.items() if name in GPU}
    return Table(GPU, rows | _copies(columns, timeline))


def _processes(columns: Columns, timeline: Timeline) -> Ints:
    """The process that launched each record.

    The track of a device record names the device, not the process. Where the file holds calls of
    several processes, the latest call with the record's correlation before its start decides.
    """
    hosts = np.concatenate([timeline["api"]["process"], timeline["ranges"]["process"]])
    found, counts = np.unique(hosts[hosts != UNKNOWN], return_counts=True)
    if not len(found):
        return np.full(len(columns["start"]), _only_process(timeline), np.int64)
    main = int(found[np.argmax(counts)])
    if len(found) == 1:
        return np.full(len(columns["start"]), main, np.int64)
    launched_by = _launching(columns, timeline["api"])
    return np.where(launched_by == UNKNOWN, main, launched_by)


def _only_process(timeline: Timeline) -> int:
    """The process of a file without host events, where metadata names just one."""
    processes = np.unique(timeline["processes"]["process"])
    return int(processes[0]) if len(processes) == 1 else UNKNOWN


def _launching(columns: Columns, api: Table) -> Ints:
    """The process of the call that each record belongs to, unknown where none is found."""
    count = len(columns["start"])
    ids = np.concatenate([columns["correlation"], api["correlation"]])
    times = np.concatenate([columns["start"], api["start"]])
    is_call = np.arange(len(ids)) >= count
    owners = np.concatenate([np.full(count, UNKNOWN), api["process"]])
    order = np.lexsort((~is_call, times, ids))
    result = np.full(len(ids), UNKNOWN)
    result[order] = _carried(ids[order], is_call[order], owners[order])
    missing = result[:count] == UNKNOWN
    back = order[::-1]
    after = np.full(len(ids), UNKNOWN)
    after[back] = _carried(ids[back], is_call[back], owners[back])
    owner = np.where(missing, after[:count], result[:count])
    return np.where(columns["correlation"] == UNKNOWN, UNKNOWN, owner)


def _carried(ids: Ints, is_call: Array, owners: Ints) -> Ints:
    """For every place the owner of the last call before it that has the same id."""
    last = np.maximum.accumulate(np.where(is_call, np.arange(len(ids)), -1))
    fits = (last >= 0) & (ids[last] == ids)
    return np.where(fits, owners[last], UNKNOWN)


def _copies(columns: Columns, timeline: Timeline) -> Columns:
    """The kind of each copy and the memory it joins, from its name and its argument `kind`."""
    is_copy = columns["kind"] == MEMCPY
    found = {column: np.full(len(is_copy), -1, np.int32) for column in ("copy", "src", "dst")}
    names, directions = columns["name"], columns["direction"]
    said = set(zip(names[is_copy].tolist(), directions[is_copy].tolist(), strict=True))
    for name, direction in said:
        rows = is_copy & (names == name) & (directions == direction)
        kinds = _copy_of(timeline.text(name) or "", timeline.text(direction) or "")
        for column, value in zip(("copy", "src", "dst"), kinds, strict=True):
            found[column][rows] = value
    return found


def _copy_of(name: str, direction: str) -> tuple[int, int, int]:
    """The codes of a copy's kind, source and target memory; -1 for what is not said."""
    match = _DIRECTION.search(name) or _DIRECTION.search(direction)
    match = match or _LONG_DIRECTION.search(name) or _LONG_DIRECTION.search(direction)
    kind = _COPIES.get((match["source"][0], match["target"][0])) if match else None
    memory = _MEMORY.search(name)
    source, target = (memory["source"], memory["target"]) if memory else ("", "")
    return (
        COPY_KINDS.index(kind) if kind else NO_TEXT,
        _memory(source),
        _memory(target),
    )


def _memory(name: str) -> int:
    lowered = name.lower()
    return MEMORY_KINDS.index(lowered) if lowered in MEMORY_KINDS else NO_TEXT
