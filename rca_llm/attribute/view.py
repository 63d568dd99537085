"""The segments that a request sees: those of the rank that holds its step up at each instant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.collectives import Collective
from rca_llm.attribute.job import Member
from rca_llm.attribute.partition import Segments
from rca_llm.intervals import Pieces


@dataclass(frozen=True)
class _Hold:
    """From `start` to `end`, `rank` (an index) holds up the engine's step `step` (a row)."""

    start: int
    end: int
    rank: int
    step: int


def engine_view(ranks: Sequence[Member], own: int, collectives: Sequence[Collective]) -> Segments:
    """The segments of one rank, replaced inside its steps by those of the rank that is awaited.

    Up to the last arrival at a collective that is the rank which arrives last; after the last
    collective of a step, the rank that finishes the step last.
    """
    holds = [hold for hold in _holds(ranks, own, collectives) if hold.end > hold.start]
    foreign = [hold for hold in holds if hold.rank != own]
    segments = ranks[own][1].segments
    if not foreign:
        return segments
    start, end = intervals.union(_column(foreign, "start"), _column(foreign, "end"))
    free = intervals.complement(start, end, ranks[own][1].rank.start, ranks[own][1].rank.end)
    views = [_restricted(segments, free, None)]
    for number, (_, partition) in enumerate(ranks):
        mine = [hold for hold in foreign if hold.rank == number]
        if mine:
            spans = _column(mine, "start"), _column(mine, "end")
            views.append(_restricted(partition.segments, spans, _column(mine, "step")))
    joined = Segments(*(np.concatenate([getattr(v, n) for v in views]) for n in _FIELDS))
    return joined.take(np.argsort(joined.start, kind="stable"))


_FIELDS = ("start", "end", "part", "step", "activity")


def _column(holds: Sequence[_Hold], name: str) -> np.ndarray:
    return np.array([getattr(hold, name) for hold in holds], np.int64)


def _restricted(
    segments: Segments, spans: tuple[np.ndarray, np.ndarray], step: np.ndarray | None
) -> Segments:
    """What of some segments lies within spans; with `step` given, every span's step."""
    rows = Pieces(segments.start, segments.end, np.arange(len(segments)))
    found = intervals.within(rows, spans)
    row = found.label
    steps = segments.step[row]
    if step is not None:
        steps = step[np.searchsorted(spans[0], found.start, "right") - 1]
    nothing = np.full(len(row), -1, np.int64)
    return Segments(found.start, found.end, segments.part[row], steps, nothing)


def _holds(ranks: Sequence[Member], own: int, collectives: Sequence[Collective]) -> Iterator[_Hold]:
    recording, partition = ranks[own]
    arrivals = _arrivals(ranks, collectives)
    times = np.array([t for t, _ in arrivals], np.int64)
    others = [_rows_by_id(member) for member in ranks]
    for row in partition.steps.tolist():
        start, end = int(recording.steps.start[row]), int(partition.step_end[row])
        id = int(recording.steps.id[row])
        ends = {
            number: int(ranks[number][1].step_end[found[id]])
            for number, found in enumerate(others)
            if id in found and _overlap(ranks[number], found[id], start, end)
        }
        finish = max(ends.values(), default=end)
        first = int(np.searchsorted(times, start, "left"))
        last = int(np.searchsorted(times, finish, "right"))
        begin = start
        for arrived, rank in arrivals[first:last]:
            yield _Hold(begin, arrived, rank, row)
            begin = arrived
        slowest = own if ends.get(own) == finish else max(ends, key=lambda n: ends[n], default=own)
        yield _Hold(begin, finish, slowest, row)


def _arrivals(ranks: Sequence[Member], collectives: Sequence[Collective]) -> list[tuple[int, int]]:
    """When the last rank came to each collective, and which (an index), in order."""
    index = {partition.rank.number: number for number, (_, partition) in enumerate(ranks)}
    found: list[tuple[int, int]] = []
    for collective in collectives:
        arrived = collective.arrived
        if arrived is not None:
            last = max(collective.parts, key=lambda part: part.start)
            found.append((arrived, index[last.rank]))
    return sorted(found)


def _rows_by_id(member: Member) -> dict[int, int]:
    recording, partition = member
    return {int(recording.steps.id[row]): row for row in partition.steps.tolist()}


def _overlap(member: Member, row: int, start: int, end: int) -> bool:
    recording, partition = member
    return int(recording.steps.start[row]) < end and int(partition.step_end[row]) > start
