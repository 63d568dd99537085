"""The `groups` rows: ranks that communicate with each other, and who holds whom up.

A group is a communicator; the pairs of one (sends and receives) count as it. What it is for
(tensor, pipeline, expert or data parallel, a hand-over of KV caches) is told by its name alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rca_llm.attribute.collectives import Collective, bus_bandwidth
from rca_llm.attribute.members import group_of, members
from rca_llm.attribute.parts import CODE
from rca_llm.summary.stats import percentile
from rca_llm.table import Ints

_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)", re.IGNORECASE))
    for kind, words in (
        ("kv_transfer", "kv|disagg\\w*|prefill\\w*|decode\\w*"),
        ("expert", "ep|e?tp_ep|expert\\w*|moe"),
        ("tensor", "tp|tensor\\w*|mp|model_parallel\\w*|attn_tp|attention_tp"),
        ("pipeline", "pp|pipeline\\w*"),
        ("context", "cp|dcp|pcp|sp|context\\w*|sequence\\w*"),
        ("data", "dp|data\\w*|dp_cp"),
    )
)
"""What a group is for, by words of its name: those of vLLM, SGLang, Megatron and device meshes."""

STRAGGLER_SHARE = 0.5
"""A rank is named where it is last in more than this share of the calls, and of the waiting."""

NOTICEABLE = 0.05
"""Waiting below this share of the time in a group's collectives names nobody."""


def group_rows(
    collectives: Sequence[Collective], totals: Mapping[int, Ints]
) -> list[dict[str, Any]]:
    """One row for each group, that with the most waiting first; `totals` are the ranks' parts."""
    calls: dict[str | None, list[Collective]] = defaultdict(list)
    for one in collectives:
        comm = one.parts[0].comm
        calls[None if comm is None else group_of(comm)].append(one)
    rows = [_row(comm, own, totals) for comm, own in calls.items()]
    return sorted(rows, key=lambda row: -(row["waiting_ns"] or 0))


def _row(
    comm: str | None, calls: Sequence[Collective], totals: Mapping[int, Ints]
) -> dict[str, Any]:
    ranks = sorted({part.rank for one in calls for part in one.parts} | {*(members(comm) or ())})
    waits, last = _waits(calls), Counter(_lasts(calls))
    judged = [one for one in calls if one.arrived is not None]
    waiting = sum(waits.values()) if judged else None
    moe = {rank: int(totals[rank][CODE["compute.moe"]]) for rank in ranks if rank in totals}
    return {
        "comm": comm,
        "kind": kind_of(comm),
        "ranks": ranks,
        "collectives": len(calls),
        "judged": len(judged),
        "waiting_ns": waiting,
        "wait_ns": {str(rank): waits[rank] for rank in ranks} if judged else None,
        "last": {str(rank): last[rank] for rank in ranks} if judged else None,
        "straggler": _straggler(judged, last),
        "moe_ns": {str(r): ns for r, ns in moe.items()} if any(moe.values()) else None,
        "moe_imbalance": _imbalance(moe),
        "buckets": _buckets(calls),
    }


def kind_of(comm: str | None) -> str | None:
    """What a group is for, None where its name does not say."""
    text = (comm or "").replace("_", " ")
    return next((kind for kind, words in _KINDS if words.search(text)), None)


def _waits(calls: Sequence[Collective]) -> Counter[int]:
    """How long each rank waited for others in all, ns."""
    found: Counter[int] = Counter()
    for one in calls:
        if one.arrived is not None:
            for part in one.parts:
                found[part.rank] += one.arrived - part.start
    return found


def _lasts(calls: Sequence[Collective]) -> list[int]:
    return [one.last_rank for one in calls if one.last_rank is not None]


def _straggler(judged: Sequence[Collective], last: Counter[int]) -> int | None:
    """The rank that most of the waiting is for, None where that is little or of several."""
    by_rank: Counter[int] = Counter()
    spent = 0
    for one in judged:
        spent += sum(max(part.end - part.start, 0) for part in one.parts)
        if one.last_rank is not None and one.arrived is not None:
            by_rank[one.last_rank] += sum(one.arrived - part.start for part in one.parts)
    if not by_rank or not spent:
        return None
    rank, waited = by_rank.most_common(1)[0]
    often = last[rank] > STRAGGLER_SHARE * last.total()
    much = waited > STRAGGLER_SHARE * by_rank.total() and waited > NOTICEABLE * spent
    return rank if often and much else None


def _imbalance(moe: Mapping[int, int]) -> float | None:
    """The most expert work of a rank over the mean; None without any, or of one rank."""
    total = sum(moe.values())
    return max(moe.values()) * len(moe) / total if total and len(moe) > 1 else None


def _buckets(calls: Sequence[Collective]) -> list[dict[str, Any]]:
    """Calls of one operation and size: how many, how long the transfer took, and how fast."""
    found: dict[tuple[str | None, int | None], list[Collective]] = defaultdict(list)
    for one in calls:
        found[one.parts[0].op, one.parts[0].bytes].append(one)
    return [_bucket(op, size, own) for (op, size), own in found.items()]


def _bucket(op: str | None, size: int | None, calls: Sequence[Collective]) -> dict[str, Any]:
    taken = sorted(one.transfer for one in calls if one.transfer is not None)
    middle = percentile(taken, 50)
    return {
        "op": op,
        "bytes": size,
        "count": len(calls),
        "transfer_ns": {"p50": middle, "p99": percentile(taken, 99)},
        "busbw_bytes_s": bus_bandwidth(op, size, middle, len(calls[0].parts)),
        "contended": sum(any(part.contended_ns for part in one.parts) for one in calls),
    }
