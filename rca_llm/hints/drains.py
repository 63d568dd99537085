"""Waits for the device inside steps, after which it stands still until the host goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import COPY_SYNC, SYNC
from rca_llm.attribute.job import Member
from rca_llm.attribute.partition import Recording
from rca_llm.hints import lead, records
from rca_llm.hints.case import Case, Loss, Spans, rank_rows
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.wording import name, plural, time
from rca_llm.intervals import Pieces
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import MEMCPY


@rule(
    "R15",
    "SYNC-BLOCK",
    "scheduling",
    Stage.LAUNCH,
    idle=True,
    disproof="launches that were queued before the synchronisation and run right after it",
)
def synchronisation(case: Case) -> Hint | None:
    """A synchronisation inside a step drains the device.

    Symptom: calls that block the host for `step_share` of the steps, each followed by more launches
    of the same step and by an idle device. A wait at the end of a step is none. Where no calls were
    recorded, copies of a few bytes to the host stand for them: nearly all (`drained`) are followed
    by an idle device, for `ratio` times as long as other kernels are. Source: threads C52, C53,
    C73. Disproof: no gap after the call.
    """
    limits = case.limits("R15")
    return _by_calls(case, limits) or _by_copies(case, limits)


def _by_calls(case: Case, limits: Mapping[str, float]) -> Hint | None:
    """What recorded calls tell."""
    found = [_drains(case, number) for number in range(len(case.job.ranks))]
    best = max(found, key=lambda one: one.blocked.ns, default=None)
    if best is None or not best.calls or best.blocked.share < limits["step_share"]:
        return None
    parts = _DRAINED if best.blocked.steps else _DRAINED[:3]
    gaps, charge = case.of_steps(parts, best.gaps), case.charge(parts, best.gaps)
    if gaps.share < limits["gap_share"] or not charge.ns:
        return None
    where = f" in range {name(best.range)}" if best.range else ""
    tiny = ", each after a copy of a few bytes" if best.tiny * 2 > best.calls else ""
    return Hint(
        f"{name(best.call)}{where} blocks {time(best.blocked.ns)} and drains the GPU"
        f" ({plural(best.calls, 'call')}{tiny})",
        "medium" if best.blocked.steps else "low",
        charge,
        {
            "call": best.call,
            "range": best.range,
            "calls": best.calls,
            "blocked_ns": best.blocked.ns,
            "step_ns": best.blocked.total,
            "step_share": best.blocked.share,
            "gap_ns": gaps.ns,
            "calls_after_tiny_copy": best.tiny,
        },
    )


_DRAINED = ("scheduling.sync", "scheduling.launch", "io.d2h", "scheduling.host", "scheduling.other")
"""What the time after a synchronisation, and of the copy that it waits for, can be charged as."""


class _Drains:
    """Synchronisations of one rank inside steps that are followed by an idle device."""

    def __init__(self, blocked: Loss, calls: int, gaps: Spans, call: str, tiny: int) -> None:
        self.blocked, self.calls, self.gaps = blocked, calls, gaps
        self.call, self.tiny = call, tiny
        self.range: str | None = None


def _drains(case: Case, number: int) -> _Drains:
    member = case.job.ranks[number]
    recording, partition = member
    api, total = recording.timeline["api"], case.of_steps(()).total
    rows = _blocking_calls(member)
    begin, end = _idle_after(member, rows)
    inside = end > begin
    rows, begin, end = rows[inside], begin[inside], end[inside]
    steady = _in_steps(member, partition.steps[case.steady(number)], rows)
    lasting = int((api["end"] - api["start"])[rows[steady]].sum())
    name_code = _most_common(api["name"][rows])
    call = recording.timeline.strings[name_code] if len(rows) else ""
    tiny = int(_after_tiny_copy(recording, rows).sum())
    blocked = Loss(lasting, total or partition.rank.span, len(partition.steps))
    found = _Drains(blocked, len(rows), (begin, end), call, tiny)
    found.range = _range_around(member, rows)
    return found


def _blocking_calls(member: Member) -> Ints:
    """Rows of `api` that wait for the device: synchronisations, and copies of a few bytes."""
    recording, _ = member
    api, gpu, linked = recording.timeline["api"], recording.timeline["gpu"], recording.links.api_row
    size = np.zeros(len(api), np.int64)
    copies = np.flatnonzero((linked >= 0) & (gpu["kind"] == MEMCPY) & known(gpu["bytes"]))
    np.maximum.at(size, linked[copies], gpu["bytes"][copies])
    tiny = (recording.calls == COPY_SYNC) & (size <= records.TINY)
    rows = np.flatnonzero(((recording.calls == SYNC) | tiny) & rank_rows(member, api))
    return rows[np.argsort(api["start"][rows], kind="stable")]


def _idle_after(member: Member, rows: Ints) -> Spans:
    """The idle time that calls leave behind, with the copies of a few bytes that they wait for."""
    recording, partition = member
    api = recording.timeline["api"]
    read = np.append(records.tiny_rows(member), False)[partition.activity.gpu_row]
    own = lead.queue(member, read)
    calls = api["start"][rows], api["end"][rows]
    return lead.lost(member, own, calls, recording.host.api_thread[rows])


def _in_steps(member: Member, chosen: Ints, rows: Ints) -> Mask:
    """Which calls start in some steps; all where there are none."""
    recording, partition = member
    if not len(chosen):
        return np.ones(len(rows), bool)
    spans = intervals.union(recording.steps.start[chosen], partition.step_end[chosen])
    pieces = Pieces(*spans, np.zeros(len(spans[0]), np.int64))
    return np.asarray(intervals.at(pieces, recording.timeline["api"]["start"][rows]) >= 0)


def _most_common(values: Array) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)]) if len(found) else -1


def _after_tiny_copy(recording: Recording, rows: Ints) -> Mask:
    """Which calls end after a copy of at most `records.TINY` bytes as the last device record."""
    gpu, api = recording.timeline["gpu"], recording.timeline["api"]
    place = np.searchsorted(gpu["start"], api["end"][rows], "right") - 1
    size = gpu["bytes"][np.maximum(place, 0)] if len(gpu) else np.zeros(len(rows), np.int64)
    copies = gpu["kind"][np.maximum(place, 0)] == MEMCPY if len(gpu) else np.zeros(len(rows), bool)
    return np.asarray((place >= 0) & copies & known(size) & (size <= records.TINY))


def _range_around(member: Member, rows: Ints) -> str | None:
    """The innermost range, on the calling thread, around most of some calls."""
    recording, _ = member
    api, ranges = recording.timeline["api"], recording.timeline["ranges"]
    if not len(rows) or not len(ranges):
        return None
    timed = np.flatnonzero(known(ranges["start"]) & known(ranges["end"]) & (ranges["name"] >= 0))
    thread = _most_common(api["thread"][rows])
    mine = timed[(ranges["thread"][timed] == thread) & rank_rows(member, ranges)[timed]]
    inner = intervals.innermost_wins(ranges["start"][mine], ranges["end"][mine])
    place = intervals.at(inner, api["start"][rows])
    around = ranges["name"][mine[inner.label[place[place >= 0]]]]
    code = _most_common(around)
    return recording.timeline.strings[code] if code >= 0 and len(around) * 2 >= len(rows) else None


WITHOUT_CALLS = "Trace again with --gpu full: it records the calls that launch and wait."
"""What would tell the host's waits and launches from its other work."""


def _by_copies(case: Case, limits: Mapping[str, float]) -> Hint | None:
    """What copies to the host tell of a rank whose calls were not recorded."""
    ranks = range(len(case.job.ranks))
    found = [one for number in ranks if (one := _drained(case, number)) and one.tells(limits)]
    for one in sorted(found, key=lambda one: -int((one.gaps[1] - one.gaps[0]).sum())):
        lost, charge = case.of_steps(_DRAINED, one.gaps), case.charge(_DRAINED, one.gaps)
        if lost.share >= limits["gap_share"] and charge.ns:
            return Hint(
                f"The host waits for {plural(one.copies, 'read')} of a few bytes inside steps,"
                f" each of which leaves the GPU idle ({charge.told})",
                "low",
                charge,
                {
                    "copies": one.copies,
                    "copies_before_idle": len(one.gaps[0]),
                    "median_gap_ns": one.median,
                    "median_gap_elsewhere_ns": one.elsewhere,
                    "gap_ns": lost.ns,
                    "step_ns": lost.total,
                    "calls_recorded": False,
                },
                advice=WITHOUT_CALLS,
            )
    return None


@dataclass(frozen=True)
class _Drained:
    """Copies of a few bytes to the host amid the work of steps, and the idle time after them.

    `copies` and `gaps` are those of all steps; `judged`, `steady` (ns each) and `elsewhere`, the
    median after other work, those of steady ones.
    """

    copies: int
    judged: int
    gaps: Spans
    steady: Ints
    elsewhere: float

    @property
    def median(self) -> float:
        """The median idle time after a copy, ns."""
        return float(np.median(self.steady))

    def tells(self, limits: Mapping[str, float]) -> bool:
        """Whether the device waits after nearly every one, and longer than it does elsewhere."""
        each = len(self.steady) >= limits["drained"] * self.judged
        return each and self.median >= limits["ratio"] * self.elsewhere


def _drained(case: Case, number: int) -> _Drained | None:
    member = case.job.ranks[number]
    recording, partition = member
    if rank_rows(member, recording.timeline["api"]).any() or not len(partition.steps):
        return None
    gaps, _, copied = _gaps_in(member, partition.steps)
    steady, elsewhere, read = _gaps_in(member, partition.steps[case.steady(number)])
    if not len(steady[0]):
        return None
    return _Drained(
        len(copied),
        len(read),
        gaps,
        (steady[1] - steady[0]),
        records.median(elsewhere[1] - elsewhere[0]) or 0.0,
    )


def _gaps_in(member: Member, steps: Ints) -> tuple[Spans, Spans, Ints]:
    """Idle times amid the work of some steps: after small reads, after others; ends of reads."""
    edges = records.first_and_last_work(member[0], member[1].step_of)
    first, last = (edge[steps] for edge in edges)
    windows = intervals.union(first[last > first], last[last > first])
    copied = records.tiny_copies(member)
    copied = copied[intervals.touching(copied, copied + 1, windows)]
    start, end = records.idle_between(member, windows)
    after = np.isin(start, copied)
    return (start[after], end[after]), (start[~after], end[~after]), copied
