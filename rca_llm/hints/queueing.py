"""Causes before and between a request's steps: clients, queues, other requests, lost KV blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.requests import Life
from rca_llm.hints import records
from rca_llm.hints.admitting import saved_without_queue
from rca_llm.hints.case import Case, Spans, over
from rca_llm.hints.model import Charge, Confidence, Hint, Stage, rule
from rca_llm.hints.wording import name, percent, plural, summed, time
from rca_llm.summary.stats import percentile
from rca_llm.table import Ints, known

QUEUE = CODE["scheduling.queue"]
INTERFERENCE = CODE["scheduling.prefill_interference"]


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
    held = [life for life in case.lives if _client_wait(life) is not None and _ttft(life)]
    waits = [_client_wait(life) or 0 for life in held]
    ttfts = [_ttft(life) or 0 for life in held]
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


def _ttft(life: Life) -> int | None:
    request = life.request
    if request.first_token is None or request.arrival is None:
        return None
    return max(request.first_token - request.arrival, 0)


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
    the requests, and less than `step_gap` of that time lies between engine steps. Source:
    proposal; threads C01, C03, C10, C11. Disproof: steps that do not follow each other. The saving
    is that of admitting every request on arrival, less what the larger batches then cost, by the
    durations of the steps at hand; where they do not tell, it is the whole wait, which is the most.
    """
    limits = case.limits("R01")
    judged = [life for life in case.lives if _ttft(life)]
    waited = [
        life for life in judged if _queued(life) >= limits["queue_share"] * (_ttft(life) or 0)
    ]
    if not waited or len(waited) < limits["request_share"] * len(judged):
        return None
    spans = _queue_spans(waited)
    gap = _gap_share(case, spans)
    if gap is not None and gap >= limits["step_gap"]:
        return None
    queued, ttft = sum(map(_queued, waited)), sum(_ttft(life) or 0 for life in waited)
    charge = replace(
        over([(life, _queued(life), *_ends(spans)) for life in waited]),
        total=ttft,
        population=f"the time to first token of {len(waited)} of {len(judged)} requests",
    )
    saved = saved_without_queue(case)
    return Hint(
        f"Requests waited {time(queued / len(waited))} of {time(ttft / len(waited))} before any"
        f" compute; the engine was busy ({len(waited)} of {plural(len(judged), 'request')})",
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
            "larger_batches_considered": saved is not None,
            "saving_at_most_ns": queued,
        },
        saving_ns=None if saved is None else max(saved, 0),
    )


def _queued(life: Life) -> int:
    """The time in the queue before the first token, ns."""
    totals = life.totals_in(life.request.arrival, life.request.first_token)
    return 0 if totals is None else int(totals[QUEUE])


def _queue_spans(lives: Sequence[Life]) -> Spans:
    starts = [life.pieces.start[life.pieces.label == QUEUE] for life in lives]
    ends = [life.pieces.end[life.pieces.label == QUEUE] for life in lives]
    return intervals.union(np.concatenate(starts), np.concatenate(ends))


def _ends(spans: Spans) -> tuple[int | None, int | None]:
    return (int(spans[0][0]), int(spans[1][-1])) if len(spans[0]) else (None, None)


def _gap_share(case: Case, spans: Spans) -> float | None:
    """The fraction of some time that no engine step covers, None without steps."""
    steps = [_step_spans(member) for member in case.job.ranks if len(member[1].steps)]
    whole = int((spans[1] - spans[0]).sum())
    if not steps or not whole:
        return None
    start, end = (np.concatenate([one[side] for one in steps]) for side in (0, 1))
    return 1 - intervals.common(spans, intervals.union(start, end)) / whole


def _step_spans(member: Member) -> Spans:
    recording, partition = member
    return recording.steps.start[partition.steps], partition.step_end[partition.steps]


@dataclass(frozen=True)
class _Stall:
    """A request that decodes, held up by steps that only prefill for others."""

    life: Life
    ns: int
    steps: Ints
    start: int
    end: int
    longest: int


@rule(
    "R02",
    "PREFILL-DECODE-IMBALANCE",
    "scheduling",
    Stage.QUEUE,
    disproof="decode steps, or steps that prefill and decode, between the prefill steps named",
)
def prefill_before_decode(case: Case) -> Hint | None:
    """A request that could decode waits while steps prefill for others.

    Symptom: `steps` prefill-only steps in a row while a decode is runnable; or an inter-token time
    over `itl_ratio` times the median, `covered` of it under other requests' prefill; or more than
    `token_share` of the tokens of mixed steps being prefill for `long_ns`, at a cost of
    `lost_share` of the latency. Source: proposal; threads C02, C03, C05, C06. Disproof: decode
    steps in between.
    """
    limits = case.limits("R02")
    stalls = [stall for life in case.lives for stall in _stalls(case, life, limits["steps"])]
    if not stalls:
        return _mixed_steps(case)
    worst = max(stalls, key=lambda stall: stall.ns)
    rows = np.unique(np.concatenate([stall.steps for stall in stalls]))
    recording = case.recording_of(worst.life)
    owner, tokens, chunks = _owner(recording, worst.steps, worst.life.request.id)
    others = len({stall.life.request.id for stall in stalls}) - 1
    charge = over([(s.life, s.ns, s.start, s.end) for s in _by_request(stalls)])
    more = f", and {plural(others, 'other request')} behind prefill too" if others else ""
    return Hint(
        f"Request {name(worst.life.request.id)} stalled {time(worst.ns)} behind the prefill of"
        f" request {name(owner)} ({plural(tokens, 'token')} in {plural(chunks, 'chunk')}){more}",
        "high",
        charge,
        {
            "stalled_request": worst.life.request.id,
            "stalled_ns": worst.ns,
            "prefill_request": owner,
            "prefill_tokens": tokens,
            "chunks": chunks,
            "prefill_only_steps": len(rows),
            "longest_itl_ns": worst.longest,
            "median_itl_ns": _median_gap(worst.life),
        },
    )


def _stalls(case: Case, life: Life, fewest: float) -> Iterator[_Stall]:
    """The waits of a request after its first token that are long in steps or in time."""
    request, limits = life.request, case.limits("R02")
    recording = case.recording_of(life)
    if request.first_token is None or recording is None:
        return
    steps, pieces = recording.steps, life.pieces
    foreign = (pieces.label == INTERFERENCE) & (life.step >= 0)
    if not foreign.any():
        return
    only = (steps.prefill_tokens > 0) & (steps.decode_tokens == 0)
    rows = np.flatnonzero(foreign & np.append(only, False)[life.step])
    rows = rows[pieces.start[rows] >= request.first_token]
    median = _median_gap(life)
    for run in _in_a_row(life.step[rows]):
        mine = rows[run]
        begin, end = int(pieces.start[mine[0]]), int(pieces.end[mine[-1]])
        ns, gap = int((pieces.end - pieces.start)[mine].sum()), _gap_around(life, begin)
        count = len(np.unique(life.step[mine]))
        slow = gap is not None and median is not None and gap > limits["itl_ratio"] * median
        if count >= fewest or (slow and gap and ns >= limits["covered"] * gap):
            yield _Stall(life, ns, np.unique(life.step[mine]), begin, end, gap or ns)


def _in_a_row(steps: Ints) -> list[Ints]:
    """Places of pieces in runs of consecutive steps."""
    if not len(steps):
        return []
    cuts = np.flatnonzero(np.diff(steps) > 1) + 1
    return np.split(np.arange(len(steps)), cuts)


def _gap_around(life: Life, at: int) -> int | None:
    """The time between the tokens before and after an instant."""
    times = np.array(life.request.tokens, np.int64)
    place = int(np.searchsorted(times, at, "right"))
    return int(times[place] - times[place - 1]) if 0 < place < len(times) else None


def _median_gap(life: Life) -> int | None:
    return percentile(sorted(np.diff(np.array(life.request.tokens, np.int64)).tolist()), 50)


def _by_request(stalls: Sequence[_Stall]) -> list[_Stall]:
    """One stall a request, times added."""
    found: dict[str, _Stall] = {}
    for stall in stalls:
        id = stall.life.request.id
        first = found.get(id)
        if first is None:
            found[id] = stall
        else:
            found[id] = replace(first, ns=first.ns + stall.ns, end=max(first.end, stall.end))
    return list(found.values())


def _owner(recording: Recording | None, rows: Ints, id: str) -> tuple[str, int, int]:
    """Whose prefill fills some steps: the request with most tokens, its tokens and its steps."""
    tokens: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    if recording is None:
        return "?", 0, len(rows)
    batch, strings = recording.steps.batch, recording.timeline.strings
    mine = np.flatnonzero(np.isin(batch["step"], rows))
    for row in mine.tolist():
        who = strings[int(batch["request"][row])]
        if who != id:
            count = batch["tokens"][row]
            tokens[who] += int(count) if known(count) else 0
            steps[who] += 1
    if not steps:
        return "?", 0, len(rows)
    owner = max(steps, key=lambda who: (tokens[who], steps[who]))
    return owner, tokens[owner], steps[owner]


def _mixed_steps(case: Case) -> Hint | None:
    """Decodes slowed by prefill in the same steps for longer than `long_ns`."""
    limits = case.limits("R02")
    best: tuple[int, Member] | None = None
    for member in case.job.ranks:
        ns = _mixed_ns(member, limits["token_share"])
        if ns > limits["long_ns"] and (best is None or ns > best[0]):
            best = ns, member
    if best is None:
        return None
    slowed = [(life, _excess(life)) for life in case.lives]
    slowed = [(life, ns) for life, ns in slowed if ns]
    if not slowed:
        return None
    charge = over([(life, ns, None, None) for life, ns in slowed])
    lost = sum(ns for _, ns in slowed)
    if (charge.share or 0) < limits["lost_share"]:
        return None
    return Hint(
        f"Decodes share their steps with prefill for {time(best[0])} and lose"
        f" {summed(lost, len(slowed))}",
        "medium",
        charge,
        {"mixed_ns": best[0], "lost_ns": lost, "requests_slowed": len(slowed)},
    )


def _mixed_ns(member: Member, least: float) -> int:
    """How long steps with decodes last whose tokens are mostly prefill, ns."""
    recording, partition = member
    steps, rows = recording.steps, partition.steps
    prefill, decode = steps.prefill_tokens[rows], steps.decode_tokens[rows]
    mostly = (decode > 0) & (prefill > least * (prefill + decode))
    return int((partition.step_end[rows] - steps.start[rows])[mostly].sum())


def _excess(life: Life) -> int:
    sat_out = int(life.totals[INTERFERENCE])
    return max(sum(one.ns for one in life.interference) - sat_out, 0)


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

    Symptom: spans with such names take `step_share` of the step time while the device is idle.
    Source: proposal; thread C27. Disproof: equal steps without a grammar.
    """
    spans = records.spans_named(case, _GRAMMAR)
    parts = ("scheduling.host", "scheduling.jit", "scheduling.other")
    loss = case.of_steps(parts, spans)
    if not loss.ns or loss.share < case.limits("R39")["step_share"]:
        return None
    return Hint(
        f"Guided decoding costs {time(loss.a_step)} per step",
        "high",
        case.charge(parts, spans),
        {
            "grammar_ns": loss.ns,
            "step_ns": loss.total,
            "step_share": loss.share,
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
        (life.request.arrival or 0, _ttft(life) or 0) for life in case.lives if _ttft(life)
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

    Symptom: writes take `share` of the time after the first token, and their thread is not on the
    CPU meanwhile. Source: proposal. Disproof: writes that return at once.
    """
    limits = case.limits("R50")
    found = [one for one in records.network_spans(case) if _WRITES.search(one.name)]
    charge = records.own_spans_charge(case, found, after_first=True)
    on_cpu = records.state_share(case, found, "running")
    if not charge.total or charge.ns < limits["share"] * charge.total:
        return None
    if on_cpu is not None and on_cpu > limits["on_cpu"]:
        return None
    return Hint(
        f"Socket writes block for {charge.told}: the client of"
        f" {plural(len(charge.requests), 'request')} reads slowly",
        "medium" if on_cpu is None else "high",
        charge,
        {"write_ns": charge.ns, "writes": len(found), "on_cpu_share": on_cpu},
    )
