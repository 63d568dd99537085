"""Rows and figures about requests: `requests`, `latency`, `class_stats`, `cohorts`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca_llm.attribute.exchange import Exchange
from rca_llm.attribute.life import Life
from rca_llm.attribute.parts import CLASSES, PARTS, named, shares
from rca_llm.attribute.requests import Request
from rca_llm.summary.stats import distribution, mean, percentile, variation
from rca_llm.table import Ints


def request_rows(lives: Sequence[Life]) -> list[dict[str, Any]]:
    """The `requests` rows, by arrival."""
    usual = _usual(lives)
    return [_row(life, usual) for life in lives]


def latency(request: Request) -> int | None:
    """From arrival to finish, ns; None where that is not known, as of one that ends before it."""
    if request.finished is None or request.arrival is None or request.finished < request.arrival:
        return None
    return request.finished - request.arrival


def _row(life: Life, usual: _Usual | None) -> dict[str, Any]:
    request, totals = life.request, life.totals
    waited, lasted = _before_arrival(request), latency(request)
    last = request.tokens[-1] if request.tokens else request.finished
    ttft = life.totals_in(request.arrival, request.first_token)
    rest = life.totals_in(request.first_token, last)
    return {
        "id": request.id,
        "start_ns": request.arrival,
        "latency_ns": lasted,
        "client_ns": waited,
        "client_latency_ns": None if None in (waited, lasted) else (waited or 0) + (lasted or 0),
        "http": _http(life.http),
        "ttft_ns": _between(request.arrival, request.first_token),
        "itl_ns": _token_gaps(request),
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "status": request.status,
        "shares": shares(totals),
        "parts": named(totals),
        "ttft_parts": None if ttft is None else named(ttft),
        "itl_parts": None if rest is None else named(rest),
        "shared_ns": life.shared_ns,
        "interference": [{"step": i.step, "owner": i.owner, "ns": i.ns} for i in life.interference],
        "cause": _cause(totals, lasted, usual),
    }


def _http(found: Exchange | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"before_ns": found.before, "after_ns": found.after, "parts": named(found.totals)}


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else max(end - start, 0)


def _before_arrival(request: Request) -> int | None:
    return _between(request.client_submit, request.arrival)


def _token_gaps(request: Request) -> dict[str, int | None]:
    """The distribution of the times between tokens, ns; unknown without token times."""
    times = request.tokens
    return distribution([b - a for a, b in itertools.pairwise(times)])


@dataclass(frozen=True)
class _Usual:
    """The median request of a run: its latency and the median of every part, ns."""

    latency: int
    parts: Ints


def _usual(lives: Sequence[Life]) -> _Usual | None:
    """The median request; None of fewer than two."""
    finished = _finished(lives)
    if len(finished) < 2:
        return None
    ordered = np.sort(np.stack([life.totals for life in finished]), axis=0)
    middle = percentile(sorted(latency(life.request) or 0 for life in finished), 50)
    return _Usual(middle or 0, np.asarray(ordered[(len(ordered) - 1) // 2]))


def _finished(lives: Sequence[Life]) -> list[Life]:
    """The lives of finished requests whose latency is known."""
    told = (life for life in lives if life.request.status == "finished")
    return [life for life in told if latency(life.request) is not None]


def _cause(totals: Ints, lasted: int | None, usual: _Usual | None) -> str | None:
    """The part that holds most of the excess over the median request; of a lone one, the largest.

    A request that took no longer than the median has no excess and so no cause.
    """
    if usual is not None and lasted is not None and lasted <= usual.latency:
        return None
    excess = totals if usual is None else totals - usual.parts
    worst = int(np.argmax(excess))
    return PARTS[worst] if excess[worst] > 0 else None


def latency_figures(requests: Sequence[Request]) -> dict[str, Any]:
    """The `latency` object over finished requests."""
    values = sorted(
        value
        for request in requests
        if request.status == "finished" and (value := latency(request)) is not None
    )
    return {
        "count": len(values),
        "p50": percentile(values, 50),
        "p90": percentile(values, 90),
        "p99": percentile(values, 99),
        "mean": mean(values),
        "cv": variation(values),
    }


def class_stats(lives: Sequence[Life]) -> dict[str, Any]:
    """Mean and variation of every class over the requests; the hint is filled in later."""
    rows = [shares(life.totals) for life in _finished(lives)]
    return {
        name: {
            "mean_ns": mean([row[name] for row in rows]),
            "cv": variation([row[name] for row in rows]),
            "hint": None,
        }
        for name in CLASSES
    }


def cohorts(lives: Sequence[Life]) -> dict[str, Any]:
    """The mean parts of requests at or above P99, and at or below P50, of latency."""
    known = [(latency(life.request) or 0, life) for life in _finished(lives)]
    values = sorted(value for value, _ in known)
    slow, fast = percentile(values, 99), percentile(values, 50)
    return {
        "slow": _cohort([life for value, life in known if slow is not None and value >= slow]),
        "fast": _cohort([life for value, life in known if fast is not None and value <= fast]),
    }


def _cohort(lives: Sequence[Life]) -> dict[str, Any]:
    if not lives:
        return {"count": 0, "parts": {}}
    sums = np.sum([life.totals for life in lives], axis=0)
    return {
        "count": len(lives),
        "parts": named(np.rint(sums / len(lives)).astype(np.int64)),
    }
