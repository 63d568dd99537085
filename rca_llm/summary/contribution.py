"""What one recording adds to a summary, and the summary of all of them.

A contribution is small beside the recording: rows of the summary, and sums that rows are made of.
It is all that has to travel where the ranks of a job are analysed by other processes or hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca_llm.attribute import collectives as comm
from rca_llm.attribute.collectives import Collective
from rca_llm.attribute.job import Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import PARTS, named, shares
from rca_llm.attribute.ranks import Rank
from rca_llm.attribute.requests import Request
from rca_llm.summary import device, findings, groups, host, idle, load, ranges, windows
from rca_llm.summary import requests as request_rows
from rca_llm.table import Ints
from rca_llm.trace import KERNEL, MEMCPY, MEMSET, Finding, Timeline

SCHEMA = "rca-llm/summary/1"

_HIDDEN = ("communication", "io", "scheduling")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Contribution:
    """What one recording adds; rows and sums are those that modules of this package make."""

    ranks: list[Rank]
    totals: list[Ints]
    """The time of every part of each rank, ns."""
    hidden: list[dict[str, int]]
    counts: dict[str, int]
    step_ids: list[int]
    limits: list[dict[str, int]]
    devices: Rows
    windows: Rows
    steps: Rows
    tracks: Rows
    transfers: Rows
    marks: Rows
    idle: Rows
    load: Rows
    threads: Rows
    short_calls: Rows
    rank_rows: Rows
    ranges: ranges.Sums
    api: dict[str, host.Calls]
    kernels: device.KernelSums
    copies: device.CopySums
    findings: list[Finding]
    rank_findings: list[Finding]


@dataclass(frozen=True)
class Whole:
    """What belongs to no single recording: the job's findings, collectives and requests."""

    timelines: Sequence[Timeline]
    findings: Sequence[Finding]
    collectives: Sequence[Collective]
    requests: Sequence[Request]
    lives: Sequence[Life]
    missing: Sequence[int]
    """Ranks that no input covers."""


def contribution(recording: Recording, members: list[Member], *, windowed: bool) -> Contribution:
    """What a recording and the partitions of its ranks add; `windowed`: with rows of `windows`."""
    partitions = [partition for _, partition in members]
    return Contribution(
        ranks=[partition.rank for partition in partitions],
        totals=[partition.totals for partition in partitions],
        hidden=[partition.hidden for partition in partitions],
        counts=_counts(recording),
        step_ids=sorted({int(recording.steps.id[row]) for p in partitions for row in p.steps}),
        limits=[own.limits for own in recording.timeline.devices],
        devices=[row for p in partitions for row in device.device_rows(recording, p.rank)],
        windows=windows.window_rows(members) if windowed else [],
        steps=windows.step_rows(members),
        tracks=host.track_rows(recording),
        transfers=windows.transfer_rows(recording),
        marks=windows.mark_rows(recording),
        idle=idle.idle_rows(members),
        load=load.load_rows(members),
        threads=host.thread_rows(recording),
        short_calls=recording.timeline.header.extra.get("short_calls", []),
        rank_rows=[windows.rank_row(member) for member in members],
        ranges=ranges.range_sums(recording),
        api=host.api_sums(recording),
        kernels=device.kernel_sums(recording),
        copies=device.copy_sums(recording),
        findings=findings.of_recording(recording),
        rank_findings=[one for member in members for one in findings.of_rank(member)],
    )


def _counts(recording: Recording) -> dict[str, int]:
    """How much of everything a recording holds: what `totals` adds up."""
    kinds = recording.timeline["gpu"]["kind"]
    return {
        "kernels": int(np.count_nonzero(kinds == KERNEL)),
        "copies": int(np.count_nonzero(kinds == MEMCPY)),
        "memsets": int(np.count_nonzero(kinds == MEMSET)),
        "api_calls": len(recording.timeline["api"]),
        "ranges": len(ranges.marked(recording.timeline)),
        "graph_launches": host.graph_launches(recording),
    }


def summary(found: Sequence[Contribution], whole: Whole) -> dict[str, Any]:
    """The contract's summary, without hints."""
    sums = np.sum([own for one in found for own in one.totals] or [_nothing()], axis=0)
    lives, collectives = whole.lives, whole.collectives
    of_rank = {r.number: own for one in found for r, own in zip(one.ranks, one.totals, strict=True)}
    return {
        "schema": SCHEMA,
        "inputs": _inputs(whole.timelines),
        "window": _window([rank for one in found for rank in one.ranks]),
        "totals": _totals(found, whole),
        "devices": _all(found, "devices"),
        "shares": shares(sums),
        "hidden": {name: sum(h[name] for one in found for h in one.hidden) for name in _HIDDEN},
        "parts": named(sums),
        "requests": request_rows.request_rows(lives),
        "latency": request_rows.latency_figures(whole.requests),
        "class_stats": request_rows.class_stats(lives),
        "cohorts": request_rows.cohorts(lives),
        "windows": [] if whole.requests else _all(found, "windows"),
        "steps": _all(found, "steps"),
        "ranges": ranges.range_rows(one.ranges for one in found),
        "api": host.api_rows(one.api for one in found),
        "tracks": _all(found, "tracks"),
        "transfers": _all(found, "transfers"),
        "marks": sorted(_all(found, "marks"), key=lambda row: row["t_ns"]),
        "idle": _all(found, "idle"),
        "load": _all(found, "load"),
        "threads": _all(found, "threads"),
        "short_calls": host.short_call_rows(one.short_calls for one in found),
        "kernels": device.kernel_rows(
            (one.kernels for one in found), [own for one in found for own in one.limits]
        ),
        "copies": device.copy_rows(one.copies for one in found),
        "collectives": [comm.summary_row(collective) for collective in collectives],
        "ranks": windows.rank_rows(_all(found, "rank_rows"), list(whole.missing)),
        "groups": groups.group_rows(collectives, of_rank),
        "hints": [],
        "quality": findings.finding_rows(_findings(found, whole)),
    }


def _all(found: Sequence[Contribution], name: str) -> Rows:
    """The rows of one kind of all recordings, in their order."""
    return [row for one in found for row in getattr(one, name)]


def _nothing() -> Ints:
    return np.zeros(len(PARTS), np.int64)


def _inputs(timelines: Sequence[Timeline]) -> Rows:
    rows: Rows = []
    for timeline in timelines:
        for given in (timeline.input, *timeline.header.extra.get("side_files", ())):
            rank = given.rank if given.rank is not None else timeline.header.rank
            rows.append({**vars(given), "rank": rank})
    return rows


def _window(ranks: Sequence[Rank]) -> dict[str, int]:
    return {
        "start_ns": min((rank.start for rank in ranks), default=0),
        "end_ns": max((rank.end for rank in ranks), default=0),
        "span_ns": sum(rank.span for rank in ranks),
    }


def _totals(found: Sequence[Contribution], whole: Whole) -> dict[str, int]:
    names = ("kernels", "copies", "memsets", "api_calls", "ranges")
    return {
        **{name: sum(one.counts[name] for one in found) for name in names},
        "collectives": len(whole.collectives),
        "requests": len(whole.requests),
        "steps": _steps(found, whole.collectives),
        "graph_launches": sum(one.counts["graph_launches"] for one in found),
    }


def _steps(found: Sequence[Contribution], collectives: Sequence[Collective]) -> int:
    """How many steps there were; ranks that take part in one collective share theirs."""
    together = any(len(collective.parts) > 1 for collective in collectives)
    return len({(0 if together else n, id) for n, one in enumerate(found) for id in one.step_ids})


def _findings(found: Sequence[Contribution], whole: Whole) -> list[Finding]:
    ranks = [rank.number for one in found for rank in one.ranks if not rank.cut]
    return [
        *whole.findings,
        *(finding for one in found for finding in one.findings),
        *(finding for one in found for finding in one.rank_findings),
        *findings.of_collectives(whole.collectives, ranks),
    ]
