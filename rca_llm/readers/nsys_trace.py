"""From the tables of an Nsight Systems export to a trace."""

from __future__ import annotations

import numpy as np

from rca_llm.errors import UnreadableInput
from rca_llm.readers import nsys_device, nsys_host, nsys_nccl, nsys_nvtx, nsys_session
from rca_llm.readers.mending import mend
from rca_llm.readers.nsys_store import Export, Tables
from rca_llm.table import UNKNOWN, Array, Ints, first_rows, known
from rca_llm.trace import Header, Input, Timeline, Trace

_OWN = ("StringIds", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT", "NVTX_EVENTS")
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
"""Every export has one of those tables, or one whose name begins so."""

_EVENTS = ("gpu", "api", "ranges", "marks", "states", "samples")
"""The tables whose rows are what was recorded."""

_MACHINE = 0xFFFF << 24
"""The bits of a process's 40-bit id that tell its machine and virtual machine."""


def trace_of(path: str, tables: Tables) -> Trace:
    """The trace in an export; `UnreadableInput` where it is none or recorded nothing.

    Never read: the traced process's environment, its output, and texts that no event points to.
    """
    export = Export(tables)
    _expect_export(path, export)
    timeline = Timeline(Input(path, "nsys"), Header(), export.strings)
    nsys_session.clock(export, timeline)
    for part in (nsys_device, nsys_host, nsys_nvtx, nsys_nccl):
        part.add(export, timeline)
    nsys_session.metrics(export, timeline)
    _complete(timeline)
    nsys_session.note_losses(export, timeline)
    nsys_session.note_overhead(export, timeline)
    _describe(path, export, timeline)
    return Trace([timeline])


def _expect_export(path: str, export: Export) -> None:
    names = export.names
    if any(table in export for table in _OWN) or any(n.startswith(_ACTIVITY) for n in names):
        return
    raise UnreadableInput(
        f"{path}: table StringIds: expected an Nsight Systems export; found"
        f" {', '.join(map(repr, names[:5])) or 'no tables'}"
    )


def _describe(path: str, export: Export, timeline: Timeline) -> None:
    """Say what was read, by which tool; `UnreadableInput` where that is nothing."""
    events = sum(len(timeline[table]) for table in _EVENTS)
    if not events:
        raise UnreadableInput(
            f"{path}: table {_ACTIVITY}KERNEL: expected events; this export has none of CUDA, NVTX"
            " or the operating system"
        )
    meta = nsys_session.metadata(export)
    version = meta.get("EXPORT_PRODUCT_VERSION")
    timeline.input = Input(path, "nsys", "Nsight Systems", version, None, events)
    if schema := meta.get("EXPORT_SCHEMA_VERSION"):
        timeline.header.extra["schema"] = schema
    timeline.note("bad_text", export.bad_texts, "StringIds", "undecodable bytes became U+FFFD")


def _complete(timeline: Timeline) -> None:
    """Fill in what follows from other tables, and keep only the threads that did something."""
    _find_processes(timeline)
    mend(timeline)
    active = _active(timeline)
    for table in ("states", "threads", "processes"):
        rows = timeline[table]
        timeline.tables[table] = rows.take(np.isin(rows["process"], active))
    _shorten_ids(timeline)


def _active(timeline: Timeline) -> Ints:
    columns = [timeline[table]["process"] for table in ("gpu", "api", "ranges", "marks")]
    return np.unique(np.concatenate(columns))


def _find_processes(timeline: Timeline) -> None:
    """Give device work of unknown process that of the launch, where only one can be it."""
    gpu, api = timeline["gpu"], timeline["api"]
    lost = (gpu["process"] == UNKNOWN) & known(gpu["correlation"])
    if not np.any(lost) or not len(api):
        return
    pairs = np.unique(np.stack([api["correlation"], api["process"]]), axis=1)
    ids, first, times = np.unique(pairs[0], return_index=True, return_counts=True)
    place = first_rows(ids, gpu["correlation"])
    found = lost & (place >= 0) & (times[place] == 1)
    process = np.where(found, pairs[1][first[place]], gpu["process"])
    timeline.tables["gpu"] = gpu.with_columns(process=process)


def _shorten_ids(timeline: Timeline) -> None:
    """Turn 40-bit process ids into pids; those of further machines keep what tells them apart."""
    tables = ("gpu", "api", "ranges", "marks", "collectives", "states", "threads", "processes")
    ids = np.unique(np.concatenate([timeline[table]["process"] for table in tables]))
    ids = ids[known(ids)]
    machines = ids & _MACHINE
    if len(np.unique(ids & 0xFFFFFF)) == len(ids):
        short = ids & 0xFFFFFF
    else:
        short = np.where(machines == machines.min(), ids & 0xFFFFFF, ids)
    for table in tables:
        rows = timeline[table]
        if len(rows):
            timeline.tables[table] = rows.with_columns(
                process=_replaced(rows["process"], ids, short)
            )


def _replaced(values: Ints, old: Ints, new: Ints) -> Array:
    """The values with every known one of `old`, which ascends, replaced."""
    place = np.searchsorted(old, np.where(known(values), values, old[0] if len(old) else 0))
    return np.where(known(values), new[place], values) if len(old) else values
