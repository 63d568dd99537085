"""Kineto traces: the Chrome JSON that torch.profiler writes, on CUDA and on ROCm.

Times in the file are decimal microseconds after `baseTimeNanoseconds`, or since 1970 where that
is missing (torch before 2.4). Device work carries the device in its arguments; its `pid` and
`tid` are a track. A kernel belongs to the call with the same `correlation`, which is another
number than its `External id`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rca_llm.errors import UnreadableInput
from rca_llm.readers import kineto_own, kineto_products
from rca_llm.readers.exact import ints
from rca_llm.readers.files import Source
from rca_llm.readers.kineto_collectives import collectives
from rca_llm.readers.kineto_device import gpu_table, without_duplicates
from rca_llm.readers.kineto_events import Columns, joined
from rca_llm.readers.kineto_flows import link_by_flows
from rca_llm.readers.kineto_header import devices_of, header_of, integer, said_by, tool_version
from rca_llm.readers.kineto_pieces import Content, read_pieces
from rca_llm.table import NO_TEXT, UNKNOWN, Ints, Strings, Table, known
from rca_llm.trace import API, CUT, PROCESSES, RANGES, THREADS, Input, Timeline, Trace

_TABLES = ("gpu", "api", "ranges", "comms", "products", "overhead")
"""What the batches hold."""

_OF_THE_PROGRAM = ("loading", "compil")
"""Overhead that is none of the tracer's: what CUDA does lazily or just in time."""

_MARKS = (b'"traceEvents"', b'"deviceProperties"', b'"baseTimeNanoseconds"')


def matches(source: Source) -> bool:
    """Whether the content begins like a Chrome trace: an object or a list of events."""
    head = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"{"):
        return any(mark in head for mark in _MARKS)
    return re.match(rb'\[\s*(?:\]|\{.*"ph")', head, re.DOTALL) is not None


def read(source: Source) -> Trace:
    """The trace in a Kineto file."""
    content = read_pieces(source)
    said = said_by(content)
    timeline = Timeline(Input(source.path, "kineto"), strings=Strings(content.texts))
    base = integer(said.get("baseTimeNanoseconds"))
    tables = _joined_tables(content)
    ours = any("own" in c and bool(np.any(c["own"] != NO_TEXT)) for c in tables.values())
    link_by_flows(source, tables)
    _move(tables, base or 0)
    _add_host(timeline, tables)
    _add_names(timeline, content)
    _add_device_work(timeline, tables)
    timeline.header = header_of(said, timeline)
    timeline.devices = devices_of(said, timeline)
    kineto_own.restore(timeline, said, ours)
    _note_overhead(timeline, tables)
    _note_damage(timeline, content, said)
    events = sum(batch.events for batch in content.batches)
    timeline.input = Input(
        source.path,
        "kineto",
        tool="torch.profiler",
        tool_version=tool_version(said),
        rank=timeline.header.rank,
        events=events,
    )
    if not any(len(timeline[name]) for name in ("gpu", "api", "ranges", "requests", "steps")):
        raise UnreadableInput(
            f"{source.path}: byte {len(content.head)}: expected kernels, API calls or operators "
            f"in traceEvents; found none in {events} events"
        )
    return Trace([timeline])


def _joined_tables(content: Content) -> dict[str, Columns]:
    """The columns of all batches; the batches give theirs up."""
    tables: dict[str, Columns] = {}
    for name in _TABLES:
        parts = [batch.tables.pop(name) for batch in content.batches if name in batch.tables]
        if parts:
            tables[name] = joined(parts)
    return tables


def _move(tables: Mapping[str, Columns], base: int) -> None:
    """Put all times on the clock that the base time belongs to."""
    for columns in tables.values():
        for time in ("start", "end"):
            if time in columns:
                columns[time] = _moved(columns[time], base)


def _moved(times: Ints, base: int) -> Ints:
    return np.where(known(times), times + base, UNKNOWN)


def _add_host(timeline: Timeline, tables: Mapping[str, Columns]) -> None:
    if "api" in tables:
        timeline.add("api", Table(API, tables["api"]))
    if "ranges" in tables:
        kineto_own.fill_ranges(tables["ranges"], timeline)
        timeline.add("ranges", Table(RANGES, tables["ranges"]))


def _add_device_work(timeline: Timeline, tables: Mapping[str, Columns]) -> None:
    """The device records, each once, and the collectives among them."""
    if "gpu" not in tables:
        return
    columns, copies = without_duplicates(tables["gpu"])
    timeline.note("duplicate_records", copies, "gpu", "device records that occur twice, once kept")
    kineto_products.fill(columns, tables.get("products"))
    kineto_own.fill_device(columns, timeline)
    timeline.add("gpu", gpu_table(columns, timeline))
    timeline.add("collectives", collectives(columns, tables.get("comms"), timeline))


def _add_names(timeline: Timeline, content: Content) -> None:
    """The names of processes and threads; tracks of a device are neither."""
    names = [name for batch in content.batches for name in batch.names]
    if not names:
        return
    kinds = [kind for kind, _, _, _ in names]
    pids = ints([pid for _, pid, _, _ in names]).tolist()
    tids = ints([tid for _, _, tid, _ in names]).tolist()
    texts = [text for _, _, _, text in names]
    rows = list(zip(kinds, pids, tids, texts, strict=True))
    devices = {pid for kind, pid, _, text in rows if kind == "process_labels" and "GPU" in text}
    host = [row for row in rows if row[1] != UNKNOWN and row[1] not in devices]
    _add_processes(timeline, {pid: text for kind, pid, _, text in host if kind == "process_name"})
    _add_threads(
        timeline,
        {
            (pid, tid): text
            for kind, pid, tid, text in host
            if kind == "thread_name" and tid != UNKNOWN and not text.startswith("stream")
        },
    )


def _add_processes(timeline: Timeline, names: Mapping[int, str]) -> None:
    columns = {"process": list(names), "name": timeline.strings.codes(names.values())}
    timeline.add("processes", Table(PROCESSES, columns))


def _add_threads(timeline: Timeline, names: Mapping[tuple[int, int], str]) -> None:
    columns = {
        "process": [process for process, _ in names],
        "thread": [thread for _, thread in names],
        "name": timeline.strings.codes(names.values()),
    }
    timeline.add("threads", Table(THREADS, columns))


def _note_overhead(timeline: Timeline, tables: Mapping[str, Columns]) -> None:
    """Report the time that the tracer itself took on the program's threads."""
    if "overhead" not in tables:
        return
    columns = tables["overhead"]
    names = [(timeline.text(code) or "").lower() for code in columns["name"].tolist()]
    own = [not any(word in name for word in _OF_THE_PROGRAM) for name in names]
    rows = np.flatnonzero(known(columns["end"]) & np.array(own))
    if len(rows):
        cost = int((columns["end"] - columns["start"])[rows].sum())
        most = timeline.text(int(columns["name"][rows[0]]))
        detail = f"{cost} ns on the program's threads ({most})"
        timeline.note("tracer_overhead", len(rows), timeline.input.path, detail)


def _note_damage(timeline: Timeline, content: Content, said: Mapping[str, Any]) -> None:
    """Tell what is broken. PyTorch writes what devices did last: the end of a file holds it."""
    path = timeline.input.path
    bad = sum(batch.bad_text for batch in content.batches)
    timeline.note("bad_text", bad, path, "events with broken text, which was replaced")
    dropped = [offset for batch in content.batches for offset in batch.dropped]
    if dropped:
        detail = f"events that cannot be read, the first at byte {dropped[0]}"
        timeline.note("dropped_records", len(dropped), path, detail)
    if _is_cut(content):
        timeline.note("truncated", 1, path, f"the file ends early, at byte {content.length}")
        if said.get("deviceProperties") != []:  # an empty list is of a machine without devices
            timeline.header.extra[CUT] = True


def _is_cut(content: Content) -> bool:
    tail = content.batches[-1].tail if content.batches else None
    if content.truncated or tail is None:
        return True
    return content.head.lstrip().startswith(b"{") and not tail.rstrip().endswith(b"}")
