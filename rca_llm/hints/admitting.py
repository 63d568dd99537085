"""What requests would save that wait for admission, if all were admitted when they are ready.

An engine that runs more at one time makes larger batches, and larger batches take longer: so much
of the wait comes back as slower steps. How long a step takes is fitted over the steps at hand, by
the tokens that it prefills and the requests that it decodes; then the load is served once more, by
arithmetic, with the observed limit and without. Arrivals stay where they were.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from rca_llm.attribute.job import Member
from rca_llm.attribute.life import Life
from rca_llm.hints.case import Case
from rca_llm.table import Array, Ints
from rca_llm.whatif.arrivals import admission

FEWEST_STEPS, MOST_STEPS = 10, 200_000
"""With fewer steps nothing can be fitted; with more, serving them again takes too long."""

AGREES = 0.1
"""How far latencies served with the observed limit may be from those measured."""

SURE = 2.0
"""Standard errors above 0 from which a step is taken to grow with something."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Period:
    """How long a step is: a constant, and more for prefilled tokens and decoded requests, ns."""

    constant: float
    token: float
    request: float

    def __call__(self, tokens: int, requests: int) -> float:
        """Of a step that prefills so many tokens and decodes so many requests."""
        return self.constant + self.token * tokens + self.request * requests


@dataclass
class Asked:
    """A request to be served again: when it is ready, the tokens of its prefills, its decodes."""

    ready: float
    prefills: list[int]
    decodes: int
    done: float = field(default=0.0)


def saved_without_queue(case: Case) -> int | None:
    """What admission without a wait would save, over all requests, ns; None where that is unknown.

    The fraction that the arithmetic saves, of what was measured. Unknown without the batches of the
    steps, with preemptions, and where the same arithmetic with the observed limit does not give the
    measured latencies back.
    """
    number = next((n for n, (r, _) in enumerate(case.job.ranks) if len(r.steps.batch)), None)
    if number is None:
        return None
    member = case.job.ranks[number]
    base = member[1].rank.start
    lives = [life for life in case.finished if life.request.arrival is not None]
    asked = [_asked(member, life, base) for life in lives]
    period = _period(case, number)
    known = [one for one in asked if one is not None]
    if period is None or len(known) < len(asked) or not known:
        return None
    limit = int(member[0].steps.size[member[1].steps].max(initial=1))
    measured = sum(_in_engine(life) for life in lives)
    with_limit = _served(known, period, limit)
    if not measured or abs(with_limit / measured - 1) > AGREES:
        return None
    return round(measured * (1 - _served(known, period, len(known)) / with_limit))


def _in_engine(life: Life) -> int:
    """From when a request could be admitted to its last token, ns."""
    one, tokens = admission(life), life.request.tokens
    last = tokens[-1] if tokens else int(life.pieces.end[-1])
    return 0 if one is None else last - one.ready


def _asked(member: Member, life: Life, base: int) -> Asked | None:
    """What a request asks of the engine, ready at a time after `base`; None where not known."""
    recording, _ = member
    steps, strings = recording.steps, recording.timeline.strings
    code, one = strings.find(life.request.id), admission(life)
    if one is None or code < 0 or life.request.preempted:
        return None
    rows = np.flatnonzero((steps.batch["request"] == code) & (steps.batch["step"] >= 0))
    phase, tokens = steps.batch["phase"][rows], steps.batch["tokens"][rows]
    prefills, decodes = (phase == strings.find(text) for text in ("prefill", "decode"))
    if not prefills.any() or not (prefills | decodes).all() or (tokens[prefills] < 0).any():
        return None
    return Asked(float(one.ready - base), tokens[prefills].tolist(), int(decodes.sum()))


def _period(case: Case, number: int) -> Period | None:
    """How long the steps of a rank (an index) are, each up to the next where that follows."""
    recording, partition = case.job.ranks[number]
    steps, rows = recording.steps, partition.steps
    if not FEWEST_STEPS <= len(rows) <= MOST_STEPS:
        return None
    start, end = steps.start[rows], partition.step_end[rows]
    until = np.where(case.followed(number), np.append(start[1:], end[-1:]), end)
    tokens = np.maximum(steps.prefill_tokens[rows], 0)
    decode = recording.timeline.strings.find("decode")
    decoding = np.bincount(
        steps.batch["step"][(steps.batch["phase"] == decode) & (steps.batch["step"] >= 0)],
        minlength=len(steps),
    )[rows]
    return fitted(until - start, tokens, decoding)


def fitted(lasting: Ints, tokens: Ints, requests: Ints) -> Period:
    """The period by tokens and requests, from steps; what is not surely above 0 is left out.

    Tokens come first: a full engine decodes the fewer the more it prefills, and the two cannot be
    told apart. Large residuals count less (Huber), since pauses lengthen single steps; the whole is
    then scaled to the time that all steps took.
    """
    wanted = lasting.astype(np.float64)
    both = tokens.astype(np.float64), requests.astype(np.float64)
    kept: list[int] = []
    factors = np.array([wanted.mean()])
    for place in (0, 1, 0):  # what the requests hid may show once they are told apart
        if place in kept or not _apart([both[one] for one in (*kept, place)]):
            continue
        tried, errors = _solved(wanted, [both[one] for one in (*kept, place)])
        if tried[0] > 0 and tried[-1] > SURE * errors[-1]:
            factors = tried
            kept.append(place)
    table = np.column_stack([np.ones(len(wanted)), *(both[one] for one in kept)])
    factors = factors * (wanted.sum() / (table @ factors).sum())
    slopes = dict(zip(kept, factors[1:].tolist(), strict=True))
    return Period(float(factors[0]), slopes.get(0, 0.0), slopes.get(1, 0.0))


def _apart(columns: Sequence[Array]) -> bool:
    """Whether the last column varies, and is not nearly what the others and a constant make."""
    last = columns[-1]
    others = np.column_stack([np.ones(len(last)), *columns[:-1]])
    rest = last - others @ np.linalg.lstsq(others, last, rcond=None)[0]
    return bool(last.std() > 0 and rest.std() > LEAST_OWN * last.std())


LEAST_OWN = 0.3
"""How much of its spread a quantity must have by itself to be told from the others."""


def _solved(wanted: Floats, columns: Sequence[Array]) -> tuple[Floats, Floats]:
    """Weighted least squares: the factors, a constant first, and their standard errors."""
    table: Floats = np.column_stack([np.ones(len(wanted)), *columns]).astype(np.float64)
    weight, factors, spread = np.ones(len(wanted)), np.zeros(table.shape[1]), 1.0
    for _ in range(20):
        root = np.sqrt(weight)
        found = np.linalg.lstsq(table * root[:, None], wanted * root, rcond=None)[0]
        factors = np.asarray(found, np.float64)
        off = np.abs(wanted - table @ factors)
        spread = max(1.4826 * float(np.median(off)), 1.0)
        weight = np.minimum(1.0, 1.345 * spread / np.maximum(off, 1e-9))
    normal: Floats = np.asarray((table * weight[:, None]).T @ table, np.float64)
    inverse: Floats = np.asarray(np.linalg.pinv(normal), np.float64)
    errors = spread * np.sqrt(np.maximum(inverse.diagonal(), 0.0))
    return factors, np.maximum(errors, _unsteady(table, weight, wanted))


def _unsteady(table: Floats, weight: Floats, wanted: Floats) -> Floats:
    """The standard errors by leaving out one stretch of steps at a time.

    A machine that is slow for a while lengthens steps that follow each other, which the spread of
    single steps does not tell from what they do.
    """
    edges = np.linspace(0, len(wanted), STRETCHES + 1).astype(np.int64)
    normal = np.zeros((STRETCHES, table.shape[1], table.shape[1]))
    right = np.zeros((STRETCHES, table.shape[1]))
    for place, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
        left: Floats = np.asarray(table[start:end].T * weight[start:end], np.float64)
        normal[place], right[place] = left @ table[start:end], left @ wanted[start:end]
    rest: Floats = normal.sum(0) - normal
    inverse: Floats = np.asarray(np.linalg.pinv(rest), np.float64)
    found: Floats = np.einsum("sij,sj->si", inverse, right.sum(0) - right)
    return np.asarray(np.sqrt((STRETCHES - 1) * found.var(axis=0)), np.float64)


STRETCHES = 8
"""As many parts of the steps, in their order, are left out in turn."""


def _served(asked: Sequence[Asked], period: Period, limit: int) -> float:
    """The latencies of some requests in an engine that runs at most so many, summed, ns."""
    coming = deque(sorted(asked, key=lambda one: one.ready))
    filling: list[tuple[Asked, deque[int]]] = []
    leaving: dict[int, list[Asked]] = {}
    decoding, now = 0, 0.0
    for number in count():
        if not coming and not filling and not decoding:
            break
        if coming and not filling and not decoding:
            now = max(now, coming[0].ready)
        while coming and coming[0].ready <= now and len(filling) + decoding < limit:
            one = coming.popleft()
            filling.append((one, deque(one.prefills)))
        now += period(sum(parts.popleft() for _, parts in filling), decoding)
        filled = [one for one, parts in filling if not parts]
        filling = [row for row in filling if row[1]]
        for one in filled:
            leaving.setdefault(number + one.decodes, []).append(one)
        gone = leaving.pop(number, [])
        for one in gone:
            one.done = now
        decoding += len(filled) - len(gone)
    return sum(one.done - one.ready for one in asked)
