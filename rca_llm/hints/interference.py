"""Decodes that wait for, or share their steps with, the prefill of other requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rca_llm.attribute.job import Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE
from rca_llm.hints.case import Case, over
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.wording import name, plural, summed, time
from rca_llm.summary.stats import percentile
from rca_llm.table import Ints, known

INTERFERENCE = CODE["scheduling.prefill_interference"]


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
    if not life.totals[INTERFERENCE]:
        return
    steps, pieces = recording.steps, life.pieces
    foreign = (pieces.label == INTERFERENCE) & (life.step >= 0)
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
    return max(sum(one.ns for one in life.interference if one.step is not None) - sat_out, 0)
