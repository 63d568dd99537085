"""The `quality` rows: what the readers, the repairs and the attribution found wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rca_llm.attribute.codes import GRAPH_LAUNCH, KNOWN_KINDS, SPAN_PART
from rca_llm.attribute.collectives import Collective, Hang, hangs, unmatched
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording, unrecorded_graphs
from rca_llm.summary import host
from rca_llm.table import NEVER, NO_TEXT, Ints, Mask, known
from rca_llm.trace import GRAPH, KERNEL, PARTIAL, Finding, Timeline, merge_findings, quoted

FEW_KERNELS = 10
"""A step without device work beside neighbours with more kernels than this was not covered."""

_ARRIVALS = ("arrival", "queued")
"""Events that stand for an arrival (`attribute.requests`)."""

MOST_KINDS = 5
"""Unknown kinds of spans that are named; the others are counted."""

PARTIAL_INPUT = "the input tells of collectives alone: what the rank did besides is not known"
"""What is said of ranks of which that is all that was recorded."""

CUT_INPUT = "the file ends before any record of a device: what the device did is not known"
"""What is said of ranks whose input ends so early."""


def of_recording(recording: Recording) -> list[Finding]:
    """What is wrong with a recording: what its reader and its repair found, and its links."""
    return [*recording.timeline.findings, *_of_recording(recording)]


def of_rank(member: Member) -> list[Finding]:
    """What is wrong with a rank: that it was not traced, or not in some steps."""
    return list(_of_rank(member))


def finding_rows(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """The `quality` rows; equal findings are one."""
    return [vars(finding) for finding in merge_findings(found)]


def of_collectives(collectives: Sequence[Collective], ranks: Collection[int]) -> list[Finding]:
    """Collectives that ranks did not come to, and parts without one of another rank."""
    return [*map(_hang, hangs(collectives, ranks)), *_alone(collectives, len(ranks))]


def _hang(hang: Hang) -> Finding:
    """Who did not come, what they did last, and who waits for them."""
    part = hang.collective.parts[0]
    absent = ", ".join(map(str, hang.absent))
    lasts = {rank: own for rank, own in hang.last.items() if rank in hang.absent}
    told = [f"rank {rank}: {own.op} {own.seq}" for rank, own in sorted(lasts.items())]
    since = f", for {hang.waited / 1e6:.6g} ms when their recording ended" if hang.waited else ""
    waiting, before = ", ".join(map(str, hang.waiting)), "; ".join(told) or "nothing"
    detail = (
        f"rank {absent} did not come to {part.op} {part.seq}, in which rank {waiting}"
        f" wait{since}; last there: {before}"
    )
    return Finding("not_arrived", len(hang.absent), part.comm or "", detail)


def _alone(collectives: Sequence[Collective], ranks: int) -> Iterator[Finding]:
    alone, parts = unmatched(collectives)
    if alone and ranks > 1:
        detail = (
            f"of {parts} parts of collectives ({alone / parts:.1%}) could not be matched with"
            " those of other ranks: neither numbered nor equally many on all; whether they waited"
            " is not known"
        )
        yield Finding("unlinked_kernels", alone, "collectives", detail)


def _of_recording(recording: Recording) -> Iterator[Finding]:
    path = recording.timeline.input.path
    early = host.launch_after_start(recording)
    if early:
        detail = "kernels start before the call that launched them; left as they are"
        yield Finding("launch_after_start", early, path, detail)
    unlinked = host.unlinked_kernels(recording)
    if unlinked:
        yield Finding("unlinked_kernels", unlinked, path, "kernels whose launch was not recorded")
    uncalled = host.uncalled_kernels(recording)
    if uncalled:
        yield Finding("calls_not_recorded", uncalled, path, _WITHOUT_CALLS)
    yield from _of_kinds(recording)
    yield from _of_requests(recording.timeline)
    yield from _of_graphs(recording)


def _of_requests(timeline: Timeline) -> Iterator[Finding]:
    """Requests that have no arrival, and those that end before it."""
    table = timeline["requests"]
    arrival, finished = table["arrival"], table["finished"]
    absent = ~known(arrival) & ~np.isin(table["id"], _arrived(timeline)) & (table["id"] >= 0)
    if absent.any():
        detail = (
            f"no arrival is known, as of {_first_id(timeline, absent)}: left out of the list of"
            " requests, and counted in the totals"
        )
        yield Finding("no_arrival", int(absent.sum()), "requests", detail)
    early = known(arrival) & known(finished) & (finished < arrival)
    if early.any():
        detail = f"finished before they arrived, as {_first_id(timeline, early)}: latency not known"
        yield Finding("ends_before_arrival", int(early.sum()), "requests", detail)
    yield from _of_contradictions(timeline, early)


def _of_contradictions(timeline: Timeline, early: Mask) -> Iterator[Finding]:
    """Requests with times before their arrival or after their end, those that have a life."""
    table = timeline["requests"]
    low = np.where(known(table["arrival"]) & ~early, table["arrival"], -NEVER)
    high = np.where(known(table["finished"]) & ~early, table["finished"], NEVER)
    for column, words in _TIMES_WITHIN.items():
        times = table[column]
        wrong = known(times) & ((times < low) | (times > high))
        yield from _contradicted(timeline, wrong, words)
    tokens = timeline["tokens"]
    order = np.argsort(table["id"], kind="stable")
    place = np.searchsorted(table["id"][order], tokens["request"], "right") - 1
    row = np.append(order, -1)[place]
    of = (row >= 0) & (tokens["request"] >= 0)
    of &= np.append(table["id"], NO_TEXT)[row] == tokens["request"]
    outside = (tokens["t"] < np.append(low, 0)[row]) | (tokens["t"] > np.append(high, 0)[row])
    wrong = np.zeros(len(table), bool)
    wrong[row[of & outside]] = True
    yield from _contradicted(timeline, wrong, "times of tokens")


_TIMES_WITHIN = {"scheduled": "a scheduling", "first_token": "a first token"}
"""Times that lie between arrival and end, and what a finding calls them."""


def _contradicted(timeline: Timeline, wrong: Mask, words: str) -> Iterator[Finding]:
    if wrong.any():
        detail = (
            f"{words} before their arrival or after their end, as of {_first_id(timeline, wrong)};"
            " not believed, and what would be told by it is not known"
        )
        yield Finding("contradicting_requests", int(wrong.sum()), "requests", detail)


def _arrived(timeline: Timeline) -> Ints:
    """The requests of which an event tells the arrival that their record does not."""
    marks = timeline["marks"]
    codes = [code for code in map(timeline.strings.find, _ARRIVALS) if code >= 0]
    return marks["request"][among(marks["name"], codes)]


def _first_id(timeline: Timeline, chosen: Mask) -> str:
    """The id of the first of some requests, as text that can be shown."""
    return quoted(timeline.strings[int(timeline["requests"]["id"][np.argmax(chosen)])])


def _of_kinds(recording: Recording) -> Iterator[Finding]:
    """Spans of kinds that nobody knows, which explain no idle time."""
    timeline = recording.timeline
    kinds = timeline["ranges"]["kind"]
    counts = np.bincount(kinds[kinds >= 0])
    used = {timeline.strings[code]: int(counts[code]) for code in np.flatnonzero(counts).tolist()}
    unknown = {text: count for text, count in used.items() if text not in KNOWN_KINDS}
    if not unknown:
        return
    often = sorted(unknown, key=lambda text: (-unknown[text], text))
    more = f" and {len(often) - MOST_KINDS:,} more" if len(often) > MOST_KINDS else ""
    detail = (
        f"spans of kinds that do not exist, {', '.join(map(quoted, often[:MOST_KINDS]))}{more}:"
        f" idle time that only they cover is called unexplained; kinds are {' '.join(SPAN_PART)}"
    )
    yield Finding("unknown_kind", sum(unknown.values()), timeline.input.path, detail)


_WITHOUT_CALLS = (
    "kernels without the calls that launch and wait for them, as with --gpu kernels: allocations,"
    " module loads by calls and serialised streams (R38, R12, R42) are not judged, launching and"
    " waits inside steps (R03, R15) by kernels and copies alone; record with --gpu full"
)


def _of_graphs(recording: Recording) -> Iterator[Finding]:
    path, kinds = recording.timeline.input.path, recording.timeline["gpu"]["kind"]
    whole = int(np.count_nonzero(kinds == GRAPH))
    if whole:
        detail = (
            "graph replays recorded as one piece: compute and communication inside them cannot be"
            " told apart; record again with node-level graph tracing"
        )
        yield Finding("graph_level_only", whole, path, detail)
    lost = unrecorded_graphs(recording)
    if lost and any(rank.traced for rank in recording.ranks) and len(kinds):
        launches = int(np.count_nonzero(recording.calls == GRAPH_LAUNCH))
        detail = f"of {launches} graph launches left neither kernels nor a record of their own"
        yield Finding("graph_not_recorded", lost, path, detail)


def _of_rank(member: Member) -> Iterator[Finding]:
    rank = member[1].rank
    if member[0].timeline.header.extra.get(PARTIAL):
        yield Finding("not_traced", 1, f"rank {rank.number}", PARTIAL_INPUT)
    elif rank.cut and not rank.traced:
        yield Finding("not_traced", 1, f"rank {rank.number}", CUT_INPUT)
    elif not rank.traced:
        several = [str(process) for process in rank.processes if process > 0]
        where = f"process{'es' if len(several) > 1 else ''} {', '.join(several)}"
        yield Finding(
            "not_traced",
            1,
            f"rank {rank.number}" + (f", {where}" if several else ""),
            f"{rank.launches} launches, no kernel: the device was not traced, which is not the same"
            " as idle. Check that the process was started by spawn, not fork, that the injection"
            " variables reach it, and that no other profiler is attached",
        )
    yield from _empty_steps(member)


def _empty_steps(member: Member) -> Iterator[Finding]:
    """Steps without device work among steps that have plenty."""
    recording, partition = member
    covered = partition.rank.traced and not partition.rank.cut
    if not len(partition.steps) or not covered or not recording.on_gpu:
        return
    kernels = recording.timeline["gpu"]["kind"] == KERNEL
    step_of = partition.step_of[kernels & (partition.step_of >= 0)]
    counts = np.bincount(step_of, minlength=len(recording.steps))[partition.steps]
    empty = int(np.count_nonzero(counts == 0))
    usual = int(np.sort(counts)[(len(counts) - 1) // 2])
    if empty and usual > FEW_KERNELS:
        yield Finding(
            "steps_without_gpu",
            empty,
            f"rank {partition.rank.number}",
            f"of {len(counts):,} steps (the median step has {usual:,} kernels)",
        )
