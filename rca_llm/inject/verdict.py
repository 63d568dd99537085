"""What a report says of an injected cause, held against its truth; and figures over many runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rca_llm.inject.catalogue import CAUSES

Summary = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One run: the rank of the true cause among the hints, and shares as said and as measured.

    `rank` counts from 1, None where no hint names the cause. `said` is the share of latency in the
    cause's parts; what its hint is charged with where that is more than parts tell, and what the
    hint would save where the cause has no parts. `high` are the hints of high
    confidence that name something else. `without_ns` are the summed latencies of runs of the same
    load without the cause, `load` the machine's load average when the row was made.
    """

    cause: str
    magnitude: float
    seed: int
    rank: int | None
    hints: list[str]
    said: float | None
    truth: float | None
    high: list[str]
    saving_ns: int | None = None
    injected_ns: int | None = None
    predicted_ns: float | None = None
    measured_ns: float | None = None
    note: str = ""
    with_ns: int | None = None
    without_ns: tuple[int, ...] = ()
    load: float | None = None
    charged_ns: int | None = None
    """What the hint of the cause is charged with; some advice leaves a part of that."""
    removed_ns: float | None = None
    """What a replay without all that was injected saves, where the hint claims less than that."""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def judged(summary: Summary, truth: dict[str, Any], **more: Any) -> Row:
    """What a summary says of a run whose truth is known."""
    hints = [row for row in summary["hints"] if not row["id"].startswith("G")]
    ids = [row["id"] for row in hints]
    places = [place for place, id in enumerate(ids, 1) if id in truth["hints"]]
    own = hints[places[0] - 1] if places else None
    return Row(
        truth["cause"],
        truth["magnitude"],
        truth["seed"],
        places[0] if places else None,
        ids,
        _said(summary, truth, own),
        truth["share"],
        [row["id"] for row in hints if row["confidence"] == "high" and row is not own],
        None if own is None else own["saving_ns"],
        truth["injected_ns"],
        charged_ns=None if own is None else own["evidence"].get("charged_ns"),
        **more,
    )


def _said(summary: Summary, truth: dict[str, Any], own: dict[str, Any] | None) -> float | None:
    """The share that a report gives the cause."""
    if CAUSES[truth["cause"]].charged:
        return None if own is None else own["share"]
    if not truth["parts"]:
        total = None if summary["requests"] else truth["latency_ns"]
        return None if own is None else _cost(own, total)
    wanted = {row["id"] for row in truth["requests"]}
    rows = [row for row in summary["requests"] if row["id"] in wanted]
    total = sum(row["latency_ns"] or 0 for row in rows)
    spent = sum(row["parts"].get(part, 0) for row in rows for part in truth["parts"])
    return spent / total if total else None


def _cost(own: dict[str, Any], latency: int | None) -> float | None:
    """The share of the time that a hint says its cause costs: what would be saved without it.

    What it is charged with where nobody can say: a kernel that uses the device badly is charged
    whole, and would take some of its time in any case. `latency` is that of the requests, ns, where
    a trace tells of none: its report has shares of the window then, in which the device also rests.
    """
    saving, total = own["saving_ns"], latency or own["evidence"]["of_ns"]
    share: float | None = own["share"]
    return saving / total if saving is not None and total else share


def errors(rows: Iterable[Row]) -> list[float]:
    """How far said and true shares are apart, in points, ascending."""
    both = [(row.said, row.truth) for row in rows]
    return sorted(abs(a - b) * 100 for a, b in both if a is not None and b is not None)


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The goals' figures over runs with a cause and over clean ones."""
    sick, clean = _split(rows)
    apart = errors(sick)
    return {
        "runs": len(sick),
        "first": found_within(sick, 1),
        "first_two": found_within(sick, 2),
        "points_median": statistics.median(apart) if apart else None,
        "points_worst": apart[-1] if apart else None,
        "clean_runs": len(clean),
        "clean_quiet": sum(not row.high for row in clean) / len(clean) if clean else None,
    }


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    return [r for r in rows if r.cause != "clean"], [r for r in rows if r.cause == "clean"]


def found_within(rows: Sequence[Row], most: int) -> float | None:
    """The fraction of some runs whose cause is among the first so many hints."""
    found = [row for row in rows if row.rank is not None and row.rank <= most]
    return len(found) / len(rows) if rows else None
