"""Rows about the host: `api` calls and `tracks`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rca_llm.attribute.codes import COPY, GRAPH_LAUNCH, LAUNCH, SPAN_PART
from rca_llm.attribute.partition import Recording
from rca_llm.readers.run_calls import kind_of_path
from rca_llm.summary.stats import weighted
from rca_llm.table import UNKNOWN, Ints, known
from rca_llm.trace import GRAPH, KERNEL

_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
"""What Nsight Systems appends to a call's name."""


@dataclass
class Calls:
    """The sums of one call's row; `blocked` is None for a call that is meant to wait.

    `delays` are the distinct launch delays, ns, each with how often it occurs.
    """

    count: int = 0
    total: int = 0
    blocked: int | None = None
    delays: list[tuple[Ints, Ints]] = field(default_factory=list[tuple[Ints, Ints]])

    def add(self, other: Calls) -> None:
        """Add the calls of another recording."""
        self.count += other.count
        self.total += other.total
        if other.blocked is not None:
            self.blocked = (self.blocked or 0) + other.blocked
        self.delays += other.delays


def api_rows(several: Iterable[Mapping[str, Calls]]) -> list[dict[str, Any]]:
    """One row for each call, the longest total first."""
    found: dict[str, Calls] = defaultdict(Calls)
    for sums in several:
        for name, calls in sums.items():
            found[name].add(calls)
    return [
        {
            "name": name,
            "count": calls.count,
            "total_ns": calls.total,
            "blocked_ns": calls.blocked,
            "launch_delay_ns": weighted(calls.delays),
        }
        for name, calls in sorted(found.items(), key=lambda item: -item[1].total)
    ]


def api_sums(recording: Recording) -> dict[str, Calls]:
    """What one recording adds to the row of each call."""
    timeline = recording.timeline
    api = timeline["api"]
    sums: dict[str, Calls] = defaultdict(Calls)
    if not len(api):
        return {}
    duration = np.maximum(api["end"] - api["start"], 0)
    blocked, delay = _blocked(recording), _delays(recording)
    order = np.argsort(api["name"], kind="stable")
    names = api["name"][order]
    cuts = np.flatnonzero(np.diff(names)) + 1
    for mine in np.split(order, cuts):
        code = int(api["name"][mine[0]])
        waits = int(recording.calls[mine[0]]) not in (LAUNCH, GRAPH_LAUNCH, COPY)
        values = delay[mine][known(delay[mine])]
        calls = Calls(
            len(mine),
            int(duration[mine].sum()),
            None if waits else int(blocked[mine].sum()),
            [np.unique(values, return_counts=True)] if len(values) else [],
        )
        sums[_VERSION.sub("", timeline.strings[code])].add(calls)
    return dict(sums)


def _blocked(recording: Recording) -> Ints:
    """How long each asynchronous call kept its thread after its own device work had begun, ns."""
    gpu, api = recording.timeline["gpu"], recording.timeline["api"]
    begun = _first_start(recording)
    late = known(begun) & (len(gpu) > 0)
    return np.where(late, np.maximum(api["end"] - np.maximum(begun, api["start"]), 0), 0)


def _first_start(recording: Recording) -> Ints:
    """When the first device work of each call started, `UNKNOWN` for none."""
    gpu, api = recording.timeline["gpu"], recording.timeline["api"]
    latest = np.iinfo(np.int64).max
    found = np.full(len(api), latest, np.int64)
    rows = np.flatnonzero((recording.links.api_row >= 0) & known(gpu["start"]))
    np.minimum.at(found, recording.links.api_row[rows], gpu["start"][rows])
    return np.where(found == latest, UNKNOWN, found)


def _delays(recording: Recording) -> Ints:
    """From the end of each launch to the start of its first kernel, never negative, ns."""
    api = recording.timeline["api"]
    launches = (recording.calls == LAUNCH) | (recording.calls == GRAPH_LAUNCH)
    begun = _first_start(recording)
    judged = launches & known(begun)
    return np.where(judged, np.maximum(begun - api["end"], 0), UNKNOWN)


def launch_after_start(recording: Recording) -> int:
    """How many kernels start before the call that launched them."""
    gpu, api = recording.timeline["gpu"], recording.timeline["api"]
    launched = recording.links.of_api(api["start"])
    early = known(launched) & known(gpu["start"]) & (gpu["start"] < launched)
    return int(np.count_nonzero(early & (gpu["kind"] == KERNEL)))


def unlinked_kernels(recording: Recording) -> int:
    """How many kernels have no launch, in a recording that has launches."""
    gpu = recording.timeline["gpu"]
    if not len(recording.timeline["api"]):
        return 0
    return int(np.count_nonzero((gpu["kind"] == KERNEL) & (recording.links.api_row < 0)))


def uncalled_kernels(recording: Recording) -> int:
    """How many kernels there are in a recording without any call of the device's API."""
    if len(recording.timeline["api"]):
        return 0
    return int(np.count_nonzero(recording.timeline["gpu"]["kind"] == KERNEL))


def track_rows(recording: Recording) -> list[dict[str, Any]]:
    """The threads that recorded anything, with how much."""
    host = recording.host
    threads = host.threads
    numbers = np.concatenate([host.api_thread, host.range_thread, host.state_thread])
    counts = np.bincount(numbers, minlength=len(threads)).tolist()
    names = _thread_names(recording)
    ranks = {p: rank.number for rank in recording.ranks for p in rank.processes}
    return [
        {
            "rank": ranks.get(process),
            "process": None if process == UNKNOWN else process,
            "thread": None if thread == UNKNOWN else thread,
            "name": names.get((process, thread)),
            "events": count,
        }
        for (process, thread), count in zip(threads, counts, strict=True)
    ]


def _thread_names(recording: Recording) -> dict[tuple[int, int], str | None]:
    table, timeline = recording.timeline["threads"], recording.timeline
    return {
        (int(process), int(thread)): timeline.text(int(name))
        for process, thread, name in zip(
            table["process"], table["thread"], table["name"], strict=True
        )
    }


def graph_launches(recording: Recording) -> int:
    """How many graphs were launched: calls, else replays recorded as one piece."""
    calls = int(np.count_nonzero(recording.calls == GRAPH_LAUNCH))
    return calls or int(np.count_nonzero(recording.timeline["gpu"]["kind"] == GRAPH))


def thread_rows(recording: Recording) -> list[dict[str, Any]]:
    """What each watched thread did: on a CPU, waiting for one, blocked (ns), and major faults.

    Only run directories say; the busiest threads come first.
    """
    timeline = recording.timeline
    table = timeline["threads"]
    names = {
        (int(process), int(thread)): timeline.text(int(name))
        for process, thread, name in zip(
            table["process"], table["thread"], table["name"], strict=True
        )
    }
    rows: list[dict[str, Any]] = timeline.header.extra.get("threads", [])
    return [
        {**row, "name": names.get((row["process"], row["thread"]))} for row in rows[:MOST_THREADS]
    ]


MOST_THREADS = 200


def short_call_rows(several: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Calls on files and sockets too short for a record of their own, by what they were for.

    They lie below the threshold of the interposer (50 µs unless RCA_LLM_IO_US says otherwise):
    only their sums are known, so they are no part of the partition. Only run directories say.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in (row for rows in several for row in rows):
        kind = str(row["kind"])
        if kind == "file" and row["path"] is not None:
            kind = kind_of_path(str(row["path"]))
        sums = found[kind]
        for place, name in enumerate(("calls", "bytes", "ns")):
            sums[place] += int(row[name])
    rows = [
        {"kind": kind, "part": SPAN_PART.get(kind), "calls": n, "bytes": size, "total_ns": ns}
        for kind, (n, size, ns) in found.items()
    ]
    return sorted(rows, key=lambda row: -int(str(row["total_ns"])))
