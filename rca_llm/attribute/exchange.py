"""What HTTP adds around a request's life in an engine: before its arrival, and after its finish.

The probes of HTTP servers record both as spans of the request (`probes/engines/asgi.py`); what the
server's own thread did meanwhile tells a wait for a CPU from the exchange itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.host import HostRecords
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.intervals import Pieces
from rca_llm.table import UNKNOWN, Ints, known

BEFORE, AFTER = "http before engine", "http after engine"


@dataclass(frozen=True)
class Exchange:
    """The time of a client's HTTP request that lies outside the life of the engine's, ns."""

    before: int
    """From the head of the request to the arrival."""
    after: int
    """From the finish to the last byte of the answer."""
    totals: Ints
    """The time of every part; adds up to both."""


def exchange(
    recording: Recording, id: str, arrival: int | None, finished: int | None
) -> Exchange | None:
    """What a server recorded around a request, None where it recorded nothing."""
    before, first = _outside(recording, id, BEFORE, None, arrival)
    after, second = _outside(recording, id, AFTER, finished, None)
    return None if first is None or second is None else Exchange(before, after, first + second)


def _outside(
    recording: Recording, id: str, name: str, since: int | None, until: int | None
) -> tuple[int, Ints | None]:
    """How long a span of the request lasts outside its life, and what its thread did; ns."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    rows = recording.spans_of_request(strings.find(id))
    rows = rows[(ranges["name"][rows] == strings.find(name)) & known(ranges["end"][rows])]
    if not len(rows):
        return 0, None
    row = int(rows[0])
    start, end = int(ranges["start"][row]), int(ranges["end"][row])
    start, end = max(start, since or start), min(end, until or end)
    if end <= start:
        return 0, np.zeros(len(PARTS), np.int64)
    gaps = np.array([start], np.int64), np.array([end], np.int64)
    pieces = _explained(recording, gaps, int(ranges["process"][row]))
    return end - start, pieces.sums(len(PARTS))


def _explained(recording: Recording, gaps: tuple[Ints, Ints], process: int) -> Pieces:
    """Waits for a CPU of the thread that serves, and the exchange."""
    thread = _serving(recording.host, process)
    waits = recording.host.part == CODE["scheduling.cpu_wait"]
    rows = np.flatnonzero(waits & (recording.host.thread == thread))
    start, end = intervals.union(recording.host.start[rows], recording.host.end[rows])
    waiting = Pieces(start, end, np.full(len(start), CODE["scheduling.cpu_wait"], np.int64))
    whole = Pieces(*gaps, np.array([CODE["io.network"]], np.int64))
    return intervals.within(
        intervals.overlay([waiting, whole], int(gaps[0][0]), int(gaps[1][0]))[0], gaps
    )


def _serving(records: HostRecords, process: int) -> int:
    """The thread of a server's event loop: that of its spans; spans of requests name no thread."""
    spent = [
        ns if owner == process and thread != UNKNOWN else -1
        for (owner, thread), ns in zip(records.threads, records.recorded_ns.tolist(), strict=True)
    ]
    return int(np.argmax(spent)) if max(spent, default=-1) >= 0 else host.NO_THREAD
