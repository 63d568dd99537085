"""From the records of an event file to the tables of a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from rca_llm.readers.events_restore import restore
from rca_llm.readers.events_values import Values, as_dict, as_list
from rca_llm.readers.mending import mend
from rca_llm.table import Table, concat, known
from rca_llm.trace import (
    COPY_KINDS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMORY_KINDS,
    MEMSET,
    TABLES,
    Header,
    Input,
    Timeline,
    quoted,
)

Record = dict[str, Any]

TYPES: dict[str, tuple[str, ...]] = {
    "header": ("schema",),
    "process": ("pid",),
    "request": ("id", "arrival"),
    "event": ("t", "name"),
    "step": ("id", "start"),
    "span": ("start", "name"),
    "gpu": ("start", "kind"),
    "api": ("start", "name"),
    "collective": ("start", "op"),
    "thread": ("pid", "tid"),
    "sample": ("t", "metric"),
}
"""The types of records, with keys that tell them from other tools' lines."""

_SAME_ROWS = {
    "process": "processes",
    "event": "marks",
    "span": "ranges",
    "gpu": "gpu",
    "api": "api",
    "collective": "collectives",
    "sample": "samples",
}
"""The table of each type whose records are its rows."""

_KEYS = {"process": "pid", "thread": "tid"}
"""The keys of columns that have another name."""

_GPU_KINDS = {"kernel": KERNEL, "memcpy": MEMCPY, "memset": MEMSET, "graph": GRAPH}
_COPIES = {kind.lower(): place for place, kind in enumerate(COPY_KINDS)}
_MEMORIES = {kind: place for place, kind in enumerate(MEMORY_KINDS)}

_EVENTS = ("gpu", "api", "ranges", "collectives", "requests", "steps", "states", "marks", "samples")
"""The tables whose rows count as events."""

_LIFE = ("client_submit", "arrival", "scheduled", "first_token", "finished")
"""The times of a request, which its records agree on."""

_UTC_SINCE = 10**18
"""Nanoseconds that no monotonic clock shows, 31 years; UTC has since 2001."""


class Builder:
    """Collects records, some at a time, and becomes a timeline."""

    def __init__(self, path: str) -> None:
        self.timeline = Timeline(Input(path, "events"))
        self._values = Values(self.timeline.strings)
        self._parts: dict[str, list[Table]] = {name: [] for name in TABLES}
        self._requests: dict[str, Record] = {}
        self._contradicted: dict[str, int] = {}
        self._steps = 0
        self._aborted: set[str] = set()
        self._unknown: Counter[str] = Counter()
        self._headers = 0

    def add(self, records: Iterable[Record]) -> None:
        """Take in some records, in any order."""
        by_type: dict[str, list[Record]] = {}
        for record in records:
            by_type.setdefault(str(record.get("type")), []).append(record)
        for type, group in by_type.items():
            adder = self._adder(type)
            if adder is None:
                self._unknown[type[:40]] += len(group)
            else:
                adder(group)

    def finished(self) -> Timeline:
        """The timeline of all records."""
        timeline = self.timeline
        self._add_requests()
        for name, parts in self._parts.items():
            timeline.tables[name] = concat(TABLES[name], parts)
        self._values.note(timeline)
        self._note_contradicted()
        for type, count in self._unknown.items():
            timeline.note("dropped_records", count, f"type {type!r}", "unknown type; left out")
        self._settle_clock()
        restore(timeline)
        mend(timeline)
        events = sum(len(timeline[name]) for name in _EVENTS)
        header, path = timeline.header, timeline.input.path
        timeline.input = Input(path, "events", header.engine, None, header.rank, events)
        return timeline

    def _adder(self, type: str) -> Callable[[list[Record]], None] | None:
        """What takes in records of a type, None for one that nobody knows."""
        if table := _SAME_ROWS.get(type):
            make = _MADE.get(type)
            return lambda group: self._rows(table, group, make(group) if make else {})
        return {
            "header": self._header,
            "request": self._request,
            "step": self._step,
            "thread": self._thread,
        }.get(type)

    def _rows(
        self, table: str, records: Sequence[Record], made: dict[str, list[Any]] | None = None
    ) -> None:
        """Append records to a table; columns that none of them has are left out.

        `made` holds the values of columns that are not simply those of a key.
        """
        there = set[str]().union(*records)
        columns: dict[str, Any] = {}
        for column, kind in TABLES[table].items():
            key = _KEYS.get(column, column)
            values = (made or {}).get(column)
            if values is None and key in there:
                values = [record.get(key) for record in records]
            if values is not None:
                columns[column] = self._values.column(kind, values, f"{table}.{column}")
        if columns:
            self._parts[table].append(Table(TABLES[table], columns))
        if table == "marks":
            aborted = (r for r in records if r.get("name") == "aborted")
            self._aborted |= {str(record.get("request")) for record in aborted}

    def _header(self, records: list[Record]) -> None:
        for record in records:
            self._headers += 1
            if self._headers == 1:
                _fill_header(self.timeline.header, record)

    def _request(self, records: list[Record]) -> None:
        """Several records of one request complete each other."""
        for record in records:
            if record.get("id") is not None:
                told = {key: value for key, value in record.items() if value is not None}
                id = str(record["id"])
                earlier = self._requests.setdefault(id, {})
                if earlier and any(
                    earlier[k] != told[k] for k in _LIFE if k in earlier and k in told
                ):
                    self._contradicted[id] = self._contradicted.get(id, 0) + 1
                earlier.update(told)

    def _add_requests(self) -> None:
        records = list(self._requests.values())
        for id, record in self._requests.items():
            record["status"] = _status(record, id in self._aborted)
        self._leave_out_backward([*self._requests.items()])
        self._rows("requests", records)
        tokens = [
            {"request": record["id"], "t": t}
            for record in records
            for t in as_list(record.get("token_times"))
        ]
        self._rows("tokens", tokens)

    def _leave_out_backward(self, requests: Sequence[tuple[str, Record]]) -> None:
        """Leave out times of tokens that go backwards: which of them are true nobody knows."""
        wrong = [id for id, record in requests if _goes_back(as_list(record.get("token_times")))]
        for id in wrong:
            del self._requests[id]["token_times"]
        self.timeline.note(
            "contradicting_requests",
            len(wrong),
            "requests",
            f"times of tokens that go backwards, as of {quoted(next(iter(wrong), ''))}; left out,"
            " and what is between tokens is not known",
        )

    def _note_contradicted(self) -> None:
        """Tell of ids that several requests seem to have: only the last one of each is left."""
        first = next(iter(self._contradicted), "")
        self.timeline.note(
            "contradicting_requests",
            sum(self._contradicted.values()),
            "requests",
            f"records that tell other times than an earlier one of the same id, as of"
            f" {quoted(first)}; the later times count, and if these are two requests one is lost",
        )

    def _step(self, records: list[Record]) -> None:
        batch: list[Record] = []
        for row, record in enumerate(records, self._steps):
            batch += ({"step": row} | work for work in _work(record.get("requests")))
        self._steps += len(records)
        self._rows("steps", records)
        self._rows("batch", batch)

    def _thread(self, records: list[Record]) -> None:
        named = {
            (record.get("pid"), record.get("tid")): record
            for record in records
            if isinstance(record.get("name"), str)
            and not isinstance(record.get("tid"), (list, dict))
            and not isinstance(record.get("pid"), (list, dict))
        }
        self._rows("threads", list(named.values()))
        self._rows("states", [record for record in records if record.get("state") is not None])

    def _settle_clock(self) -> None:
        """Without a header that names the clock, times that only UTC has are UTC."""
        header, timeline = self.timeline.header, self.timeline
        if not self._headers:
            detail = "no header; its clock is judged by the size of the times"
            timeline.note("repaired", 1, "byte 0", detail)
        if "clock" not in header.extra:
            first = _first_time(timeline)
            header.utc = first is not None and first >= _UTC_SINCE


_NOT_KEPT = ("type", "schema", "threads", "short_calls", "side_files")
"""Keys of a header that stay out of `Header.extra`, where those of our own readers hold rows."""


def _fill_header(header: Header, record: Record) -> None:
    """Take over what a header says; keys that nobody knows go to `extra`."""
    rest = {key: value for key, value in record.items() if key not in _NOT_KEPT}
    for key in ("job", "same_rank_as", "host", "nccl", "engine"):
        if isinstance(rest.get(key), str):
            setattr(header, key, rest.pop(key))
    for key in ("rank", "world_size"):
        if type(rest.get(key)) is int:
            setattr(header, key, rest.pop(key))
    header.utc = rest.get("clock") == "utc"
    header.anchors = list(_anchors(rest.pop("anchor", None)))
    header.extra = rest


def _anchors(value: Any) -> Iterable[tuple[int, int]]:
    """The pairs of an anchor, which is one pair or a list of pairs."""
    pairs = as_list(value)
    for pair in map(as_list, pairs if pairs and isinstance(pairs[0], list) else [value]):
        if len(pair) == 2 and all(type(time) is int for time in pair):
            yield pair[0], pair[1]


def _goes_back(times: list[Any]) -> bool:
    """Whether a later one of some times, where those are numbers, is smaller."""
    if not set(map(type, times)) <= {int, float}:
        times = [time for time in times if type(time) in (int, float)]
    return times != sorted(times)


def _status(record: Record, aborted: bool) -> str | None:
    """How a request ended, None where it is not told."""
    if aborted or record.get("status") == "aborted":
        return "aborted"
    return "finished" if record.get("finished") is not None else None


def _work(requests: Any) -> Iterable[Record]:
    """What a step did for each of its requests; a list tells only which they are."""
    listed = dict.fromkeys(id for id in as_list(requests) if isinstance(id, (str, int)))
    for id, work in (as_dict(requests) or listed).items():
        told = as_dict(work)
        yield {"request": id, "phase": told.get("phase"), "tokens": told.get("tokens")}


def _device_columns(records: list[Record]) -> dict[str, list[Any]]:
    """Kinds as numbers, and launch shapes by axis."""
    made: dict[str, list[Any]] = {
        "kind": [_GPU_KINDS.get(_lower(record.get("kind")), KERNEL) for record in records],
        "copy": [_COPIES.get(_lower(record.get("copy"))) for record in records],
        "src": [_MEMORIES.get(_lower(record.get("src"))) for record in records],
        "dst": [_MEMORIES.get(_lower(record.get("dst"))) for record in records],
    }
    for name in ("grid", "block"):
        shapes = [record.get(name) for record in records]
        for place, axis in enumerate("xyz"):
            made[f"{name}_{axis}"] = [_item(shape, place) for shape in shapes]
    return made


def _lower(value: Any) -> str:
    return value.lower() if type(value) is str else ""


def _item(value: Any, place: int) -> Any:
    """One item of a JSON array, None where there is no such."""
    items = cast("Sequence[Any]", value) if isinstance(value, list) else ()
    return items[place] if len(items) > place else None


def _span_columns(records: list[Record]) -> dict[str, list[Any]]:
    """The domain of spans: our probes', unless they name their own."""
    return {"domain": [record.get("domain", "probe") for record in records]}


_MADE = {"gpu": _device_columns, "span": _span_columns}


def _first_time(timeline: Timeline) -> int | None:
    """The smallest time in any table."""
    times = [
        values[known(values)]
        for name, table in timeline.tables.items()
        for column, values in table.known.items()
        if TABLES[name][column] == "time"
    ]
    every = np.concatenate([np.empty(0, np.int64), *times])
    return int(every.min()) if len(every) else None
