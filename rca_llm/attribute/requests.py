"""The requests of a timeline, as their records or the names of ranges tell of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.table import Ints, optional
from rca_llm.trace import Timeline

_NAMED_REQUEST = re.compile(r"request[ _#:\-]+(\S+)$", re.IGNORECASE)
"""A range that is the whole life of a request."""


@dataclass(frozen=True)
class Request:
    """What was recorded of a request; times are ns, None where not known."""

    id: str
    arrival: int | None
    client_submit: int | None = None
    scheduled: int | None = None
    first_token: int | None = None
    finished: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    until: int | None = None
    """How long one that never finished is known to have lasted."""
    aborted: bool = False
    tokens: tuple[int, ...] = ()
    preempted: tuple[tuple[int, int | None], ...] = ()
    """Times of preemption, each with the time of resumption where that is known."""

    @property
    def status(self) -> str:
        """The contract's `status`."""
        if self.aborted:
            return "aborted"
        return "unfinished" if self.finished is None else "finished"


def requests_of(timeline: Timeline) -> list[Request]:
    """The requests of a timeline; those that range names tell of only where none were recorded."""
    table = timeline["requests"]
    if not len(table):
        return _from_ranges(timeline)
    tokens, marks = _tokens(timeline), _marks(timeline)
    found: dict[str, Request] = {}
    for row in np.flatnonzero(table["id"] >= 0).tolist():
        request = _recorded(timeline, row, tokens, marks)
        earlier = found.get(request.id)
        found[request.id] = request if earlier is None else _merged(earlier, request)
    return [believed(request) for request in found.values()]


def believed(request: Request) -> Request:
    """A request without the times that its arrival and its end contradict.

    Of these a time to first token, or between tokens, would be made up. One that ends before it
    arrives has no life that its times could lie outside of.
    """
    begin, end = request.arrival, request.finished
    if begin is not None and end is not None and end < begin:
        return request
    times = (request.scheduled, request.first_token, *request.tokens[:1], *request.tokens[-1:])
    if all(_lies_in(time, begin, end) for time in times):
        return request
    tokens = request.tokens
    return replace(
        request,
        scheduled=request.scheduled if _lies_in(request.scheduled, begin, end) else None,
        first_token=request.first_token if _lies_in(request.first_token, begin, end) else None,
        tokens=tokens if all(_lies_in(time, begin, end) for time in tokens) else (),
    )


def _lies_in(time: int | None, begin: int | None, end: int | None) -> bool:
    """Whether a time, if known, is neither before the one nor after the other, if known."""
    return time is None or ((begin is None or time >= begin) and (end is None or time <= end))


def _merged(one: Request, other: Request) -> Request:
    """Two records of one request: of each field the first that is known."""
    known_fields = {
        name: value for name, value in vars(one).items() if value not in (None, (), False)
    }
    return replace(other, **known_fields)


def _recorded(
    timeline: Timeline,
    row: int,
    tokens: dict[int, tuple[int, ...]],
    marks: dict[int, list[tuple[int, str]]],
) -> Request:
    table = timeline["requests"]
    code = int(table["id"][row])
    events = marks.get(code, [])
    aborted = next((t for t, name in events if name == "aborted"), None)
    stated = timeline.text(int(table["status"][row])) == "aborted"
    seen = [t for t, name in events if name == "scheduled"]
    finished = optional(table["finished"][row])
    scheduled = optional(table["scheduled"][row])
    token_times = tokens.get(code, ())
    first = optional(table["first_token"][row])
    return Request(
        id=timeline.strings[code],
        arrival=_arrival(optional(table["arrival"][row]), events),
        client_submit=optional(table["client_submit"][row]),
        scheduled=scheduled if scheduled is not None else min(seen, default=None),
        first_token=first if first is not None else min(token_times, default=None),
        finished=finished if finished is not None else aborted,
        prompt_tokens=optional(table["prompt_tokens"][row]),
        output_tokens=optional(table["output_tokens"][row]),
        until=optional(table["until"][row]),
        aborted=stated or aborted is not None,
        tokens=token_times,
        preempted=tuple(_preemptions(events)),
    )


def _arrival(stated: int | None, events: list[tuple[int, str]]) -> int | None:
    if stated is not None:
        return stated
    return min((t for t, name in events if name in ("arrival", "queued")), default=None)


def _preemptions(events: list[tuple[int, str]]) -> Iterator[tuple[int, int | None]]:
    """Each preemption with the resumption or renewed scheduling that follows it."""
    begun: int | None = None
    for t, name in events:
        if name == "preempted" and begun is None:
            begun = t
        elif name in ("resumed", "scheduled") and begun is not None:
            yield begun, t
            begun = None
    if begun is not None:
        yield begun, None


def _tokens(timeline: Timeline) -> dict[int, tuple[int, ...]]:
    table = timeline["tokens"].sorted_by("request", "t")
    codes = table["request"]
    return {
        int(codes[rows.start]): tuple(table["t"][rows].tolist()) for rows in intervals.runs(codes)
    }


def _marks(timeline: Timeline) -> dict[int, list[tuple[int, str]]]:
    table = timeline["marks"].sorted_by("request", "t")
    codes, names = table["request"], table["name"]
    return {
        int(codes[rows.start]): [
            (int(t), timeline.strings[int(name)])
            for t, name in zip(table["t"][rows], names[rows], strict=True)
        ]
        for rows in intervals.runs(codes)
    }


def named_rows(timeline: Timeline) -> Ints:
    """The rows of `ranges` that are the whole life of a request by their name."""
    names = timeline["ranges"]["name"]
    return np.flatnonzero(among(names, list(_named(timeline))))


def _named(timeline: Timeline) -> dict[int, str]:
    """The id of the request that each name (a text code) of such ranges tells."""
    codes = np.unique(timeline["ranges"]["name"]).tolist()
    found = {code: _NAMED_REQUEST.match(timeline.strings[code]) for code in codes}
    return {code: match.group(1) for code, match in found.items() if match}


def _from_ranges(timeline: Timeline) -> list[Request]:
    ranges, named = timeline["ranges"], _named(timeline)
    lives: dict[str, Request] = {}
    uses: dict[str, int] = {}
    for row in named_rows(timeline).tolist():
        id, start = _unused(named[int(ranges["name"][row])], lives, uses), int(ranges["start"][row])
        lives[id] = Request(id, start, finished=optional(ranges["end"][row]))
    return sorted(lives.values(), key=lambda request: request.arrival or 0)


def _unused(id: str, taken: dict[str, Request], uses: dict[str, int]) -> str:
    """`id`, or where it is taken `id'`, `id'3`, `id'4` …; `uses` counts how often each was asked.

    The count makes a name that comes back a million times cost no more than a million names.
    """
    name = id
    while name in taken:
        uses[id] = uses.get(id, 1) + 1
        name = f"{id}'" if uses[id] == 2 else f"{id}'{uses[id]}"
    return name
