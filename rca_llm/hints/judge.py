"""Runs the rules in the order of exclusion and turns what they say into ordered rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rca_llm.hints import records
from rca_llm.hints.advice import advice
from rca_llm.hints.case import Case
from rca_llm.hints.model import LOWERED, RULES, Hint, Rule, Stage
from rca_llm.hints.saving import replayed

Found = tuple[Rule, Hint]

MOST_REQUESTS = 1000
"""How many requests a hint names."""

POWER_LIMIT = 0x4
"""The throttle reason of NVML that says so (`nvmlClocksEventReasonSwPowerCap`)."""

EARLIER = {
    Stage.QUEUE: ("scheduling.queue", "scheduling.prefill_interference", "scheduling.preempt"),
    Stage.PEER: ("communication.wait",),
    Stage.HOST: (
        *("scheduling.host", "scheduling.gc", "scheduling.gil", "scheduling.cpu_wait"),
        *("scheduling.jit", "scheduling.tokenize", "scheduling.detokenize", "scheduling.alloc"),
    ),
    Stage.LAUNCH: ("scheduling.launch", "scheduling.sync"),
}
"""What the stages before device efficiency explain."""


def judge(case: Case, rules: Sequence[Rule] = RULES) -> list[dict[str, Any]]:
    """The hints of a case as the contract's rows, the largest saving first."""
    found: list[Found] = []
    for rule in sorted(rules, key=lambda rule: rule.stage):
        if _silenced(rule, case):
            continue
        for hint in _said(rule, case):
            found.append((rule, _weighed(rule, hint, case)))
            if rule.stage is Stage.GATE:
                case.failed[rule.id] = hint.title
                case.blocking |= {rule.id} if hint.blocks else set[str]()
    if rules is RULES:  # of single ranks of a job nobody can say what all would save
        found = replayed(found, case)
    found = _without_false_blame(_capped(found), case)
    return [_row(rule, hint, case) for rule, hint in sorted(found, key=_order)]


def _silenced(rule: Rule, case: Case) -> bool:
    """Whether a failed gate has taken away what the rule reads."""
    lost = "G1" in case.blocking or any(part.rank.cut for _, part in case.job.ranks)
    return (rule.idle and "G2" in case.blocking) or (rule.peers and lost)


def _said(rule: Rule, case: Case) -> Sequence[Hint]:
    said = rule.function(case)
    return [] if said is None else [said] if isinstance(said, Hint) else said


def _weighed(rule: Rule, hint: Hint, case: Case) -> Hint:
    """A hint with less confidence where tracing itself or uncovered steps blur what it reads."""
    if rule.stage is Stage.GATE:
        return hint
    blurred = ("G5" in case.failed and rule.stage in (Stage.HOST, Stage.LAUNCH)) or (
        rule.idle and (case.graph_level or not {"G2", "G6"}.isdisjoint(case.failed))
    )
    confidence = LOWERED[hint.confidence] if blurred else hint.confidence
    title = hint.title
    if confidence == "low" and "ossibl" not in title:
        title = f"Possible: {title}"
    return replace(hint, confidence=confidence, title=title)


def _capped(found: list[Found]) -> list[Found]:
    """No hint claims more than the hint that explains it."""
    savings: dict[str, int] = {}
    for rule, hint in found:
        if hint.saving is not None:
            savings[rule.id] = max(savings.get(rule.id, 0), hint.saving)
    return [(rule, _cap(hint, savings)) for rule, hint in found]


def _cap(hint: Hint, savings: dict[str, int]) -> Hint:
    causes = [savings[id] for id in hint.explained_by if id in savings]
    if not causes or hint.saving is None:
        return hint
    return replace(hint, saving_ns=min(hint.saving, max(causes)))


def _without_false_blame(found: list[Found], case: Case) -> list[Found]:
    """Leave out device efficiency where an earlier class explains more and nothing says so."""
    explained = max((case.time_of(*parts) for parts in EARLIER.values()), default=0)
    earlier = max((hint.saving or 0 for rule, hint in found if rule.stage < Stage.DATA), default=0)
    kept: list[Found] = []
    for rule, hint in found:
        saving = hint.saving or 0
        overshadowed = saving <= explained and saving > earlier
        if rule.stage is Stage.DEVICE and overshadowed:
            continue
        kept.append((rule, hint))
    return kept


def _order(found: Found) -> tuple[bool, int, bool, int, str]:
    """The largest saving first, unknown ones last; of equal ones the cause before its effect."""
    rule, hint = found
    saving = hint.saving
    return (saving is None, -(saving or 0), bool(hint.explained_by), rule.stage, rule.id)


def _row(rule: Rule, hint: Hint, case: Case) -> dict[str, Any]:
    charge = hint.charge
    return {
        "id": rule.id,
        "title": hint.title,
        "class": hint.class_ or rule.class_,
        "confidence": hint.confidence,
        "share": charge.share,
        "saving_ns": hint.saving,
        "evidence": dict(_evidence(rule, hint, case)),
        "requests": list(charge.requests[:MOST_REQUESTS]),
        "window": _window(hint, case),
        "advice": advice(rule.id, case.engine, hint.advice, _settings_on(case)),
    }


def _settings_on(case: Case) -> list[str]:
    return [name for name, on in case.settings.items() if on]


def _evidence(rule: Rule, hint: Hint, case: Case) -> Iterator[tuple[str, Any]]:
    """The numbers compared, and all that is needed to judge them."""
    yield "rule", rule.name
    yield from hint.numbers.items()
    yield "charged_ns", hint.charge.ns
    yield "of_ns", hint.charge.total
    yield "population", hint.charge.population or "the whole trace"
    limits = case.limits(rule.id)
    if limits:
        yield "thresholds", dict(limits)
    if hint.explained_by:
        yield "explained_by", ", ".join(hint.explained_by)
    yield "disproved_by", rule.disproof
    blurred = [text for id, text in case.failed.items() if id in ("G2", "G4", "G5", "G6")]
    if blurred and rule.stage is not Stage.GATE:
        yield "data", "; ".join(blurred)
    limited = case.once(("power limit",), lambda: _power_limited(case))
    if limited and hint.saving and Stage.GATE < rule.stage < Stage.STATE:
        yield "power", limited


def _power_limited(case: Case) -> str | None:
    """Says that a GPU could use no more power, where most samples tell so.

    It then works faster while some of its time is idle, which no replay can know.
    """
    values = [int(value) for _, value in records.samples(case, "gpu.throttle_reasons")]
    held = sum(bool(value & POWER_LIMIT) for value in values)
    if held * 2 <= len(values):
        return None
    return (
        f"the GPU was held at its power limit in {held} of {len(values)} samples: without idle time"
        " it works more slowly, and less is saved"
    )


def _window(hint: Hint, case: Case) -> dict[str, int] | None:
    """From when to when the hint was seen; of nothing narrower, the whole trace."""
    charge, window = hint.charge, case.summary["window"]
    if charge.start is None or charge.end is None:
        return {"start_ns": window["start_ns"], "end_ns": window["end_ns"]}
    return {"start_ns": charge.start, "end_ns": charge.end}
