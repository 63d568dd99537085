"""NVTX events of an Nsight Systems export: ranges, marks and names of threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm.readers.nsys_store import Chunk, Export, process, thread
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Mask, Table, known
from rca_llm.trace import MARKS, RANGES, THREADS, Timeline

_RANGES, _MARKS, _THREAD_NAME, _DOMAIN = (59, 60, 70, 71), (34, 65), 39, 75
"""`eventType`: push/pop and start/end ranges (the second of each from NVTXT files), marks, names
of threads, and domains as they are made."""

_DEFAULT_DOMAIN = "NVTX"

_CALL, _AUTOGRAD = b", op_id = ", b", seq = "
"""What PyTorch's `emit_nvtx` puts behind an operator's name: the number of the call, and before it
that of the step of autograd. Without them an operator's calls have one name, as in Kineto."""

_COLUMNS = ("start", "end", "eventType", "globalTid", "domainId", "textId")


@dataclass
class _Events:
    """Some NVTX events with their names."""

    start: Ints
    end: Ints
    tid: Ints
    domain: Ints
    name: Array
    operator: Mask


def add(export: Export, timeline: Timeline) -> None:
    """Add NVTX ranges to `ranges`, marks to `marks`, and names that threads gave themselves."""
    kinds = {kind: [_none()] for kind in ("ranges", "marks", "threads", "domains")}
    for chunk in export.chunks("NVTX_EVENTS", _COLUMNS, ("text",)):
        type = chunk["eventType"]
        untyped = (type == UNKNOWN) & known(chunk["end"])
        kinds["ranges"].append(_events(export, chunk, np.isin(type, _RANGES) | untyped))
        kinds["marks"].append(_events(export, chunk, np.isin(type, _MARKS)))
        kinds["threads"].append(_events(export, chunk, type == _THREAD_NAME))
        kinds["domains"].append(_events(export, chunk, type == _DOMAIN))
    found = {kind: _joined(parts) for kind, parts in kinds.items()}
    timeline.add("ranges", _ranges(export, found["ranges"], _domains(found["domains"])))
    timeline.add("marks", _marks(export, found["marks"]))
    timeline.add("threads", _thread_names(found["threads"]))


def _events(export: Export, chunk: Chunk, chosen: Mask) -> _Events:
    rows = np.flatnonzero(chosen)
    name, operator = _names(export, chunk, rows)
    start, end, tid, domain = (
        chunk[column][rows] for column in ("start", "end", "globalTid", "domainId")
    )
    return _Events(start, end, tid, domain, name, operator)


def _names(export: Export, chunk: Chunk, rows: Ints) -> tuple[Array, Mask]:
    """The names of events, and which are PyTorch operators; registered ones stand elsewhere."""
    name, operator = np.full(len(rows), NO_TEXT, np.int32), np.zeros(len(rows), bool)
    if "text" in chunk.texts and len(rows):
        texts = chunk.texts["text"].take(rows)
        operator = texts.cut_number(_CALL)
        operators = texts.take(operator)
        operators.cut_number(_AUTOGRAD)
        name[operator] = operators.codes(export.intern)
        name[~operator] = texts.take(~operator).codes(export.intern)
    registered = np.flatnonzero(name == NO_TEXT)
    if len(registered):
        name[registered] = export.texts(chunk["textId"][rows[registered]])
    return name, operator


def _none() -> _Events:
    ids = np.empty(0, np.int64)
    return _Events(ids, ids, ids, ids, np.empty(0, np.int32), np.empty(0, bool))


def _joined(parts: list[_Events]) -> _Events:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return _Events(*(np.concatenate(column) for column in columns))


def _domains(events: _Events) -> dict[tuple[int, int], int]:
    """The name of each domain of each process: a domain's number means nothing elsewhere."""
    keys = zip(process(events.tid).tolist(), events.domain.tolist(), strict=True)
    return dict(zip(keys, events.name.tolist(), strict=True))


def _ranges(export: Export, events: _Events, domains: dict[tuple[int, int], int]) -> Table:
    owner = process(events.tid)
    default = export.strings.code(_DEFAULT_DOMAIN) if len(owner) else NO_TEXT
    domain = np.full(len(owner), default, np.int32)
    for (pid, number), name in domains.items():
        domain[(owner == pid) & (events.domain == number)] = name
    if np.any(events.operator):
        domain[events.operator] = export.strings.code("cpu_op")
    return Table(
        RANGES,
        {
            "start": export.time(events.start),
            "end": export.time(events.end),
            "name": events.name,
            "domain": domain,
            "process": owner,
            "thread": thread(events.tid),
        },
    )


def _marks(export: Export, events: _Events) -> Table:
    return Table(
        MARKS,
        {
            "t": export.time(events.start),
            "name": events.name,
            "process": process(events.tid),
            "thread": thread(events.tid),
        },
    )


def _thread_names(events: _Events) -> Table:
    return Table(
        THREADS,
        {"process": process(events.tid), "thread": thread(events.tid), "name": events.name},
    )
