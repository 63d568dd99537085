"""What removing a cause would save: a replay of the dependency graph without the time it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rca_llm.hints.case import Case
from rca_llm.hints.model import Hint, Rule, Stage
from rca_llm.whatif import DERIVED, Model, savings, window
from rca_llm.whatif.change import Change
from rca_llm.whatif.replay import replay

Found = tuple[Rule, Hint]

MOST = 8
"""Hints that are replayed, those with the largest charge; the others keep their charge."""


def replayed(found: Sequence[Found], case: Case) -> list[Found]:
    """The same hints, with what a replay without each would save.

    Where time follows from other causes (queueing, interference, preemption), where a rule knows
    better, and over several ranks whose collectives were not all recorded, so that nothing ties
    them to each other, the saving stays what is charged.
    """
    wanted = sorted(
        (place for place, one in enumerate(found) if _removable(*one)),
        key=lambda place: -found[place][1].charge.ns,
    )[:MOST]
    if not wanted or not _tied(case):
        return list(found)
    return [
        (rule, _saves(hint, case.model) if place in wanted else hint)
        for place, (rule, hint) in enumerate(found)
    ]


def _tied(case: Case) -> bool:
    """Whether a replay knows how the ranks wait for each other: by complete collectives."""
    if len(case.job.ranks) == 1:
        return True
    held = {part.rank for one in case.job.collectives if one.complete for part in one.parts}
    numbers = {partition.rank.number for _, partition in case.job.ranks}
    return bool(numbers) and numbers <= held


def _removable(rule: Rule, hint: Hint) -> bool:
    charge = hint.charge
    settled = hint.unjudged or hint.saving_ns is not None or rule.stage is Stage.GATE
    held = bool(charge.parts) and (hint.replays or _free(charge.parts))
    return not settled and charge.ns > 0 and held


def _free(parts: Sequence[str]) -> bool:
    """Whether all parts can be removed by themselves."""
    return not any(part in DERIVED for part in parts)


def _saves(hint: Hint, model: Model) -> Hint:
    charge = hint.charge
    left = {part: hint.kept.get(part, 0.0) for part in charge.parts}
    change = Change(left, charge.within, hint.merged)
    new = replay(model.graph, change)
    if not charge.requests:
        saved = window(model, new)["saved_ns"]
    else:
        each = savings(model, new, change)
        told = [each[id] for id in charge.requests if id in each]
        saved = sum(told) if told else None
    return hint if saved is None else replace(hint, saving_ns=max(saved, 0))
