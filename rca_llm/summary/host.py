"""Rows about the host: `api` calls and `tracks`."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np

from rca_llm.attribute.codes import COPY, GRAPH_LAUNCH, LAUNCH
from rca_llm.attribute.partition import Recording
from rca_llm.summary.stats import distribution
from rca_llm.table import UNKNOWN, Ints, known
from rca_llm.trace import GRAPH, KERNEL

_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
"""What Nsight Systems appends to a call's name."""


def api_rows(recordings: list[Recording]) -> list[dict[str, Any]]:
    """One row for each call, the longest total first."""
    rows: dict[str, _Calls] = defaultdict(_Calls)
    for recording in recordings:
        _collect(recording, rows)
    ordered = sorted(rows.items(), key=lambda item: -item[1].total)
    return [
        {
            "name": name,
            "count": calls.count,
            "total_ns": calls.total,
            "blocked_ns": calls.blocked,
            "launch_delay_ns": distribution(calls.delays),
        }
        for name, calls in ordered
    ]


class _Calls:
    """The sums of one call's row; `blocked` is None for a call that is meant to wait."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.blocked: int | None = None
        self.delays: list[int] = []


def _collect(recording: Recording, rows: dict[str, _Calls]) -> None:
    timeline = recording.timeline
    api = timeline["api"]
    if not len(api):
        return
    duration = np.maximum(api["end"] - api["start"], 0)
    blocked, delay = _blocked(recording), _delays(recording)
    order = np.argsort(api["name"], kind="stable")
    names = api["name"][order]
    cuts = np.flatnonzero(np.diff(names)) + 1
    for mine in np.split(order, cuts):
        code = int(api["name"][mine[0]])
        calls = rows[_VERSION.sub("", timeline.strings[code])]
        calls.count += len(mine)
        calls.total += int(duration[mine].sum())
        if int(recording.calls[mine[0]]) in (LAUNCH, GRAPH_LAUNCH, COPY):
            calls.blocked = (calls.blocked or 0) + int(blocked[mine].sum())
        calls.delays += delay[mine][known(delay[mine])].tolist()


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


def track_rows(recordings: list[Recording]) -> list[dict[str, Any]]:
    """The threads that recorded anything, with how much."""
    rows: list[dict[str, Any]] = []
    for recording in recordings:
        host = recording.host
        threads = host.threads
        numbers = np.concatenate([host.api_thread, host.range_thread, host.state_thread])
        counts = np.bincount(numbers, minlength=len(threads)).tolist()
        names = _thread_names(recording)
        ranks = {p: rank.number for rank in recording.ranks for p in rank.processes}
        for (process, thread), count in zip(threads, counts, strict=True):
            rows.append(
                {
                    "rank": ranks.get(process),
                    "process": None if process == UNKNOWN else process,
                    "thread": None if thread == UNKNOWN else thread,
                    "name": names.get((process, thread)),
                    "events": count,
                }
            )
    return rows


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
