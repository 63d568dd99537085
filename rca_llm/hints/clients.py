"""Causes at the edge to the client: it holds requests back or reads slowly; a busy front end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rca_llm.attribute.life import Life
from rca_llm.hints import records
from rca_llm.hints.case import Case
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.records import NO_SPANS, Span
from rca_llm.hints.wording import name, percent, plural, time
from rca_llm.readers import run_calls
from rca_llm.summary.stats import percentile


@rule(
    "R14",
    "CLIENT-GATE",
    "scheduling",
    Stage.CLIENT,
    disproof="requests that reach the server as soon as the client submits them",
)
def client_gate(case: Case) -> Hint | None:
    """The load generator holds requests back before the server sees them.

    Symptom: the time from submission to arrival is at least `client_share` of the client's time to
    first token, and the server's own does not grow with it. Ratio of sums over all requests.
    Source: thread C07. Disproof: arrivals that follow submissions at once.
    """
    limits = case.limits("R14")
    held = [life for life in case.lives if _client_wait(life) is not None and records.ttft(life)]
    waits = [_client_wait(life) or 0 for life in held]
    ttfts = [records.ttft(life) or 0 for life in held]
    before, server = sum(waits), sum(ttfts)
    if not before or before < limits["client_share"] * (before + server):
        return None
    if _growth(waits, ttfts) > limits["ttft_growth"]:
        return None
    share, at_once = before / (before + server), _in_flight(case.lives)
    charge = Charge(
        before,
        before + server,
        tuple(life.request.id for life, wait in zip(held, waits, strict=True) if wait),
        min(life.request.client_submit or 0 for life in held),
        max(life.request.arrival or 0 for life in held),
        plural(len(held), "request"),
    )
    return Hint(
        f"The client held requests back: {percent(share)} of its time to first token passed before"
        f" they arrived; the server never had more than {at_once} at once and took"
        f" {time(server / len(held))}",
        "high",
        charge,
        {
            "client_share": round(share, 6),
            "mean_client_ns": before // len(held),
            "mean_ttft_ns": server // len(held),
            "most_in_flight": at_once,
            "requests_judged": len(held),
        },
    )


def _client_wait(life: Life) -> int | None:
    request = life.request
    if request.client_submit is None or request.arrival is None:
        return None
    return max(request.arrival - request.client_submit, 0)


def _growth(waits: Sequence[int], ttfts: Sequence[int]) -> float:
    """The median TTFT of requests held back longer than most, over that of the others."""
    middle = percentile(sorted(waits), 50) or 0
    long = sorted(t for wait, t in zip(waits, ttfts, strict=True) if wait > middle)
    short = sorted(t for wait, t in zip(waits, ttfts, strict=True) if wait <= middle)
    late, early = percentile(long, 50), percentile(short, 50)
    return late / early if late and early else 1.0


def _in_flight(lives: Sequence[Life]) -> int:
    """The most requests that were between arrival and finish at one time."""
    edges = [(life.request.arrival or 0, 1) for life in lives]
    edges += [(life.request.finished, -1) for life in lives if life.request.finished is not None]
    return int(np.cumsum([change for _, change in sorted(edges)]).max(initial=0))


_WRITES = re.compile(r"send|writ|flush|drain|stream", re.I)


@rule(
    "R30",
    "FRONTEND-NETWORK",
    "scheduling",
    Stage.HOST,
    disproof="a front end that is idle while requests or tokens wait in it",
)
def busy_front_end(case: Case) -> Hint | None:
    """The front end holds requests or tokens because its thread is busy.

    Symptom: network spans of requests take `share` of their latency and the thread is on the CPU
    for `on_cpu` of them. Source: proposal; threads C09, C11. Disproof: an idle front end.
    """
    limits = case.limits("R30")
    found = records.network_spans(case)
    charge = records.own_spans_charge(case, found)
    on_cpu = records.state_share(case, found, "running")
    if not charge.total or charge.ns < limits["share"] * charge.total:
        return None
    if on_cpu is None or on_cpu < limits["on_cpu"]:
        return None
    return Hint(
        f"The front end holds requests for {time(charge.ns / max(len(charge.requests), 1))} each;"
        f" its thread is on the CPU {percent(on_cpu)} of that time",
        "medium",
        charge,
        {"network_ns": charge.ns, "on_cpu_share": on_cpu, "spans": len(found)},
    )


@rule(
    "R50",
    "SLOW-CLIENT",
    "io",
    Stage.HOST,
    disproof="socket writes that return at once",
)
def slow_client(case: Case) -> Hint | None:
    """Socket writes block because the client reads slowly.

    Symptom: in network spans of requests, recorded calls that write to sockets, or waits for one to
    take more (`drain`), are charged `share` of the time after the first token, and their thread is
    not on the CPU meanwhile. Where only the spans tell of writing, low confidence: what they waited
    for is not known. Source: proposal. Disproof: writes that return at once.
    """
    limits = case.limits("R50")
    spans = [one for one in records.network_spans(case) if _WRITES.search(one.name)]
    blocked = [*_blocked(spans)]
    found = blocked or spans
    charge = records.own_spans_charge(case, found, ("io.network",), after_first=True)
    on_cpu = records.state_share(case, found, "running")
    if not charge.ns or charge.ns < limits["share"] * charge.total:
        return None
    if on_cpu is not None and on_cpu > limits["on_cpu"]:
        return None
    return Hint(
        (_blocking if blocked else _told_by_spans)(found, charge),
        "low" if not blocked else "medium" if on_cpu is None else "high",
        charge,
        {"write_ns": charge.ns, "writes": len(found), "on_cpu_share": on_cpu},
    )


def _blocking(_: Sequence[Span], charge: Charge) -> str:
    whose = plural(len(charge.requests), "request")
    return f"Socket writes block for {charge.told}: the client of {whose} reads slowly"


def _told_by_spans(spans: Sequence[Span], charge: Charge) -> str:
    named = ", ".join(sorted({name(one.name) for one in spans})[:3])
    return (
        f"Spans of the network ({named}) take {charge.told} after the first token; no socket write"
        " that blocked was recorded in them"
    )


_SENDING = re.compile(r"send|write|splice", re.I)
"""System calls that write to sockets."""


def _blocked(spans: Sequence[Span]) -> Iterator[Span]:
    """The recorded writes to sockets within some spans, and waits for a socket to take more."""
    calls = {id(one.recording): one.recording for one in spans}
    writes = {
        key: run_calls.spans(recording.timeline, "network", _SENDING)
        for key, recording in calls.items()
    }
    for span in spans:
        if span.name == _DRAIN:
            yield span
            continue
        whose = span.process, span.thread
        start, end = writes[id(span.recording)].get(whose, NO_SPANS)
        within = slice(
            int(np.searchsorted(end, span.start, "right")),
            int(np.searchsorted(start, span.end, "left")),
        )
        for begun, ended in zip(start[within].tolist(), end[within].tolist(), strict=True):
            yield replace(span, start=max(begun, span.start), end=min(ended, span.end))


_DRAIN = "drain"
"""What our probe of asyncio's streams calls a wait for a socket (`probes/engines/streams.py`)."""
