"""The timelines of the page: the whole trace and single requests, lane under lane on one axis.

Lanes of parts come from the report's partition; those of steps, devices, collectives, copies and
host threads from the trace's tables, so that cause and effect stand under each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rca_llm.attribute.codes import LAUNCH, call_codes, kernel_parts
from rca_llm.attribute.parts import CLASSES, PARTS
from rca_llm.attribute.ranks import Rank, find_ranks, rows_of
from rca_llm.exporters.lanes import Labels, Lane, in_order, pack_labels
from rca_llm.exporters.text import shown
from rca_llm.intervals import Pieces, earliest_wins, innermost_wins
from rca_llm.table import UNKNOWN, Array, Ints, Table
from rca_llm.trace import COPY_KINDS, GRAPH, KERNEL, MEMCPY, MEMSET, Timeline

if TYPE_CHECKING:
    from rca_llm.report import Report

KINDS = (*CLASSES, "host", "prefill", "decode", "mixed")
"""What a label's colour says: a class, the host's own work, or what a step computed."""

MOST_RANKS = 8
"""Ranks whose lanes are drawn; more would be neither readable nor small."""

WHOLE, FOCUS, LIFE = 48_000, 40_000, 30_000
"""Pieces on the page: for the whole trace, for requests in focus, for the lives of all others."""

MOST_FOCUS = 8
"""Requests that are drawn with lanes of their own at full detail."""

NAME = 160
"""Characters of a kernel's or range's name in a label."""


@dataclass(frozen=True)
class Window:
    """A named stretch of the trace with the lanes that belong to it, ns UTC."""

    name: str
    start: int
    end: int
    lanes: list[Lane]

    def packed(self, pieces: int, origin: int) -> dict[str, Any]:
        """The window for the page, each lane with its fair share of `pieces`."""
        cap = max(min(pieces // max(len(self.lanes), 1), 4000), 120)
        lanes = [lane.packed(self.start, self.end, cap) for lane in self.lanes]
        span = {"start": self.start - origin, "length": self.end - self.start}
        return {"name": self.name, **span, "lanes": lanes}


def build(report: Report, focus: list[str]) -> dict[str, Any]:
    """All timelines of the page as JSON values.

    `focus` names the requests worth full detail, most important first. Times are relative to
    `origin`, UTC ns.
    """
    labels = Labels()
    window = report.summary["window"]
    low, high = _bounds(report, window)
    whole = Window("whole trace", low, high, list(_lanes(report, labels)))
    lives = dict(_lives(report, labels))
    chosen = [name for name in focus if name in lives][:MOST_FOCUS]
    return {
        "origin": low,
        "kinds": KINDS,
        "whole": whole.packed(WHOLE, low),
        "focus": [
            Window(shown(name), *_life_bounds(lives[name]), [lives[name], *whole.lanes]).packed(
                FOCUS // max(len(chosen), 1), low
            )
            for name in chosen
        ],
        "lives": _packed_lives(lives, set(chosen), low),
        "labels": pack_labels(labels, KINDS),
    }


def _bounds(report: Report, window: dict[str, Any]) -> tuple[int, int]:
    """The first and last instant of any rank: `span_ns` sums ranks, so it is no guide."""
    starts = [int(s.start[0]) for s in report.segments if len(s.start)]
    ends = [int(s.end[-1]) for s in report.segments if len(s.end)]
    low = min(starts, default=window["start_ns"] or 0)
    return low, max(ends, default=window["end_ns"] or low)


def _life_bounds(life: Lane) -> tuple[int, int]:
    return int(life.pieces.start[0]), int(life.pieces.end[-1])


def _packed_lives(lives: dict[str, Lane], done: set[str], origin: int) -> list[dict[str, Any]]:
    """The parts of every request that has no timeline of its own, until the page is full."""
    rest = [name for name in lives if name not in done]
    each = max(LIFE // max(len(rest), 1), 60)
    packed: list[dict[str, Any]] = []
    for name in rest[: LIFE // 60]:
        window = Window(shown(name), *_life_bounds(lives[name]), [lives[name]])
        packed.append(window.packed(each, origin))
    return packed


def _lives(report: Report, labels: Labels) -> Iterator[tuple[str, Lane]]:
    codes = part_labels(labels)
    about = "the parts of this request's latency; they add up to it"
    for name, life in report.request_segments.items():
        if len(life.start):
            pieces = Pieces(life.start, life.end, codes[life.part])
            yield name, Lane("request", about, pieces)


def part_labels(labels: Labels) -> Ints:
    """The label code of every part."""
    return np.array([labels.code(part, part.partition(".")[0]) for part in PARTS], np.int64)


def _lanes(report: Report, labels: Labels) -> Iterator[Lane]:
    """All lanes of the whole trace, rank by rank."""
    codes = part_labels(labels)
    timelines = _ranks(report)
    for segments in report.segments[:MOST_RANKS]:
        pieces = Pieces(segments.start, segments.end, codes[segments.part])
        about = "where this rank's time went: one part at every instant"
        yield Lane("parts", about, pieces, segments.rank)
        yield from _step_lanes(report, labels, segments.rank)
        for timeline, rank in timelines:
            if rank.number == segments.rank:
                yield from _device_lanes(timeline, rank, labels)
                yield from _host_lanes(timeline, rank, labels)


def _ranks(report: Report) -> list[tuple[Timeline, Rank]]:
    return [(line, rank) for line in report.trace.timelines for rank in find_ranks(line)]


def _step_lanes(report: Report, labels: Labels, rank: int | None) -> Iterator[Lane]:
    steps = [step for step in report.summary["steps"] if step["rank"] == rank]
    if not steps:
        return
    start = np.array([step["start_ns"] for step in steps], np.int64)
    end = np.array([step["end_ns"] for step in steps], np.int64)
    label = np.array([labels.code(*_step_label(step)) for step in steps], np.int64)
    about = "engine steps, with the prompt (prefill) and new (decode) tokens each computed"
    yield Lane("steps", about, in_order(start, end, label), rank)


def _step_label(step: dict[str, Any]) -> tuple[str, str]:
    prefill, decode = step["prefill_tokens"], step["decode_tokens"]
    kind = "prefill" if prefill and not decode else "decode" if decode and not prefill else "mixed"
    known = [(prefill, "prefill"), (decode, "decode")]
    tokens = " + ".join(f"{count} {name}" for count, name in known if count)
    return (f"step of {tokens} tokens", kind) if tokens else ("step", "host")


def _device_lanes(timeline: Timeline, rank: Rank, labels: Labels) -> Iterator[Lane]:
    gpu = timeline["gpu"].take(rows_of(timeline["gpu"], rank))
    if not len(gpu):
        return
    part = kernel_parts(timeline.strings, gpu["name"])
    codes = part_labels(labels)
    kernel = (gpu["kind"] == KERNEL) | (gpu["kind"] == GRAPH)
    talks = np.char.startswith(np.array(PARTS), "communication.")[part]
    for device in np.unique(gpu["device"]).tolist():
        here, name = gpu["device"] == device, f"GPU {device}" if device >= 0 else "GPU"
        rows = np.flatnonzero(here & kernel & ~talks)
        about = "compute kernels, the one that has run longest where they overlap"
        yield from _kernel_lane(timeline, gpu.take(rows), part[rows], labels, (name, about), rank)
        rows = np.flatnonzero(here & kernel & talks)
        named = (f"{name} comm", "kernels that communicate between GPUs")
        yield from _kernel_lane(timeline, gpu.take(rows), part[rows], labels, named, rank)
        copies = gpu.take(
            np.flatnonzero(here & ((gpu["kind"] == MEMCPY) | (gpu["kind"] == MEMSET)))
        )
        yield from _copy_lane(copies, codes, labels, name, rank)


def _kernel_lane(
    timeline: Timeline, gpu: Table, part: Ints, labels: Labels, named: tuple[str, str], rank: Rank
) -> Iterator[Lane]:
    won = earliest_wins(gpu["start"], gpu["end"], gpu["correlation"])
    if not len(won):
        return
    names, inverse = np.unique(gpu["name"], return_inverse=True)
    first = np.zeros(len(names), np.int64)
    first[inverse] = part
    code = np.array(
        [
            labels.code(shown(timeline.text(int(name)) or "CUDA graph", NAME), _class(int(kind)))
            for name, kind in zip(names, first, strict=True)
        ],
        np.int64,
    )
    yield Lane(*named, won.relabel(code[inverse]), rank.number)


def _class(part: int) -> str:
    return PARTS[part].partition(".")[0]


def _copy_lane(
    copies: Table, codes: Ints, labels: Labels, device: str, rank: Rank
) -> Iterator[Lane]:
    if not len(copies):
        return
    kinds = [labels.code(f"copy {kind}", _copy_class(kind)) for kind in COPY_KINDS]
    table = np.array([*kinds, labels.code("copy of unknown direction", "io")], np.int64)
    memset = labels.code("memset", "compute")
    label = np.where(copies["kind"] == MEMSET, memset, table[copies["copy"]])
    won = earliest_wins(copies["start"], copies["end"])
    about = "copies and memsets; a copy between host and device is IO"
    yield Lane(f"{device} copies", about, won.relabel(label), rank.number)


def _copy_class(kind: str) -> str:
    return {"D2D": "compute", "P2P": "communication"}.get(kind, "io")


def _host_lanes(timeline: Timeline, rank: Rank, labels: Labels) -> Iterator[Lane]:
    """The ranges and the API calls of the thread that launches, else of the busiest thread."""
    api = timeline["api"].take(rows_of(timeline["api"], rank))
    ranges = timeline["ranges"].take(rows_of(timeline["ranges"], rank))
    thread = _launching_thread(timeline, api, ranges)
    if thread is None:
        return
    about = "the innermost range of the thread that launches GPU work"
    yield from _named_lane(timeline, _of(ranges, thread), labels, ("host", about), rank)
    about = "CUDA or HIP calls of the thread that launches GPU work"
    yield from _named_lane(timeline, _of(api, thread), labels, ("API", about), rank)


def _launching_thread(timeline: Timeline, api: Table, ranges: Table) -> tuple[int, int] | None:
    launching = call_codes(timeline.strings, api["name"]) == LAUNCH
    for table in (api.take(np.flatnonzero(launching)), api, ranges):
        if len(table):
            thread = _most_frequent(table["thread"])
            return _most_frequent(table["process"][table["thread"] == thread]), thread
    return None


def _most_frequent(values: Array) -> int:
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[int(counts.argmax())])


def _of(table: Table, thread: tuple[int, int]) -> Table:
    same = (table["process"] == thread[0]) & (table["thread"] == thread[1])
    return table.take(np.flatnonzero(same & (table["start"] != UNKNOWN)))


def _named_lane(
    timeline: Timeline, table: Table, labels: Labels, named: tuple[str, str], rank: Rank
) -> Iterator[Lane]:
    won = innermost_wins(table["start"], table["end"])
    if not len(won):
        return
    yield Lane(*named, won.relabel(_host_codes(timeline, table["name"], labels)), rank.number)


def _host_codes(timeline: Timeline, name: Array, labels: Labels) -> Ints:
    names, inverse = np.unique(name, return_inverse=True)
    texts = [shown(timeline.text(int(code)) or "unnamed", NAME) for code in names]
    return np.array([labels.code(text, "host") for text in texts], np.int64)[inverse]
