"""Causes that keep requests from being served: queues, lost KV blocks, grammars, drafts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.parts import CODE
from rca_llm.hints import records
from rca_llm.hints.admitting import saved_without_queue
from rca_llm.hints.case import Case, Spans, over
from rca_llm.hints.model import Charge, Confidence, Hint, Stage, rule
from rca_llm.hints.wording import name, plural, time
from rca_llm.summary.stats import percentile

QUEUE = CODE["scheduling.queue"]


@rule(
    "R01",
    "QUEUE-DOMINATED",
    "scheduling",
    Stage.QUEUE,
    disproof="an engine that stands still while requests wait",
)
def queue_dominated(case: Case) -> Hint | None:
    """Requests wait for admission while the engine works without pause.

    Symptom: queueing is at least `queue_share` of the time to first token for `request_share` of
    the requests, and less than `step_gap` of that time lies between engine steps; without steps,
    outside the service of other requests, from their admission on, where that is known. Source:
    proposal; threads C01, C03, C10, C11. Disproof: steps that do not follow each other. The saving
    is that of admitting every request on arrival, less what the larger batches then cost, by the
    durations of the steps at hand; where they do not tell, it is the whole wait, which is the most.
    """
    limits = case.limits("R01")
    judged = [life for life in case.lives if records.ttft(life)]
    queues = [(life, _queued(life)) for life in judged]
    share = limits["queue_share"]
    queues = [(life, ns) for life, ns in queues if ns >= share * (records.ttft(life) or 0)]
    waited = [life for life, _ in queues]
    if not waited or len(waited) < limits["request_share"] * len(judged):
        return None
    spans = _queue_spans(waited)
    gap = _uncovered(spans, _steps(case))
    alone = None if gap is not None else _uncovered(spans, _service(case))
    if max(gap or 0.0, alone or 0.0) >= limits["step_gap"]:
        return None
    queued, ttft = sum(ns for _, ns in queues), sum(records.ttft(life) or 0 for life in waited)
    charge = replace(
        over([(life, ns, *_ends(spans)) for life, ns in queues]),
        total=ttft,
        population=f"the time to first token of {len(waited)} of {len(judged)} requests",
    )
    saved = saved_without_queue(case)
    return Hint(
        f"Requests waited {time(queued / len(waited))} of {time(ttft / len(waited))} before any"
        f" compute{_meanwhile(gap, alone)} ({len(waited)} of {plural(len(judged), 'request')})",
        "low" if gap is None else "medium",
        charge,
        {
            "mean_queue_ns": queued // len(waited),
            "mean_ttft_ns": ttft // len(waited),
            "queue_share": queued / ttft,
            "requests_waiting": len(waited),
            "requests_judged": len(judged),
            "request_share": len(waited) / len(judged),
            "step_gap_share": gap,
            "nobody_served_share": alone,
            "larger_batches_considered": saved is not None,
            "saving_at_most_ns": queued,
        },
        saving_ns=None if saved is None else max(saved, 0),
    )


def _queued(life: Life) -> int:
    """The time in the engine's queue before the first token, ns.

    A wait for a thread that computes for others is none, nor one for a device that another process
    has: larger batches are no help against them.
    """
    arrival, first = life.request.arrival, life.request.first_token
    totals = life.totals_in(arrival, first)
    if totals is None or arrival is None or first is None:
        return 0
    others = [own.clip(arrival, first) for own in (life.kept, life.contended)]
    return int(totals[QUEUE]) - sum(int((own.end - own.start).sum()) for own in others)


def _queue_spans(lives: Sequence[Life]) -> Spans:
    starts = [life.pieces.start[life.pieces.label == QUEUE] for life in lives]
    ends = [life.pieces.end[life.pieces.label == QUEUE] for life in lives]
    return intervals.union(np.concatenate(starts), np.concatenate(ends))


def _ends(spans: Spans) -> tuple[int | None, int | None]:
    return (int(spans[0][0]), int(spans[1][-1])) if len(spans[0]) else (None, None)


def _uncovered(spans: Spans, others: Spans) -> float | None:
    """The fraction of some time that no other time covers, None where there is none of these."""
    whole = int((spans[1] - spans[0]).sum())
    if not len(others[0]) or not whole:
        return None
    return 1 - intervals.common(spans, intervals.union(*others)) / whole


def _steps(case: Case) -> Spans:
    return records.joined([_step_spans(member) for member in case.job.ranks])


def _step_spans(member: Member) -> Spans:
    recording, partition = member
    return recording.steps.start[partition.steps], partition.step_end[partition.steps]


def _service(case: Case) -> Spans:
    """When requests were served whose admission is known: from then to their end."""
    known = [
        (life.request.scheduled, int(life.pieces.end[-1]))
        for life in case.lives
        if life.request.scheduled is not None and len(life.pieces)
    ]
    found = [(start, end) for start, end in known if end > start]
    both = np.array(found, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _meanwhile(gap: float | None, alone: float | None) -> str:
    """What is known of the engine while requests waited."""
    if gap is not None:
        return "; the engine was busy"
    return "" if alone is None else "; others were served meanwhile"


@rule(
    "R13",
    "KV-PREEMPT-RECOMPUTE",
    "scheduling",
    Stage.QUEUE,
    disproof="no request whose tokens are computed twice",
)
def preempt_recompute(case: Case) -> Hint | None:
    """Requests lose their KV blocks and compute them again.

    Symptom: preempted or prefilled twice, and at least `recomputed_share` of all computed tokens
    are repeats; KV usage at least `kv_usage`. Source: thread C61. Disproof: no repeated prefill.
    """
    limits = case.limits("R13")
    charge = case.charge(("scheduling.preempt", "scheduling.recompute"))
    if not charge.ns or not case.lives:
        return None
    again, all_tokens, lost = records.recomputed(case)
    share = again / all_tokens if all_tokens else None
    wait = case.time_of("scheduling.preempt")
    if share is None or (not again and wait < limits["wait_share"] * charge.total):
        return None
    if again and share < limits["recomputed_share"]:
        return None
    usage = records.highest_sample(case, "kv.usage")
    recompute = case.time_of("scheduling.recompute")
    worst = max(lost, key=lambda id: lost[id]) if lost else charge.requests[0]
    return Hint(
        f"Request {name(worst)} lost {plural(lost.get(worst, 0), 'computed token')}; preempted"
        f" requests spent {time(wait)} waiting + {time(recompute)} recomputing",
        _kv_confidence(usage, limits["kv_usage"]),
        charge,
        {
            "recomputed_tokens": again,
            "computed_tokens": all_tokens,
            "recomputed_share": share,
            "waiting_ns": wait,
            "recompute_ns": recompute,
            "highest_kv_usage": usage,
        },
    )


def _kv_confidence(usage: float | None, full: float) -> Confidence:
    if usage is None:
        return "medium"
    return "high" if usage >= full else "low"


_GRAMMAR = re.compile(r"grammar|bitmask|guided|structured[_ ]?output|outlines", re.I)


@rule(
    "R39",
    "STRUCTURED-OUTPUT",
    "scheduling",
    Stage.HOST,
    disproof="steps of the same length for requests without a grammar",
)
def structured_output(case: Case) -> Hint | None:
    """Grammar compilation or bitmasks hold steps up.

    Symptom: spans with such names take `step_share` of the step time (without steps, of the
    requests) while the device is idle. Source: proposal; thread C27. Disproof: equal steps without
    a grammar.
    """
    spans = records.spans_named(case, _GRAMMAR)
    parts = ("scheduling.host", "scheduling.jit", "scheduling.other")
    loss, charge = case.of_service(parts, spans), case.charge(parts, spans)
    if not loss.ns or loss.share < case.limits("R39")["step_share"]:
        return None
    return Hint(
        f"Guided decoding costs {f'{time(loss.a_step)} per step' if loss.steps else charge.told}",
        "high",
        charge,
        {
            "grammar_ns": loss.ns,
            f"{loss.of}_ns": loss.total,
            f"{loss.of}_share": loss.share,
            "steps": loss.steps,
            "spans": len(spans[0]),
        },
    )


_DRAFT = re.compile(r"draft|propos|eagle|medusa|spec(ulative)?[_ ]?decod", re.I)


@rule(
    "R40",
    "SPEC-ACCEPT-LOW",
    "scheduling",
    Stage.HOST,
    disproof="more accepted tokens a step than the draft costs",
)
def drafts_rejected(case: Case) -> Hint | None:
    """Speculative drafts cost more than they bring.

    Symptom: fewer than `accepted` tokens a request and decode step while drafting takes
    `draft_share` of the step time. Source: proposal; thread C45. Disproof: a higher acceptance.
    """
    limits = case.limits("R40")
    accepted = records.accepted_length(case)
    spans, total = records.spans_named(case, _DRAFT), records.step_time(case)
    if accepted is None or not len(spans[0]) or not total or accepted >= limits["accepted"]:
        return None
    drafting = intervals.common(intervals.union(*spans), records.step_spans(case))
    if drafting < limits["draft_share"] * total:
        return None
    steps = records.step_count(case)
    return Hint(
        f"Drafts are rejected: {accepted:.2f} tokens a step for {time(drafting / steps)} of"
        " drafting per step",
        "medium",
        Charge(drafting, total, (), *_ends(spans), plural(steps, "step")),
        {"accepted_length": accepted, "draft_ns": drafting, "step_ns": total, "steps": steps},
    )


@rule(
    "R33",
    "P99-SLO",
    "scheduling",
    Stage.SYMPTOM,
    disproof="one window in between whose P99 is below the limit",
)
def latency_objective(case: Case) -> Hint | None:
    """The P99 of the time to first token stays above the objective.

    Symptom: P99 over `p99_ns` in `windows` consecutive windows of `window_ns`, each with at least
    `requests` requests. Source: brief. Disproof: a window below.
    """
    limits = case.limits("R33")
    timed = sorted(
        (life.request.arrival or 0, records.ttft(life) or 0)
        for life in case.lives
        if records.ttft(life)
    )
    if not timed:
        return None
    width, begin = int(limits["window_ns"]), timed[0][0]
    groups: dict[int, list[int]] = {}
    for arrival, ttft in timed:
        groups.setdefault((arrival - begin) // width, []).append(ttft)
    run = _longest_breach(groups, limits["requests"], limits["p99_ns"])
    if len(run) < limits["windows"]:
        return None
    values = [percentile(sorted(groups[number]), 99) or 0 for number in run]
    start, end = begin + run[0] * width, begin + (run[-1] + 1) * width
    ids = tuple(
        life.request.id for life in case.lives if start <= (life.request.arrival or 0) < end
    )
    cause = _slow_against_fast(case)
    return Hint(
        f"P99 of the time to first token above {time(limits['p99_ns'])} for"
        f" {time(len(run) * width)}: up to {time(max(values))}"
        + (f"; slow requests differ most in {cause[0]}" if cause else ""),
        "high",
        Charge(0, 0, ids, start, end, plural(len(ids), "request")),
        {
            "highest_p99_ns": max(values),
            "lowest_p99_ns": min(values),
            "consecutive_windows": len(run),
            "slow_minus_fast_ns": cause[1] if cause else None,
        },
        unjudged=True,
    )


def _longest_breach(groups: dict[int, list[int]], fewest: float, limit: float) -> list[int]:
    """The longest run of consecutive windows that have enough requests and a P99 over a limit."""
    best: list[int] = []
    run: list[int] = []
    for number in sorted(groups):
        over_it = (
            len(groups[number]) >= fewest and (percentile(sorted(groups[number]), 99) or 0) > limit
        )
        follows = bool(run) and run[-1] == number - 1
        run = ([*run, number] if follows else [number]) if over_it else []
        best = max(best, run, key=len)
    return best


def _slow_against_fast(case: Case) -> tuple[str, int] | None:
    """The part in which slow requests exceed fast ones most, and by how much."""
    cohorts = case.summary["cohorts"]
    slow, fast = (cohorts[name]["parts"] for name in ("slow", "fast"))
    excess = {part: ns - fast.get(part, 0) for part, ns in slow.items()}
    worst = max(excess, key=lambda part: excess[part], default=None)
    return (worst, excess[worst]) if worst is not None and excess[worst] > 0 else None
