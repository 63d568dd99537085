"""Requests of a run, put together from the events that its processes recorded."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rca_llm.readers.run_ends import Ends
from rca_llm.table import NEVER, NO_TEXT, UNKNOWN, Strings, Table
from rca_llm.trace import REQUESTS, TOKENS, Timeline, quoted

_FIRST = ("client_submit", "arrival", "scheduled", "first_token")
_COUNTS = ("prompt_tokens", "output_tokens")


@dataclass
class Request:
    """What is known of one request: first times, counts, tokens, and its scopes."""

    times: dict[str, int] = field(default_factory=dict[str, int])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    tokens: list[int] = field(default_factory=list[int])
    """When they left the engine: a time for each piece, which may hold several."""
    token_count: int = 0
    finished: int = UNKNOWN
    status: str | None = None
    opened: int = UNKNOWN
    home: tuple[int, int] = UNKNOWN, UNKNOWN
    """The process and thread of the first scope."""
    closed: int = UNKNOWN
    open_scopes: dict[int, int] = field(default_factory=dict[int, int])
    """When the last scope of each process began that was never left."""
    told: dict[int, int] = field(default_factory=dict[int, int])
    """The last event of each process."""
    failed: bool = False
    scopes: array[int] = field(default_factory=lambda: array("q"))
    """Start, end, process and thread of each scope that was left, one after another."""
    last_arrival: int = UNKNOWN
    first_end: int = NEVER
    """The first event that says it ended."""


class Requests:
    """Collects request events and scopes by id."""

    def __init__(self) -> None:
        self.by_id: dict[str, Request] = {}

    def _of(self, request: str) -> Request:
        found = self.by_id.get(request)
        if found is None:
            found = self.by_id[request] = Request()
        return found

    def event(self, request: str, name: str, time: int, count: int, process: int) -> None:
        """One REQUEST cell: a time, or a count."""
        found = self._of(request)
        found.told[process] = max(found.told.get(process, time), time)
        if name in _COUNTS:
            found.counts[name] = count if count >= 0 else UNKNOWN
            return
        if name in ("token", "first_token"):
            found.tokens.append(time)
            found.token_count += count
        if name in ("finished", "aborted"):
            found.finished = max(found.finished, time)
            found.first_end = min(found.first_end, time)
            found.status = "aborted" if "aborted" in (name, found.status) else name
        elif name in _FIRST:
            if name == "arrival":
                found.last_arrival = max(found.last_arrival, time)
            found.times[name] = min(found.times.get(name, time), time)

    def scope(
        self, request: str, times: tuple[int, int | None], home: tuple[int, int], failed: bool
    ) -> None:
        """One scope of a process and thread; its end is None where it was never left."""
        found, (start, end) = self._of(request), times
        if found.opened == UNKNOWN or start < found.opened:
            found.opened, found.home = start, home
        if end is None:
            process = home[0]
            found.open_scopes[process] = max(found.open_scopes.get(process, start), start)
            return
        found.scopes.extend((start, end, *home))
        if end >= found.closed:
            found.closed, found.failed = end, failed

    def note(self, timeline: Timeline) -> None:
        """Tell of ids that several requests seem to have, one after another."""
        again = [name for name, found in self.by_id.items() if _is_reused(found)]
        timeline.note(
            "contradicting_requests",
            len(again),
            "requests",
            f"ids that came again after they had ended, as {quoted(next(iter(again), ''))}; each is"
            " taken as one request from the first arrival to the last end: if they are several,"
            " give each an id of its own",
        )

    def tables(self, strings: Strings, ends: Ends) -> tuple[Table, Table]:
        """The `requests` and `tokens` rows."""
        rows = [_row(name, found, ends) for name, found in self.by_id.items()]
        columns = {
            name: _column(name, [row[name] for row in rows], strings) for name in REQUESTS if rows
        }
        ids = [name for name, found in self.by_id.items() for _ in found.tokens]
        times = [time for found in self.by_id.values() for time in sorted(found.tokens)]
        tokens = Table(TOKENS, {"request": strings.codes(ids), "t": times})
        return Table(REQUESTS, columns), tokens


def _is_reused(found: Request) -> bool:
    """Whether a request seems to be several: it arrived again after it had ended.

    Without events that tell, whether its scopes are entered one after another by one thread, with
    a time between in which no scope is open. Where another thread goes on, it was handed over.
    """
    if found.last_arrival != UNKNOWN or found.first_end != NEVER:
        return found.last_arrival > found.first_end
    told = found.scopes
    if len(told) <= _SCOPE or found.open_scopes:
        return False
    scopes = sorted(zip(*(told[place::_SCOPE] for place in range(_SCOPE)), strict=True))
    _, reach, *last = scopes[0]
    for start, end, *home in scopes[1:]:
        if start > reach and home == last:
            return True
        if end >= reach:
            reach, last = end, home
    return False


_SCOPE = 4
"""Numbers of one scope in `Request.scopes`."""

Value = int | str | None


def _row(name: str, found: Request, ends: Ends) -> dict[str, Value]:
    """A request's row; what its events leave open is taken from its scopes."""
    row: dict[str, Value] = {"id": name, "status": found.status, "finished": found.finished}
    row.update({key: found.times.get(key, UNKNOWN) for key in _FIRST})
    row.update({key: found.counts.get(key, UNKNOWN) for key in _COUNTS})
    row["until"] = UNKNOWN
    row["home_process"], row["home_thread"] = found.home
    if row["arrival"] == UNKNOWN:
        row["arrival"] = found.opened
    if found.finished == UNKNOWN:
        row.update(_finish(found, ends))
    if row["first_token"] == UNKNOWN and found.tokens:
        row["first_token"] = min(found.tokens)
    # An engine that says it does not know is believed, whatever tokens were seen.
    if "output_tokens" not in found.counts and found.token_count:
        row["output_tokens"] = found.token_count
    return row


def _finish(found: Request, ends: Ends) -> dict[str, Value]:
    """How a request ended of which no event tells that: its last scope was left, or died open.

    One that a process died in, or in which it became another program, ended with that process; the
    request goes on while others handle it.
    """
    until = _until(found.open_scopes or found.told, ends)
    died_before = until != UNKNOWN and until <= found.closed
    if found.closed != UNKNOWN and (not found.open_scopes or died_before):
        return {"finished": found.closed, "status": "aborted" if found.failed else "finished"}
    return {"until": until}


def _until(last: Mapping[int, int], ends: Ends) -> int:
    """When the last of some processes ended, each after an instant; UNKNOWN where one may live."""
    found = [ends.after(process, time) for process, time in last.items()]
    known = [end[0] for end in found if end is not None]
    return max(known) if known and len(known) == len(found) else UNKNOWN


def _column(name: str, values: list[Value], strings: Strings) -> list[int]:
    code: Callable[[str | None], int] = strings.code
    if REQUESTS[name] == "text":
        return [code(value) if isinstance(value, str) else NO_TEXT for value in values]
    return [value if isinstance(value, int) else UNKNOWN for value in values]
