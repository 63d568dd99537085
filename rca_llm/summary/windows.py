"""Rows about windows: `steps`, `windows` and the figures of whole ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import GRAPH_LAUNCH, LAUNCH
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import PARTS, named, shares, shares_of_all
from rca_llm.table import UNKNOWN, Ints, Mask, known, optional
from rca_llm.trace import KERNEL, SYSTEM_DOMAINS


def step_rows(ranks: list[Member]) -> list[dict[str, Any]]:
    """The `steps` rows of all ranks."""
    return [row for member in ranks for row in _steps_of(member)]


def step_totals(member: Member) -> Ints:
    """The time of every part in each step of a rank, ns: (steps, parts)."""
    recording, partition = member
    rows = partition.steps
    start, end = recording.steps.start[rows], partition.step_end[rows]
    return intervals.sums_in(partition.segments.pieces, start, end, len(PARTS))


def _steps_of(member: Member) -> list[dict[str, Any]]:
    recording, partition = member
    steps, rows = recording.steps, partition.steps
    own_shares = shares_of_all(step_totals(member))
    kernels = _counts(partition.step_of, recording.timeline["gpu"]["kind"] == KERNEL, len(steps))
    launches, graphs = _launches(member)
    found: list[dict[str, Any]] = []
    for place, row in enumerate(rows.tolist()):
        mode = recording.timeline.text(int(steps.mode[row]))
        found.append(
            {
                "id": int(steps.id[row]),
                "rank": partition.rank.number,
                "start_ns": int(steps.start[row]),
                "end_ns": int(partition.step_end[row]),
                "prefill_tokens": optional(steps.prefill_tokens[row]),
                "decode_tokens": optional(steps.decode_tokens[row]),
                "requests": optional(steps.size[row]),
                "launches": int(launches[row]) if recording.on_gpu else None,
                "kernels": int(kernels[row])
                if recording.on_gpu and partition.rank.traced
                else None,
                "mode": mode or _mode(int(launches[row]), int(graphs[row])),
                "shares": own_shares[place],
            }
        )
    return found


def _mode(launches: int, graphs: int) -> str | None:
    """How the work of a step was launched, None where nothing was."""
    if not launches:
        return None
    return "eager" if not graphs else "graph" if graphs == launches else "mixed"


def _counts(step_of: Ints, chosen: Mask, steps: int) -> Ints:
    return np.bincount(step_of[chosen & (step_of >= 0)], minlength=steps)


def _launches(member: Member) -> tuple[Ints, Ints]:
    """How many launch calls, and graph launches among them, each step made."""
    recording, partition = member
    mine = among(recording.timeline["api"]["process"], [*partition.rank.processes])
    graph = mine & (recording.calls == GRAPH_LAUNCH)
    size, owner = len(recording.steps), partition.work.of_call
    launches = _counts(owner, mine & (recording.calls == LAUNCH), size)
    graphs = _counts(owner, graph, size)
    return launches + graphs, graphs


def window_rows(ranks: list[Member]) -> list[dict[str, Any]]:
    """The `windows` rows: the steps, else the top-level ranges, of every rank."""
    return [row for member in ranks for row in _windows_of(member)]


def _windows_of(member: Member) -> list[dict[str, Any]]:
    recording, partition = member
    if len(partition.steps):
        steps, rows = recording.steps, partition.steps
        names = [f"step {id}" for id in steps.id[rows].tolist()]
        start, end = steps.start[rows], partition.step_end[rows]
    else:
        names, start, end = _top_ranges(member)
    totals = intervals.sums_in(partition.segments.pieces, start, end, len(PARTS))
    columns = zip(names, start.tolist(), end.tolist(), shares_of_all(totals), totals, strict=True)
    return [
        {"name": name, "start_ns": begin, "end_ns": finish, "shares": own, "parts": named(row)}
        for name, begin, finish, own, row in columns
    ]


_MANY = 10_000
"""More top-level ranges than this are no windows that anybody would read."""


_NO_WINDOWS = ("cpu_op", "python", *SYSTEM_DOMAINS)
"""Domains of operators, Python functions, system calls and CUDA's own work: parts of a window."""


def _top_ranges(member: Member) -> tuple[list[str], Ints, Ints]:
    """The outermost named ranges of a rank within its window; operators are none."""
    recording, partition = member
    timeline, rank = recording.timeline, partition.rank
    ranges = timeline["ranges"]
    operators = among(ranges["domain"], [timeline.strings.find(d) for d in _NO_WINDOWS])
    rows = np.flatnonzero(
        among(ranges["process"], [*rank.processes, UNKNOWN])
        & ~operators
        & (ranges["start"] >= rank.start)
        & (ranges["end"] <= rank.end)
        & (ranges["end"] > ranges["start"])
    )
    order = rows[np.lexsort([-ranges["end"][rows], ranges["start"][rows]])]
    start, end = ranges["start"][order], ranges["end"][order]
    reach = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])
    top = np.flatnonzero(start >= reach[: len(start)])[:_MANY]
    names = [timeline.strings[int(code)] for code in ranges["name"][order[top]]]
    return names, start[top], end[top]


def rank_rows(rows: list[dict[str, Any]], missing: list[int]) -> list[dict[str, Any]]:
    """The `ranks` rows by number, with a row for each rank that no input covers."""
    absent: list[dict[str, Any]] = [
        {
            "rank": rank,
            "host": None,
            "offset_ns": None,
            "uncertainty_ns": None,
            "status": "missing",
            "span_ns": None,
            "shares": None,
        }
        for rank in missing
    ]
    return sorted([*rows, *absent], key=lambda row: row["rank"])


def rank_row(member: Member) -> dict[str, Any]:
    """The `ranks` row of a rank."""
    recording, partition = member
    rank = partition.rank
    return {
        "rank": rank.number,
        "host": recording.timeline.header.host,
        "offset_ns": recording.timeline.clock.offset_ns,
        "uncertainty_ns": recording.timeline.clock.uncertainty_ns,
        "status": "traced" if rank.traced else "not_traced",
        "span_ns": rank.span,
        "shares": shares(partition.totals),
    }


def transfer_rows(recording: Recording) -> list[dict[str, Any]]:
    """The `transfers` rows: KV hand-overs and off-loads that spans tell of, by start."""
    timeline = recording.timeline
    ranges = timeline["ranges"]
    kind = timeline.strings.find("kv_transfer")
    chosen = np.flatnonzero((ranges["kind"] == kind) & (kind >= 0))
    return [
        {
            "request": timeline.text(int(ranges["request"][row])),
            "bytes": optional(ranges["bytes"][row]),
            "pieces": optional(ranges["pieces"][row]),
            "post_ns": optional(ranges["post_ns"][row]),
            "total_ns": int(ranges["end"][row] - ranges["start"][row]),
            "link_bytes_s": optional(ranges["link_bytes_s"][row]),
        }
        for row in chosen[np.argsort(ranges["start"][chosen], kind="stable")].tolist()
    ]


def mark_rows(recording: Recording) -> list[dict[str, Any]]:
    """The `marks` rows: instants named from outside the program, as by `rca-llm ctl RUN mark`."""
    timeline = recording.timeline
    marks = timeline["marks"]
    outside = (marks["process"] == UNKNOWN) & (marks["request"] < 0)
    return [
        {"name": timeline.text(int(marks["name"][row])), "t_ns": int(marks["t"][row])}
        for row in np.flatnonzero(outside & known(marks["t"])).tolist()
    ]
