"""One clock for a job whose ranks ran on several: refined on the ends of collectives.

No rank leaves an all-reduce before every rank has come, and all leave it at about the same time.
So the ends of one collective on two clocks tell how far these are apart, many ends tell it well,
and their scatter tells how well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca_llm.align import edges, warp
from rca_llm.attribute import device
from rca_llm.attribute.clock_fit import Fit, fit
from rca_llm.attribute.collective_parts import Part, parts_of
from rca_llm.attribute.collectives import Collective, match
from rca_llm.attribute.matching import SYMMETRIC
from rca_llm.attribute.ranks import find_ranks
from rca_llm.table import UNKNOWN, Ints, known
from rca_llm.trace import REFERENCE, Clock, Finding, Timeline

SHORT_HALF = 32
"""From this many collectives on, only the shorter half is used: they end most alike."""

OUTLIER_NS = 1_000
"""A collective whose ends differ by less is never called an outlier."""


@dataclass(frozen=True)
class _Ends:
    """Collectives (rows) on clocks (columns): the last arrival, the first and the middle end, ns.

    `UNKNOWN` where none of a clock's ranks took part.
    """

    start: Ints
    first: Ints
    end: Ints
    names: list[str]

    def short(self, left: int, right: int) -> Ints:
        """The rows to compare two clocks by."""
        rows: Ints = np.flatnonzero(known(self.end[:, left]) & known(self.end[:, right]))
        if len(rows) < SHORT_HALF:
            return rows
        sides = [self.first[rows, c] - self.start[rows, c] for c in (left, right)]
        taken = np.minimum(*sides)
        shorter: Ints = rows[taken <= np.median(taken)]
        return shorter


@dataclass(frozen=True)
class _Found:
    """How a clock is corrected, how well, and by how many collectives; which of them disagree."""

    correct: Fit
    uncertainty: int
    collectives: int
    outliers: int
    worst: str
    worst_ns: int


def refine(timelines: Sequence[Timeline], world: int | None = None) -> list[Finding]:
    """Bring the timelines of a job onto the clock of its first rank; what was found on the way.

    Timelines are changed: their times, and `Timeline.clock`. Those that share no symmetric
    collective with the others, directly or through others, keep their times and get None.
    """
    clocks = _clocks(timelines)
    if len(clocks) < 2:
        for timeline in timelines:
            timeline.clock = REFERENCE
        return []
    for number, own in enumerate(clocks):
        for timeline in own:
            timeline.clock = Clock(number, None if number else 0, None if number else 0)
    ends = _ends(match([own for t in timelines for own in _parts(t)], world), len(clocks))
    fits = _fits(ends, len(clocks))
    findings: list[Finding] = []
    for number, own in enumerate(clocks[1:], 1):
        found = fits.get(number)
        findings += _unknown(own, clocks[0]) if found is None else _apply(own, found, clocks[0])
    return findings


def _clocks(timelines: Sequence[Timeline]) -> list[list[Timeline]]:
    """The timelines of each clock; first the reference, which is the lowest rank's known in UTC."""

    def order(timeline: Timeline) -> tuple[bool, int]:
        return not timeline.header.utc, timeline.header.rank or 0

    found: dict[int, list[Timeline]] = {}
    for timeline in sorted(timelines, key=order):
        found.setdefault(timeline.clock.number, []).append(timeline)
    return list(found.values())


def _parts(timeline: Timeline) -> list[list[Part]]:
    """The symmetric collectives of every rank of a timeline."""
    gpu_parts = device.gpu_parts(timeline["gpu"], timeline.strings)
    return [parts_of(timeline, gpu_parts, rank) for rank in find_ranks(timeline)]


def _ends(collectives: Sequence[Collective], clocks: int) -> _Ends:
    """The symmetric collectives that ranks of several clocks took part in."""
    chosen = [one for one in collectives if _tells(one)]
    shape = len(chosen), clocks
    start, first, end = (np.full(shape, UNKNOWN, np.int64) for _ in range(3))
    for row, one in enumerate(chosen):
        by_clock: dict[int, list[Part]] = defaultdict(list)
        for part in one.parts:
            by_clock[part.clock.number].append(part)
        for column, parts in by_clock.items():
            leaving = sorted(part.end for part in parts)
            start[row, column] = max(part.start for part in parts)
            first[row, column] = leaving[0]
            end[row, column] = leaving[(len(leaving) - 1) // 2]
    return _Ends(start, first, end, [_name(one) for one in chosen])


def _tells(collective: Collective) -> bool:
    """Whether a collective tells of clocks: nobody can leave it before all ranks have come."""
    numbers = {part.clock.number for part in collective.parts}
    timed = not collective.timeless
    return timed and len(numbers) > 1 and collective.parts[0].op in SYMMETRIC


def _name(collective: Collective) -> str:
    first = collective.parts[0]
    words = (first.comm, first.op, None if first.seq is None else str(first.seq))
    return " ".join(word for word in words if word)


def _fits(ends: _Ends, clocks: int) -> dict[int, _Found]:
    """How to correct each clock that is tied to the reference, the best tied one first.

    Each is fitted to a clock that is already on the reference's time, and moved onto it itself.
    The reference is preferred: every clock in between adds its own uncertainty.
    """
    present = known(ends.end).astype(np.int64)
    ties: Ints = np.dot(np.transpose(present), present)
    ties[0] *= 2
    found: dict[int, _Found] = {}
    joined, rest = [0], list(range(1, clocks))
    while rest:
        best = np.unravel_index(
            int(np.argmax(ties[np.ix_(joined, rest)])), (len(joined), len(rest))
        )
        near, own = joined[int(best[0])], rest[int(best[1])]
        if not ties[near, own]:
            break
        found[own] = _compare(ends, near, own, found[near].uncertainty if near else 0)
        joined.append(own)
        rest.remove(own)
    return found


def _compare(ends: _Ends, near: int, own: int, inherited: int) -> _Found:
    """Fit one clock to another one, and move its column of `ends` onto that."""
    rows = ends.short(near, own)
    correct = fit(ends.end[rows, own], ends.end[rows, near])
    for column in (ends.start, ends.first, ends.end):
        times = column[:, own]
        column[:, own] = np.where(known(times), times + correct.correction(times), times)
    rows = np.flatnonzero(known(ends.end[:, near]) & known(ends.end[:, own]))
    low = ends.start[rows, near] - ends.first[rows, own]
    high = ends.first[rows, near] - ends.start[rows, own]
    if correct.scatter is None:
        moved, unsure = _within(int(low.max()), int(high.min()))
        correct = replace(correct, base=correct.base + moved)
        for column in (ends.start, ends.first, ends.end):
            column[:, own] += np.where(known(column[:, own]), moved, 0)
    else:
        impossible = np.maximum(low, -high)
        unsure = max(correct.scatter, int(np.ceil(np.quantile(impossible, 0.95))))
    off = np.abs(ends.end[rows, own] - ends.end[rows, near])
    worst = ends.names[int(rows[np.argmax(off)])]
    outliers = int(np.count_nonzero(off > max(2 * unsure, OUTLIER_NS)))
    return _Found(correct, unsure + inherited, len(rows), outliers, worst, int(off.max()))


def _within(low: int, high: int) -> tuple[int, int]:
    """The feasible offset nearest to 0, and how far the true one may be from it, ns."""
    if low > high:
        return 0, max(abs(low), abs(high))
    moved = min(max(0, low), high)
    return moved, max(high - moved, moved - low)


def _apply(own: list[Timeline], found: _Found, reference: list[Timeline]) -> list[Finding]:
    """Correct the timelines of one clock; what is to be said about it."""
    correct = found.correct
    offset = 0
    for timeline in own:
        begin, end = edges(timeline)
        first, last = correct.correction(np.array([begin, end])).tolist()
        offset = first if abs(first) > abs(offset) else offset
        offset = last if abs(last) > abs(offset) else offset
        warp(timeline, correct)
        timeline.header.utc = timeline.header.utc or reference[0].header.utc
        timeline.clock = replace(timeline.clock, offset_ns=first, uncertainty_ns=found.uncertainty)
    where = _where(own)
    findings = [
        Finding("clock_step", 1, where, f"the clock was set by {size:+d} ns at {time} ns on it")
        for time, size in correct.steps
    ]
    if abs(offset) > found.uncertainty or found.outliers:
        findings.append(Finding("clock_offset", 1, where, _told(own[0], found, reference)))
    return findings


def _told(timeline: Timeline, found: _Found, reference: list[Timeline]) -> str:
    """An offset in words."""
    text = (
        f"{timeline.clock.offset_ns:+d} ns (±{found.uncertainty}) added to its times, which were"
        f" off against those of {_where(reference)}; from the ends of {found.collectives}"
        " collectives"
    )
    if found.outliers:
        text += (
            f", of which {found.outliers} disagree: most of all {found.worst:.200}, by"
            f" {found.worst_ns} ns"
        )
    return text


def _unknown(own: list[Timeline], reference: list[Timeline]) -> list[Finding]:
    """The finding that clocks could not be compared; none where they may well be one."""
    hosts = own[0].header.host, reference[0].header.host
    if own[0].header.utc == reference[0].header.utc and (None in hosts or len({*hosts}) == 1):
        return []
    detail = (
        "no all-reduce or the like is shared with other clocks: its offset against"
        f" {_where(reference)} is not known, times are as recorded"
    )
    return [Finding("clock_offset", 1, _where(own), detail)]


def _where(own: list[Timeline]) -> str:
    """The ranks and the host of some timelines."""
    ranks = ", ".join(str(t.header.rank) for t in own if t.header.rank is not None)
    host = own[0].header.host
    names = [f"rank {ranks}" if ranks else own[0].input.path, f"host {host}" if host else ""]
    return ", ".join(filter(None, names))
