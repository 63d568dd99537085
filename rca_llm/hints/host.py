"""Causes on the host: collections, locks, CPU quotas, work between steps, paging, logs."""

from __future__ import annotations

import re

import numpy as np

from rca_llm.hints import records
from rca_llm.hints.case import Case
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.records import Span
from rca_llm.hints.wording import plural, time
from rca_llm.summary.stats import percentile

_GENERATION = re.compile(r"gen(?:eration)?\W{0,3}(\d)", re.I)


@rule(
    "R08",
    "GC-PAUSE",
    "scheduling",
    Stage.HOST,
    disproof="device work, or a thread of its own that launches, during the collection",
)
def garbage_collection(case: Case) -> Hint | None:
    """Python's garbage collector stops the thread that launches.

    Symptom: a collection of at least `pause_ns` during which the device is idle, or peers wait,
    for at least `idle_share` of it. Source: threads C24-C26. Disproof: device work meanwhile.
    """
    limits = case.limits("R08")
    long = [span for span in records.spans_of(case, "gc") if span.ns >= limits["pause_ns"]]
    charged = [(span, case.charge(("scheduling.gc",), records.as_spans([span]))) for span in long]
    felt = [span for span, charge in charged if charge.ns >= limits["idle_share"] * span.ns]
    if not felt:
        return None
    charge = case.charge(("scheduling.gc",), records.as_spans(felt))
    worst = max(felt, key=lambda span: span.ns)
    rank, every = records.rank_of(case, worst.process, worst.recording), _period(felt)
    where = "the process" if rank is None else f"rank {rank}"
    often = f", every {time(every)}" if every else ""
    return Hint(
        f"Python GC stopped {where} for {time(worst.ns)}{often}",
        "high",
        charge,
        {
            "longest_pause_ns": worst.ns,
            "pauses": len(felt),
            "pauses_total_ns": sum(span.ns for span in felt),
            "period_ns": every,
            "rank": rank,
            "process": worst.process,
            "generation": _generation(worst),
            "growing": _growing(felt),
        },
    )


def _period(found: list[Span]) -> int | None:
    """The median time from one pause to the next, None of fewer than two."""
    starts = sorted(span.start for span in found)
    return percentile(sorted(np.diff(np.array(starts)).tolist()), 50)


def _generation(span: Span) -> int | None:
    match = _GENERATION.search(span.name)
    return int(match.group(1)) if match else None


def _growing(found: list[Span]) -> bool | None:
    """Whether the last third of the pauses is twice as long as the first; unknown of fewer than 6."""
    if len(found) < 6:
        return None
    ordered = [span.ns for span in sorted(found, key=lambda span: span.start)]
    third = len(ordered) // 3
    return sum(ordered[-third:]) > 2 * sum(ordered[:third])


__all__ = ["plural"]
