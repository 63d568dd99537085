"""What a rule is and what it says: stages, charges, hints, and the one list of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from rca_llm.hints.wording import summed
from rca_llm.table import Ints

if TYPE_CHECKING:
    from rca_llm.hints.case import Case

Confidence = Literal["high", "medium", "low"]
"""High: direct evidence of the cause. Medium: the symptom, and alternatives excluded. Low: the
symptom alone."""

LOWERED: Mapping[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}
"""One step less sure."""


class Stage(IntEnum):
    """The order of exclusion: what an earlier stage explains, a later one must not claim.

    `DATA` is the way of data to and between devices, `STATE` a device's clocks and who shares it,
    `DEVICE` how well kernels use it, `SYMPTOM` what has no cause of its own.
    """

    GATE = 0
    CLIENT = 1
    QUEUE = 2
    PEER = 3
    HOST = 4
    LAUNCH = 5
    DATA = 6
    STATE = 7
    DEVICE = 8
    SYMPTOM = 9


@dataclass(frozen=True)
class Charge:
    """Latency that a cause is charged with: `ns` out of `total`, that of the requests touched.

    Where a trace has no requests, `total` is the span of the rank that lost most.
    """

    ns: int
    total: int
    requests: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    population: str = ""
    parts: tuple[str, ...] = ()
    """The parts that it is charged in; none where it was found in another way."""
    within: tuple[Ints, Ints] | None = field(default=None, compare=False)
    """Starts and ends of the time it is charged in, ns; None: anywhere."""

    @property
    def told(self) -> str:
        """The time in words, with how many requests it is summed over."""
        return summed(self.ns, len(self.requests))

    @property
    def share(self) -> float | None:
        """The fraction of the time judged, None of nothing."""
        return min(self.ns / self.total, 1.0) if self.total > 0 else None


@dataclass(frozen=True)
class Hint:
    """One finding of a rule; the rest of its row follows from the rule itself."""

    title: str
    confidence: Confidence
    charge: Charge
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    saving_ns: int | None = None
    """None: what a replay without it saves, else what is charged. `unjudged`: nobody can say."""
    unjudged: bool = False
    kept: Mapping[str, float] = field(default_factory=dict[str, float])
    """What of the charged parts would be left without the cause, as a fraction; others: nothing."""
    merged: bool = False
    """Whether what is left would be one piece of work that starts once, not as many as now."""
    replays: bool = False
    """Whether a replay knows what becomes of the charged parts, which follow from others."""
    class_: str | None = None
    """None: that of the rule."""
    explained_by: tuple[str, ...] = ()
    """Rules whose hint, if given, is the cause of this one."""
    blocks: bool = False
    """Of a gate: rules that read what it took away are silent, not only less sure."""
    advice: str | None = None
    """More than the advice that stands in `advice.toml`."""

    @property
    def saving(self) -> int | None:
        """What removing the cause would save, ns."""
        if self.unjudged:
            return None
        return self.charge.ns if self.saving_ns is None else self.saving_ns


Result = Hint | Sequence[Hint] | None
Function = Callable[["Case"], "Hint | Sequence[Hint] | None"]


@dataclass(frozen=True)
class Rule:
    """A rule of the catalogue: who it is, where it stands, and the function that decides."""

    id: str
    name: str
    class_: str
    stage: Stage
    function: Function
    idle: bool = False
    """Reads idle time: silent while device work was lost (gate G2)."""
    peers: bool = False
    """Compares ranks: silent while some were not traced (gate G1)."""
    disproof: str = ""


RULES: list[Rule] = []
"""All rules, gates included, in the order in which their modules register them."""


def rule(
    id: str,
    name: str,
    class_: str,
    stage: Stage,
    *,
    disproof: str,
    idle: bool = False,
    peers: bool = False,
) -> Callable[[Function], Function]:
    """Register a function as a rule; `disproof` says what would show that its hint is wrong."""

    def register(function: Function) -> Function:
        RULES.append(Rule(id, name, class_, stage, function, idle, peers, disproof))
        return function

    return register
