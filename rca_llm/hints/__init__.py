"""Root causes: rules over a summary, each with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rca_llm.hints import (
    access,
    clients,
    clocks,
    communication,
    copies,
    drains,
    efficiency,
    gates,
    host,
    interference,
    launch,
    memory,
    nodes,
    products,
    queueing,
    sharing,
)
from rca_llm.hints.case import Case
from rca_llm.hints.judge import judge
from rca_llm.hints.model import RULES, Rule
from rca_llm.hints.thresholds import Thresholds, load
from rca_llm.whatif import Model

__all__ = ["FAMILIES", "RULES", "explain", "put"]

FAMILIES: tuple[ModuleType, ...] = (
    gates,
    queueing,
    interference,
    clients,
    host,
    drains,
    launch,
    communication,
    copies,
    nodes,
    memory,
    efficiency,
    clocks,
    sharing,
    products,
    access,
)
"""The modules of rules; importing one registers its rules."""


def explain(
    summary: dict[str, Any],
    model: Model,
    thresholds: Thresholds | None = None,
    rules: Sequence[Rule] = RULES,
) -> None:
    """Put the hints into a summary, and the best of each class into its `class_stats`."""
    case = Case(summary, model, load() if thresholds is None else thresholds)
    put(summary, judge(case, rules))


def put(summary: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Put rows of hints, the best first, into a summary."""
    summary["hints"] = rows
    for name, row in summary["class_stats"].items():
        titles = [hint["title"] for hint in summary["hints"] if hint["class"] == name]
        row["hint"] = titles[0] if titles else None
