"""Which request each thread works for at each instant, as the spans that name requests tell."""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import SPAN_PART, WORK
from rca_llm.intervals import EMPTY, Pieces
from rca_llm.table import NEVER, UNKNOWN, Ints, Mask, RowsBy
from rca_llm.trace import Timeline

_AWAITED = ("queue", "network", "kv_transfer", "host")
"""Kinds of spans that stay open while their coroutine awaits, and their thread runs others."""

_HELD = ("compute", WORK)
"""Kinds in which a thread works for their request, whatever else is recorded on it meanwhile."""


class Serving:
    """What spans that name requests say of the threads they are on.

    Spans of most kinds hold their thread: what it does within them is for their request, and
    whoever needs the thread waits. Not so kinds that coroutines await in; nor a span in which the
    thread did something else for another request, which shows that it was awaited.
    """

    def __init__(self, timeline: Timeline, threads: list[tuple[int, int]], thread: Ints) -> None:
        """`thread` has the number in `threads` of each row of `ranges`."""
        ranges, strings = timeline["ranges"], timeline.strings
        rows = np.empty(0, np.int64)
        if "request" in ranges:
            telling = strings.lookup(dict.fromkeys([*SPAN_PART, WORK], 1))[ranges["kind"]] == 1
            telling &= (ranges["request"] >= 0) & (ranges["end"] > ranges["start"])
            rows = np.flatnonzero(telling)
        self._start, self._end = ranges["start"][rows], ranges["end"][rows]
        self._request = ranges["request"][rows] if len(rows) else rows
        kinds = ranges["kind"][rows]
        self._transfers = np.flatnonzero(strings.lookup({"kv_transfer": 1})[kinds] == 1)
        self._awaited = strings.lookup(dict.fromkeys(_AWAITED, 1))[kinds] == 1
        self._always = strings.lookup(dict.fromkeys(_HELD, 1))[kinds] == 1
        # Spans of coroutines are on no thread, which no other request can wait for either.
        self._awaited |= ranges["thread"][rows] == UNKNOWN
        self._by_thread = RowsBy(thread[rows])
        self._entered = _entered(timeline, threads)
        self._held: dict[int, Pieces] = {}

    def held(self, thread: int) -> Pieces:
        """When a thread works for a request, by the request's text code."""
        if thread not in self._held:
            self._held[thread] = self._holding(thread)
        return self._held[thread]

    def held_by_others(self, thread: int, code: int) -> Pieces:
        """When a thread works for other requests than this one (a text code), by which."""
        found = self.held(thread)
        return found.take(np.flatnonzero(found.label != code))

    def free(self, gaps: tuple[Ints, Ints], thread: int, code: int) -> tuple[Ints, Ints]:
        """The time of some intervals in which a thread does not work for other requests."""
        held = self.held_by_others(thread, code)
        return intervals.without(gaps, (held.start, held.end))

    def of_others(self, thread: int, code: int, start: int, end: int) -> tuple[Ints, Ints]:
        """When spans of a thread name other requests than this one, within [start, end).

        Transfers of KV caches count on whatever thread: ranks wait for them as for devices.
        """
        rows = np.concatenate([self._by_thread[thread], self._transfers])
        theirs = self._request[rows] != code
        rows = rows[theirs & (self._start[rows] < end) & (self._end[rows] > start)]
        begins, ends = intervals.union(self._start[rows], self._end[rows])
        return np.maximum(begins, start), np.minimum(ends, end)

    def at_home(self, thread: int, start: int, end: int) -> tuple[Ints, Ints]:
        """When requests last whose scopes were entered on a thread, within [start, end)."""
        begun, ended, _ = self._entered.get(thread, (EMPTY.start,) * 3)
        begins, ends = np.maximum(begun, start), np.minimum(ended, end)
        return intervals.union(begins[ends > begins], ends[ends > begins])

    def _holding(self, thread: int) -> Pieces:
        rows = self._by_thread[thread]
        if not len(rows):
            return EMPTY
        rows = rows[~self._awaited[rows] & (self._always[rows] | ~self._left(thread, rows))]
        inner = intervals.innermost_wins(self._start[rows], self._end[rows])
        return inner.relabel(self._request[rows]) if len(rows) else EMPTY

    def _left(self, thread: int, rows: Ints) -> Mask:
        """In which spans of a thread, all of its rows, it did something for another request."""
        entered, _, whose = self._entered.get(thread, (EMPTY.start,) * 3)
        times = np.concatenate([self._start[rows], self._end[rows], entered])
        requests = np.concatenate([self._request[rows], self._request[rows], whose])
        order = np.argsort(times, kind="stable")
        times, requests = times[order], requests[order]
        first = np.searchsorted(times, self._start[rows], "right")
        last = np.maximum(np.searchsorted(times, self._end[rows], "left"), first)
        # Events of one request are the places among all events, in a row of their own.
        size = len(times) + 1
        keys = np.sort(requests.astype(np.int64) * size + np.arange(len(times)))
        base = self._request[rows].astype(np.int64) * size
        own = np.searchsorted(keys, base + last) - np.searchsorted(keys, base + first)
        return np.asarray(last - first > own)


def _entered(
    timeline: Timeline, threads: list[tuple[int, int]]
) -> dict[int, tuple[Ints, Ints, Ints]]:
    """When requests began and ended whose scope was entered on a thread, and which, by thread."""
    requests = timeline["requests"]
    if "home_thread" not in requests:
        return {}
    number = {place: n for n, place in enumerate(threads)}
    columns = (requests[name].tolist() for name in ("home_process", "home_thread"))
    homes = np.array([number.get(place, -1) for place in zip(*columns, strict=True)], np.int64)
    homes[requests["arrival"] == UNKNOWN] = -1
    begun, ended, whose = (requests[name] for name in ("arrival", "finished", "id"))
    ended = np.where(ended == UNKNOWN, NEVER, ended)
    rows = RowsBy(homes)
    return {
        thread: (begun[rows[thread]], ended[rows[thread]], whose[rows[thread]])
        for thread in intervals.distinct(homes[homes >= 0]).tolist()
    }
