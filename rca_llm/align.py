"""One clock and one job: UTC times, side files joined to their rank, ranks checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rca_llm.attribute import pauses
from rca_llm.attribute.ranks import FIRST_RANK, find_ranks
from rca_llm.table import NEVER, NO_TEXT, Array, Ints, Table, known
from rca_llm.trace import PAUSES, TABLES, Clock, Finding, Timeline, Trace

CLOCK_STEP_NS = 1_000_000
"""Anchors that disagree by more than this tell of a stepped clock."""


DIGEST = "digest"
"""Key in `Header.extra` of a digest of all records, where a timeline holds but some of them."""


def align(trace: Trace) -> Trace:
    """Bring all timelines of a trace onto UTC and join those that belong together."""
    to_utc(trace.timelines)
    findings = list(trace.findings)
    timelines = _join_side_files(trace.timelines)
    timelines, foreign = _of_one_job(timelines)
    timelines, doubles = _one_for_each_rank(timelines)
    _number_ranks(timelines)
    return Trace(timelines, [*findings, *foreign, *doubles, *_missing_ranks(timelines)])


def to_utc(timelines: Sequence[Timeline]) -> None:
    """Shift the times of every timeline by its anchors, and number the clocks.

    Files of one known host share a clock. If their anchors agree, the median of all shifts them
    all: each file by its own would move them against each other by the jitter of the anchors. If
    they do not, the host's UTC was set in between, or their own clocks began at different times.
    """
    clocks: dict[tuple[object, ...], int] = {}
    for place, own in _by_host(timelines).items():
        offsets = [_offset(timeline) for timeline in own]
        stated = [offset for offset in offsets if offset is not None]
        agree = max(stated, default=0) - min(stated, default=0) <= CLOCK_STEP_NS
        for timeline, offset in zip(own, offsets, strict=True):
            key: tuple[object, ...] = (*place, timeline.header.utc or offset is not None)
            if offset is not None:
                shift(timeline, _middle(stated) if agree else offset)
                timeline.header.utc = True
                key = key if agree else (*key, offset)
            timeline.clock = Clock(clocks.setdefault(key, len(clocks)))


def _by_host(timelines: Sequence[Timeline]) -> dict[tuple[object, ...], list[Timeline]]:
    """The timelines of each host; one whose host is not known is by itself."""
    found: dict[tuple[object, ...], list[Timeline]] = {}
    for number, timeline in enumerate(timelines):
        host = timeline.header.host
        found.setdefault((number,) if host is None else (host,), []).append(timeline)
    return found


def _offset(timeline: Timeline) -> int | None:
    """What the anchors of a timeline say brings it onto UTC; None where it is, or none do."""
    header = timeline.header
    if header.utc or not header.anchors:
        return None
    offsets = [utc - own for own, utc in header.anchors]
    spread = max(offsets) - min(offsets)
    if spread > CLOCK_STEP_NS:
        timeline.note("clock_step", 1, timeline.input.path, f"UTC moved by {spread} ns")
    return _middle(offsets)


def _middle(values: Sequence[int]) -> int:
    """The lower median."""
    return sorted(values)[(len(values) - 1) // 2]


class Correction(Protocol):
    """How times of one clock become those of another."""

    def correction(self, times: Ints) -> Ints:
        """What to add to each time, ns."""
        ...


@dataclass(frozen=True)
class Shift:
    """The same offset, ns, for all times."""

    offset: int

    def correction(self, times: Ints) -> Ints:
        """What to add to each time, ns."""
        return np.full(len(times), self.offset, np.int64)


@dataclass(frozen=True)
class Joined:
    """That another timeline was absorbed: where its records are, and what was done to it before."""

    origin: Any
    history: tuple[Any, ...]


def shift(timeline: Timeline, offset: int) -> None:
    """Add an offset, ns, to every known time of a timeline."""
    warp(timeline, Shift(offset))


def warp(timeline: Timeline, correct: Correction) -> None:
    """Correct every known time of a timeline, those of its pauses too."""
    timeline.history.append(correct)
    _move_pauses(timeline.header.extra, correct)
    for name, table in timeline.tables.items():
        moved = {
            column: np.where(known(values), values + correct.correction(values), values)
            for column, values in table.known.items()
            if TABLES[name][column] == "time"
        }
        timeline.tables[name] = table.with_columns(**moved)


def _move_pauses(extra: dict[str, Any], correct: Correction) -> None:
    """Correct the pauses of a header; one that never ended does not end now."""
    pairs = pauses.pairs(extra.get(PAUSES))
    if not pairs:
        return
    times = np.array(pairs, np.int64)
    lasting = times != NEVER
    moved = times + np.where(lasting, correct.correction(times.ravel()).reshape(times.shape), 0)
    extra[PAUSES] = [(start, end) for start, end in moved.tolist()]


def edges(timeline: Timeline) -> tuple[int, int]:
    """The first and the last time of a timeline, 0 where it has none."""
    times = [
        values[known(values)]
        for name, table in timeline.tables.items()
        for column, values in table.known.items()
        if TABLES[name][column] == "time"
    ]
    times = [values for values in times if len(values)]
    if not times:
        return 0, 0
    return min(int(v.min()) for v in times), max(int(v.max()) for v in times)


def redo(history: Iterable[Any], timeline: Timeline, find: Callable[[Any], Timeline]) -> None:
    """Do to a timeline what was done to another of the same recording.

    `find` gives the timeline of the recording that an origin names.
    """
    for change in history:
        if isinstance(change, Joined):
            other = find(change.origin)
            redo(change.history, other, find)
            absorb(timeline, other)
        else:
            warp(timeline, change)


def _join_side_files(timelines: list[Timeline]) -> list[Timeline]:
    """Add files that say which other file's rank they belong to, to that file."""
    names = {_basename(t.input.path): t for t in timelines if t.header.same_rank_as is None}
    kept: list[Timeline] = []
    for timeline in timelines:
        wanted = timeline.header.same_rank_as
        target = names.get(_basename(wanted)) if wanted is not None else None
        if target is None:
            kept.append(timeline)
        else:
            absorb(target, timeline)
    return kept


def _basename(path: str) -> str:
    """The name of a file, whatever compression it stands under."""
    name = os.path.basename(path.rstrip("/"))
    return name.removesuffix(".gz").removesuffix(".zst")


def absorb(target: Timeline, other: Timeline) -> None:
    """Append the tables of a timeline to those of another on the same clock."""
    target.history.append(Joined(other.origin, tuple(other.history)))
    codes = target.strings.codes(other.strings.texts)
    for name, table in other.tables.items():
        steps_before = len(target["steps"])
        moved = _recoded(name, table, codes)
        if name == "batch":
            steps_before -= len(other["steps"])
            moved = moved.with_columns(step=moved["step"] + steps_before)
        target.add(name, moved)
    target.findings += other.findings
    target.devices += other.devices
    target.header.extra.setdefault("side_files", []).append(other.input)
    _join_pauses(target.header.extra, other.header.extra)
    target.header.graph_level = target.header.graph_level or other.header.graph_level
    target.header.engine = target.header.engine or other.header.engine


def _join_pauses(extra: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the pauses of an absorbed timeline: what it would have told of them is not known."""
    added = pauses.pairs(more.get(PAUSES))
    if added:
        extra[PAUSES] = [*pauses.pairs(extra.get(PAUSES)), *added]


def _recoded(name: str, table: Table, codes: Array) -> Table:
    lookup = np.append(codes, NO_TEXT)
    texts = {
        column: lookup[values]
        for column, values in table.known.items()
        if TABLES[name][column] == "text"
    }
    return table.with_columns(**texts)


def _of_one_job(timelines: list[Timeline]) -> tuple[list[Timeline], list[Finding]]:
    """Leave out files that name another job, or another number of ranks, than most others do.

    Where no job has the majority, all stay, and the finding says so.
    """
    named = {id(t): (t.header.job, t.header.world_size) for t in timelines}
    votes = Counter(name for name in named.values() if name != (None, None))
    if len(votes) < 2:
        return timelines, []
    usual, most = votes.most_common(1)[0]
    decided = 2 * most > sum(votes.values())
    foreign = [t for t in timelines if named[id(t)] not in (usual, (None, None))]
    findings = [
        Finding(
            "foreign_rank",
            1,
            t.input.path,
            f"belongs to {_job_name(t)}, most files to {_name(usual)}; "
            + ("left out" if decided else "kept, since no job has the majority"),
        )
        for t in foreign
    ]
    return [t for t in timelines if not decided or t not in foreign], findings


def _job_name(timeline: Timeline) -> str:
    return _name((timeline.header.job, timeline.header.world_size))


def _name(job: tuple[str | None, int | None]) -> str:
    """A job in words: its name, and how many ranks it has."""
    name, size = job
    ranks = "" if size is None else f" of {size} ranks"
    return f"job {name}{ranks}" if name is not None else f"a job{ranks}"


def _one_for_each_rank(timelines: list[Timeline]) -> tuple[list[Timeline], list[Finding]]:
    """Leave out copies of a file, and join the files that say they are of one rank."""
    kept: dict[tuple[object, ...], Timeline] = {}
    seen: dict[tuple[object, ...], list[Timeline]] = {}
    findings: list[Finding] = []
    joined: list[tuple[Timeline, Timeline]] = []
    for timeline in timelines:
        header, path = timeline.header, timeline.input.path
        alike = seen.setdefault(_identity(timeline), [])
        first = next((other for other in alike if _same_records(timeline, other)), None)
        alike.append(timeline)
        place: tuple[object, ...] = (id(timeline),)
        if header.rank is not None:
            place = header.job, header.world_size, header.host, header.rank
        if first is not None:
            detail = f"holds the same records as {first.input.path}; left out"
            findings.append(Finding("duplicate_rank", 1, path, detail))
        elif place in kept:
            detail = f"is of the same rank as {kept[place].input.path}; read as one"
            findings.append(Finding("merged_inputs", 1, path, detail))
            joined.append((kept[place], timeline))
        else:
            kept[place] = timeline
    for target, other in joined:
        absorb(target, other)
    return list(kept.values()), findings


def _identity(timeline: Timeline) -> tuple[object, ...]:
    """What two copies of one recording have in common at least; quick to find."""
    header = timeline.header
    sizes = tuple((name, len(table)) for name, table in sorted(timeline.tables.items()))
    return header.job, header.rank, header.host, sizes


def _same_records(one: Timeline, other: Timeline) -> bool:
    """Whether two timelines with equally long tables are equal in every field."""
    marks = one.header.extra.get(DIGEST), other.header.extra.get(DIGEST)
    if None not in marks:
        return marks[0] == marks[1]
    if one.strings.texts != other.strings.texts:
        return False
    return all(
        table.known.keys() == other[name].known.keys()
        and all(
            np.array_equal(values, other[name][column], equal_nan=values.dtype.kind == "f")
            for column, values in table.known.items()
        )
        for name, table in one.tables.items()
    )


def _number_ranks(timelines: Sequence[Timeline]) -> None:
    """Number the files of a job in the order given, where they do not say their rank.

    Of files that hold several ranks each, those that count from 0 again are counted on.
    """
    if len(timelines) < 2 or any(t.header.rank is not None for t in timelines):
        return
    numbers = [[rank.number for rank in find_ranks(timeline)] for timeline in timelines]
    if all(len(own) == 1 for own in numbers):
        for number, timeline in enumerate(timelines):
            timeline.header.rank = number
    elif len({n for own in numbers for n in own}) < sum(map(len, numbers)):
        first = 0
        for own, timeline in zip(numbers, timelines, strict=True):
            timeline.header.extra[FIRST_RANK] = first
            first += max(own) + 1


def _missing_ranks(timelines: Sequence[Timeline]) -> list[Finding]:
    missing = missing_ranks(timelines)
    if not missing or len(timelines) < 2:
        return []
    names = ", ".join(map(str, missing))
    size = max(t.header.world_size or 0 for t in timelines)
    detail = "no file of these ranks was given; nothing is known of them"
    return [Finding("missing_rank", len(missing), f"rank {names} of {size}", detail)]


def missing_ranks(timelines: Sequence[Timeline]) -> list[int]:
    """The ranks that the job has and no timeline covers."""
    sizes = [t.header.world_size for t in timelines if t.header.world_size]
    present = {t.header.rank for t in timelines if t.header.rank is not None}
    return sorted(set(range(max(sizes, default=0))) - present) if present else []
