"""The settings of a prediction: which parts take another time, by a factor each."""

from __future__ import annotations

from collections.abc import Sequence

from rca_llm.attribute.parts import PARTS
from rca_llm.errors import RcaError

DERIVED = (
    *("communication.wait", "scheduling.queue", "scheduling.preempt", "scheduling.recompute"),
    *("scheduling.prefill_interference", "scheduling.client"),
    *("unknown.not_traced", "unknown.not_recorded"),
)
"""Parts that follow from the others, or that nobody can change."""


LARGEST_FACTOR = 1_000
"""With it, the times of a trace of three months still fit into 64 bits."""


def factors(settings: Sequence[str]) -> dict[str, float]:
    """The factor of every part that `NAME=FACTOR` settings change; a class stands for its parts,
    of which one that is named itself has its own factor.

    Raises `RcaError` for anything else.
    """
    found: dict[str, float] = {}
    names: set[str] = set()
    for setting in sorted(settings, key=lambda one: "." in one.partition("=")[0]):
        name, _, text = setting.partition("=")
        if not name:
            raise RcaError(f"--set {setting}: expected NAME=FACTOR; the name is missing")
        parts = [p for p in PARTS if name in (p, p.partition(".")[0]) and p not in DERIVED]
        if name in DERIVED:
            raise RcaError(f"{name} follows from the other parts and cannot be set")
        if not parts:
            raise RcaError(f"{name}: no such class or part; see the parts of a report")
        if name in names:
            raise RcaError(f"{setting}: {name} is set twice; give it one factor")
        names.add(name)
        found |= dict.fromkeys(parts, _factor(text, setting))
    return found


def _factor(text: str, setting: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_FACTOR:
        raise RcaError(f"{setting}: expected NAME=FACTOR with a factor of 0 to {LARGEST_FACTOR:,}")
    return value
