"""What rules read from the records of a job: steps, spans, samples and thread states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.device import busy_rows
from rca_llm.attribute.job import Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import codes
from rca_llm.hints.case import Case, Spans, over, rank_rows, used
from rca_llm.hints.model import Charge
from rca_llm.hints.wording import name
from rca_llm.table import UNKNOWN, Array, Ints, Mask, Table, known
from rca_llm.trace import COPY_KINDS, MEMCPY

NO_SPANS: Spans = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Span:
    """A host span: where it was recorded, what it is called, when it ran."""

    recording: Recording
    kind: str
    name: str
    process: int
    thread: int
    start: int
    end: int
    request: str | None
    path: str | None

    @property
    def ns(self) -> int:
        """How long it lasted."""
        return self.end - self.start


def spans_of(case: Case, *kinds: str) -> list[Span]:
    """The spans of some kinds, by recording and start."""
    return [
        Span(
            recording,
            recording.timeline.strings[int(table["kind"][row])],
            recording.timeline.strings[int(table["name"][row])],
            int(table["process"][row]),
            int(table["thread"][row]),
            int(table["start"][row]),
            int(table["end"][row]),
            recording.timeline.text(int(table["request"][row])),
            recording.timeline.text(int(table["path"][row])),
        )
        for recording in case.job.recordings
        for table in [case.spans(recording, *kinds)]
        for row in range(len(table))
    ]


def as_spans(found: Sequence[Span]) -> Spans:
    """The times of some spans."""
    return (
        np.array([span.start for span in found], np.int64),
        np.array([span.end for span in found], np.int64),
    )


def joined(several: Sequence[Spans]) -> Spans:
    """Several sets of times as one."""
    if not several:
        return NO_SPANS
    return (
        np.concatenate([start for start, _ in several]),
        np.concatenate([end for _, end in several]),
    )


def spans_named(case: Case, pattern: re.Pattern[str]) -> Spans:
    """The times of all ranges whose name a pattern finds."""
    found: list[Spans] = []
    for recording in case.job.recordings:
        ranges = recording.timeline["ranges"]
        rows = named_rows(recording, ranges, pattern)
        found.append((ranges["start"][rows], ranges["end"][rows]))
    return joined(found)


def named_rows(recording: Recording, table: Table, pattern: re.Pattern[str]) -> Ints:
    """The rows of a table whose name a pattern finds, and that have a time."""
    strings = recording.timeline.strings
    names = used(table["name"])
    wanted = [code for code in names if pattern.search(strings[code])]
    hit = np.isin(table["name"], wanted)
    return np.flatnonzero(hit & known(table["start"]) & known(table["end"]))


def rank_of(case: Case, process: int, recording: Recording) -> int | None:
    """The number of the rank that a process belongs to."""
    for own, partition in case.job.ranks:
        if own is recording and process in partition.rank.processes:
            return partition.rank.number
    return recording.timeline.header.rank


def step_spans(case: Case) -> Spans:
    """The union of the steps of all ranks."""
    found = [_steps_of(member) for member in case.job.ranks]
    return intervals.union(*joined(found))


def _steps_of(member: Member) -> Spans:
    recording, partition = member
    return recording.steps.start[partition.steps], partition.step_end[partition.steps]


def step_time(case: Case) -> int:
    """How long any step ran, ns; the whole window where there are no steps."""
    start, end = step_spans(case)
    if len(start):
        return int((end - start).sum())
    return max((partition.rank.span for _, partition in case.job.ranks), default=0)


def step_count(case: Case) -> int:
    """How many steps the rank with most steps made, at least 1."""
    return max((len(partition.steps) for _, partition in case.job.ranks), default=1) or 1


def recomputed(case: Case) -> tuple[int, int, dict[str, int]]:
    """Tokens computed again, all tokens computed, and the repeats of every request."""
    lost: Counter[str] = Counter()
    whole = 0
    for recording in _with_batches(case):
        batch, strings = recording.steps.batch, recording.timeline.strings
        tokens = np.where(known(batch["tokens"]), batch["tokens"], 0)
        whole += int(tokens.sum())
        for life in case.lives:
            lost[life.request.id] += _repeats(recording, batch, tokens, strings.find, life)
    return sum(lost.values()), whole, {id: n for id, n in lost.items() if n}


def _with_batches(case: Case) -> Iterator[Recording]:
    """Recordings that list the requests of their steps; of ranks that tell the same, one."""
    seen: set[tuple[int, ...]] = set()
    for recording in case.job.recordings:
        key = (len(recording.steps), *recording.steps.id[:1].tolist())
        if len(recording.steps.batch) and key not in seen:
            seen.add(key)
            yield recording


def _repeats(recording: Recording, batch: Table, tokens: Ints, find: object, life: Life) -> int:
    """The tokens that a request computes again: told so, or prefilled after a preemption."""
    strings = recording.timeline.strings
    mine = batch["request"] == strings.find(life.request.id)
    again = mine & (batch["phase"] == strings.find("recompute"))
    if life.request.preempted:
        since = life.request.preempted[0][0]
        begun = np.append(recording.steps.start, UNKNOWN)[batch["step"]]
        again |= mine & (batch["phase"] == strings.find("prefill")) & (begun >= since)
    return int(tokens[again & (batch["phase"] >= 0)].sum())


def accepted_length(case: Case) -> float | None:
    """Tokens a request gains per decode step that verifies several; None without speculation."""
    rows = gained = 0
    for recording in _with_batches(case):
        batch, strings = recording.steps.batch, recording.timeline.strings
        decode = batch["phase"] == strings.find("decode")
        if not (decode & (batch["tokens"] > 1)).any():
            continue
        for life in case.lives:
            mine = decode & (batch["request"] == strings.find(life.request.id))
            told = life.request.output_tokens or len(life.request.tokens)
            if mine.any() and told > 1:
                rows += int(mine.sum())
                gained += told - 1
    return gained / rows if rows else None


def samples(case: Case, metric: str, device: int | None = None) -> list[tuple[int, float]]:
    """The values of a metric by time, over all recordings."""
    found: list[tuple[int, float]] = []
    for recording in case.job.recordings:
        table = recording.timeline["samples"]
        rows = np.flatnonzero(_of_metric(recording, table, metric))
        if device is not None:
            rows = rows[table["device"][rows] == device]
        found += zip(table["t"][rows].tolist(), table["value"][rows].tolist(), strict=True)
    return sorted(found)


def _of_metric(recording: Recording, table: Table, metric: str) -> Mask:
    code = recording.timeline.strings.find(metric)
    hit = (table["metric"] == code) & (code >= 0)
    return np.asarray(hit & known(table["t"]) & ~np.isnan(table["value"]))


def outsiders(case: Case, metric: str) -> list[tuple[str, float]]:
    """Processes that were sampled but are not of the run, and the sum of their samples."""
    found: dict[str, float] = {}
    for recording in case.job.recordings:
        timeline = recording.timeline
        table = timeline["samples"]
        own = {int(pid) for pid in timeline["processes"]["process"]}
        for row in np.flatnonzero(_of_metric(recording, table, metric)).tolist():
            pid = int(table["process"][row])
            if pid not in own and pid != UNKNOWN:
                who = outsider(recording, pid)
                found[who] = found.get(who, 0.0) + float(table["value"][row])
    return list(found.items())


def outsider(recording: Recording, pid: int) -> str:
    """What a process outside of the run is called."""
    names: dict[str, str] = recording.timeline.header.extra.get("neighbours", {})
    return f"{name(names.get(str(pid), 'process'))} (process {pid}, outside the trace)"


def process_samples(recording: Recording, metric: str) -> dict[int, list[tuple[int, float]]]:
    """The values of a metric by process: time and value."""
    table = recording.timeline["samples"]
    found: dict[int, list[tuple[int, float]]] = {}
    for row in np.flatnonzero(_of_metric(recording, table, metric)).tolist():
        sample = int(table["t"][row]), float(table["value"][row])
        found.setdefault(int(table["process"][row]), []).append(sample)
    return found


def highest_sample(case: Case, metric: str) -> float | None:
    """The largest value of a metric, None where it was not sampled."""
    return max((value for _, value in samples(case, metric)), default=None)


def network_spans(case: Case) -> list[Span]:
    """Network spans that name their request."""
    return [span for span in spans_of(case, "network") if span.request is not None]


def own_spans_charge(
    case: Case, found: Sequence[Span], parts: Sequence[str] = (), *, after_first: bool = False
) -> Charge:
    """What spans that name their request take of its time, from arrival or the first token on.

    Of `parts`, where given, only the time counts that the request is charged in them, so that a
    replay can tell what it saves.
    """
    by_request: dict[str, list[Span]] = {}
    for span in found:
        by_request.setdefault(span.request or "", []).append(span)
    rows: list[tuple[Life, int, int | None, int | None]] = []
    total, charged = 0, [NO_SPANS]
    for life in case.lives:
        window = _window_of(life, after_first=after_first)
        own = by_request.get(life.request.id)
        if own and window:
            spans = _clipped(intervals.union(*as_spans(own)), window)
            spans = _charged_in(life, spans, parts) if parts else spans
            rows.append((life, int((spans[1] - spans[0]).sum()), own[0].start, own[-1].end))
            charged.append(spans)
            total += int((window[1] - window[0]).sum())
    charge = replace(over([row for row in rows if row[1]]), total=total)
    if not parts:
        return charge
    return replace(charge, parts=tuple(parts), within=intervals.union(*joined(charged)))


def _clipped(spans: Spans, window: Spans) -> Spans:
    """What of some disjoint, ascending spans lies in a window."""
    start, end = np.maximum(spans[0], window[0]), np.minimum(spans[1], window[1])
    return start[end > start], end[end > start]


def _charged_in(life: Life, spans: Spans, parts: Sequence[str]) -> Spans:
    """When, in some disjoint spans, a request is charged in some parts."""
    mine = life.pieces.take(np.flatnonzero(among(life.pieces.label, codes(parts).tolist())))
    inside = intervals.within(mine, spans)
    return inside.start, inside.end


def _window_of(life: Life, *, after_first: bool) -> Spans | None:
    request = life.request
    if request.arrival is None or not len(life.pieces):
        return None
    begin = request.first_token if after_first else request.arrival
    if begin is None:
        return None
    return np.array([begin], np.int64), np.array([int(life.pieces.end[-1])], np.int64)


def state_spans(
    recording: Recording, process: int, thread: int, states: Sequence[str]
) -> Spans | None:
    """When a thread was in some states; None where its states were not recorded."""
    table, strings = recording.timeline["states"], recording.timeline.strings
    mine = (table["process"] == process) & (table["thread"] == thread)
    if not mine.any():
        return None
    wanted = [code for code in map(strings.find, states) if code >= 0]
    rows = mine & among(table["state"], wanted)
    return intervals.union(table["start"][rows], table["end"][rows])


def state_share(case: Case, found: Sequence[Span], *states: str) -> float | None:
    """The fraction of some spans that their threads were in some states; None where not known."""
    spent = judged = 0
    groups: dict[tuple[int, int, int], list[Span]] = {}
    for span in found:
        groups.setdefault((id(span.recording), span.process, span.thread), []).append(span)
    for (_, process, thread), own in groups.items():
        there = state_spans(own[0].recording, process, thread, states)
        if there is not None:
            spans = intervals.union(*as_spans(own))
            judged += int((spans[1] - spans[0]).sum())
            spent += intervals.common(spans, there)
    return spent / judged if judged else None


def median(values: Array) -> float | None:
    """The middle of some values, None of none."""
    # `np.median` parts the values, which takes long where few differ, as in steps that repeat.
    ordered = np.sort(values)
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    return float(np.mean(middle)) if len(ordered) else None


def first_and_last_work(recording: Recording, step_of: Ints) -> tuple[Ints, Ints]:
    """When the device work of every step begins and ends; 0 for steps without."""
    gpu, size = recording.timeline["gpu"], len(recording.steps)
    rows = np.flatnonzero((step_of >= 0) & known(gpu["start"]) & busy_rows(gpu))
    latest = np.iinfo(np.int64).max
    first, last = np.full(size, latest, np.int64), np.zeros(size, np.int64)
    np.minimum.at(first, step_of[rows], gpu["start"][rows])
    np.maximum.at(last, step_of[rows], gpu["end"][rows])
    return np.where(first == latest, 0, first), last


TINY = 4096
"""Bytes of a copy that only brings a scalar to the host."""


def tiny_rows(member: Member) -> Mask:
    """Which rows of `gpu` are copies of a few bytes from a rank's devices to the host."""
    gpu = member[0].timeline["gpu"]
    copies = (gpu["kind"] == MEMCPY) & (gpu["copy"] == _D2H) & rank_rows(member, gpu)
    return np.asarray(copies & known(gpu["bytes"]) & (gpu["bytes"] <= TINY) & known(gpu["end"]))


def tiny_copies(member: Member) -> Ints:
    """When the copies of a few bytes from a rank's devices to the host ended."""
    return np.asarray(member[0].timeline["gpu"]["end"][tiny_rows(member)])


_D2H = COPY_KINDS.index("D2H")


def idle_between(member: Member, windows: Spans) -> Spans:
    """When all devices of a rank stood still, each time whole, within some windows."""
    activity = member[1].activity
    busy = intervals.union(activity.start, activity.end)
    start, end = busy[1][:-1], busy[0][1:]
    inside = intervals.touching(start, end, windows)
    return start[inside], end[inside]


def ttft(life: Life) -> int | None:
    """The time from a request's arrival to its first token, ns; None where either is unknown."""
    request = life.request
    if request.first_token is None or request.arrival is None:
        return None
    return max(request.first_token - request.arrival, 0)
