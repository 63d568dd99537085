"""Who waited for whom, how long and why, where the program delayed ranks on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rca_llm.report import build
from rca_llm.table import Table
from rca_llm.trace import TABLES, Timeline, Trace
from tests.nccl_truth.calls import compare_calls, compare_ranks
from tests.nccl_truth.truth import TOLERANCE, Findings, Recording, Truth, near

STEPS = 10
"""Steps of a request, as in `nccl_work.py`."""

UNEVEN = 0.10
"""A window is not clean if by the ranks' own clocks one's host lost more of it than this."""

LATE_RANK_DOES = {
    "sleep": ("scheduling.host", "scheduling.other"),
    "gc": ("scheduling.gc",),
    "hog": ("scheduling.cpu_wait",),
}
"""What the late rank's time may be charged to, by what was injected."""

RULES = {"sleep": "R05", "gc": "R08", "hog": "R07"}
"""The rule that must be among the hints for each cause."""


def waits_of(recorded: Recording, phase: str, rank: int) -> list[int]:
    """How long a rank waited for the last one in each collective of a phase, ns."""
    return [
        one.arrived - part.start if one.arrived is not None else 0
        for part, one in recorded.within(rank, phase)
    ]


def first_waits(recorded: Recording, phase: str, rank: int, steps: int) -> list[int]:
    """The waiting in the first collective of each step; all steps have equally many.

    A delay before a step shows there as it is. In those that follow, a rank that launches kernel
    by kernel also shows how long that takes, since the others have launched everything meanwhile.
    """
    waits = waits_of(recorded, phase, rank)
    return waits[:: max(len(waits) // steps, 1)]


def check_late(found: Findings, recorded: Recording, told: Sequence[Truth], name: str) -> None:
    """The steps of a request that began late on the last rank."""
    phase = told[-1].phase(name)
    delayed = phase["delays"]
    for truth in told[:-1]:
        first = first_waits(recorded, name, truth.rank, STEPS)
        waited = [first[step] for step in phase["late"]]
        total = sum(waits_of(recorded, name, truth.rank))
        found.facts[f"wait {name} {truth.rank}"] = {"first": first, "total": total}
        close = all(abs(w / d - 1) <= TOLERANCE for w, d in zip(waited, delayed, strict=True))
        found.hold(f"waiting in {name} within 5 %", close, waited, delayed)


def cut(timeline: Timeline, begin: int, end: int) -> Timeline:
    """What began in a stretch of time, as a recording of its own."""
    own = timeline.copy()
    own.tables = {}
    for name, table in timeline.tables.items():
        column = next((c for c in ("start", "t") if TABLES[name].get(c) == "time"), None)
        if name in ("batch", "requests", "tokens"):
            continue
        own.tables[name] = table if column is None else _between(table, column, begin, end)
    return own


def _between(table: Table, column: str, begin: int, end: int) -> Table:
    times = table[column]
    return table.take(np.flatnonzero((times >= begin) & (times < end)))


def piece(recorded: Recording, told: Sequence[Truth], phase: str) -> dict[str, Any]:
    """The summary of one phase alone."""
    sides = [recorded.window(truth.rank, phase) for truth in told]
    begin, end = min(side[0] for side in sides), max(side[1] for side in sides)
    pieces = [cut(timeline, begin, end) for timeline in recorded.trace.timelines]
    return build(Trace(pieces)).summary


def check_delays(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """Clean windows name nobody; injected delays are found, with rank, size and cause."""
    found = Findings()
    compare_calls(found, recorded, told)
    compare_ranks(found, recorded, told)
    check_clean(found, recorded, told)
    for phase in told[0].phases:
        if "cause" in phase:
            check_cause(found, recorded, told, phase["name"])
    return found


def check_clean(found: Findings, recorded: Recording, told: Sequence[Truth]) -> None:
    """Windows in which nobody is delayed on purpose, and by the ranks' own clocks nobody was."""
    windows = [phase["name"] for phase in told[0].phases if phase["name"].startswith("clean")]
    named = {name: late_rank(recorded, told, name) for name in windows}
    uneven = {name: lost_most(told, name) for name in windows}
    found.facts["named in clean windows"] = {k: v for k, v in named.items() if v is not None}
    found.facts["share of a window that a host lost"] = {k: v[1] for k, v in uneven.items()}
    clean = [name for name in windows if uneven[name][1] <= UNEVEN]
    quiet = sum(named[name] is None for name in clean)
    silent = sum(rank is None for rank in named.values())
    found.facts["windows"] = {"all": len(windows), "all quiet": silent, "clean": len(clean)}
    enough = len(clean) > 0 and quiet >= 0.95 * len(clean)
    found.hold("clean windows without a straggler", enough, quiet, len(clean))
    right = [named[name] in (None, uneven[name][0]) for name in windows if name not in clean]
    wanted = len(right)
    found.hold("a rank named in another window is the slow one", all(right), sum(right), wanted)


def late_rank(recorded: Recording, told: Sequence[Truth], name: str) -> int | None:
    """The rank that a window's report says the others wait for."""
    hints = {hint["id"]: hint for hint in piece(recorded, told, name)["hints"]}
    return hints["R05"]["evidence"]["rank"] if "R05" in hints else None


def lost_most(told: Sequence[Truth], name: str) -> tuple[int, float]:
    """The rank whose host took longest beyond the others, and that time as part of the window."""
    phases = [truth.phase(name) for truth in told]
    steps = list(zip(*(phase["host_ns"] for phase in phases), strict=True))
    lost = [sum(step[rank] - min(step) for step in steps) for rank in range(len(phases))]
    rank = max(range(len(lost)), key=lambda rank: lost[rank])
    return told[rank].rank, lost[rank] / (phases[rank]["end"] - phases[rank]["begin"])


def check_cause(found: Findings, recorded: Recording, told: Sequence[Truth], name: str) -> None:
    """One injected cause: who waited how long, for whom, and why."""
    first, last = told[0].phase(name), told[-1].phase(name)
    cause = last["cause"]
    summary = piece(recorded, told, name)
    hints = {hint["id"]: hint for hint in summary["hints"]}
    evidence = hints["R05"]["evidence"] if "R05" in hints else {}
    stood = first["end"] - first["begin"] - sum(first["host_ns"])
    waited = sum(first_waits(recorded, name, 0, len(last["delays"])))
    injected = sum(b - a for a, b in zip(first["delays"], last["delays"], strict=True))
    found.facts[name] = {
        "injected_ns": injected,
        "waited at the start of steps": waited,
        "rank 0 stood in synchronisation": stood,
        "R05": {key: evidence.get(key) for key in ("wait_ns", "carried_ns", "in_collectives_ns")},
        "communication.wait": summary["parts"].get("communication.wait", 0),
        "hints": [[id, hint["title"]] for id, hint in hints.items()],
        "late_rank_does": [evidence.get("late_rank_does"), evidence.get("late_rank_does_share")],
    }
    if cause != "hog":  # whose launching is slow as well
        near(found, f"{name}: waiting at the start of steps", waited, injected)
    near(found, f"{name}: R05's waiting", evidence.get("wait_ns", 0), stood)
    rank = evidence.get("rank")
    found.hold(f"{name}: rank named", rank == told[-1].rank, rank, told[-1].rank)
    does = evidence.get("late_rank_does")
    ok = RULES[cause] in hints and (does in LATE_RANK_DOES[cause] or cause == "hog")
    found.hold(f"{name}: cause", ok, [does, *hints], [RULES[cause], *LATE_RANK_DOES[cause]])
    if cause == "hog":  # whose thread runs half of the time that it is late
        away = last["end"] - last["begin"] - sum(last["cpu_ns"])
        ready = hints["R07"]["evidence"]["charged_ns"] if "R07" in hints else 0
        near(found, "ready but not running", ready, away)
