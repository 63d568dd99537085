"""Causes in how kernels reach memory, from hardware counters: bank conflicts, strided access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.hints import records
from rca_llm.hints.case import Case, Loss, Spans
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.shapes import Shape, heavy_shapes
from rca_llm.hints.wording import name, percent
from rca_llm.intervals import Pieces
from rca_llm.table import Array

WIDEST, USUAL = 16, 4
"""Sectors of 32 bytes that 32 threads touch side by side: 16 bytes each, the most, or 4 each."""

APART = 33
"""Sectors that a load of 32 threads cannot exceed, one a thread; and one, for reads that were under
way when a sample ended. Above it, data came by other ways, such as bulk and asynchronous copies."""

COPYING = ("compute.gemm", "compute.attention")
"""Kernels that fetch by asynchronous copies: their sectors are not those of their loads."""

COVERED = 0.9
"""How much of a sample's interval a kernel must run for the sample to tell of it."""


@dataclass(frozen=True)
class Counted:
    """A heavy kernel and the values of a counter while it ran."""

    shape: Shape
    loss: Loss
    samples: int
    median: float


def counted(case: Case, metric: str, least: float, fewest: float) -> Iterator[Counted]:
    """The kernels of at least a fraction of the steps with enough samples of a counter."""
    if not records.samples(case, metric):
        return
    for shape, loss in heavy_shapes(case, least):
        gpu = shape.member[0].timeline["gpu"]
        device = int(gpu["device"][shape.rows[0]])
        values = _during(records.samples(case, metric, device), shape.spans)
        if len(values) >= fewest:
            yield Counted(shape, loss, len(values), float(np.median(values)))


def _during(samples: list[tuple[int, float]], spans: Spans) -> Array:
    """The values of samples whose interval, which ends at their time, lies within some spans."""
    if len(samples) < 2:
        return np.empty(0)
    end = np.array([t for t, _ in samples], np.int64)
    usual = int(np.median(np.diff(end)))
    pieces = Pieces(*spans, np.zeros(len(spans[0]), np.int64))
    inside = intervals.covered(pieces, end - usual, end)
    values = np.array([value for _, value in samples])
    return values[(inside >= COVERED * usual) & (usual > 0)]


def _costliest(every: Iterator[Counted], least: float) -> Counted | None:
    """The kernel that loses most by its counter, of those whose counter is at least so much."""
    found = [one for one in every if one.median >= least]
    return max(found, key=lambda one: one.median * one.loss.ns, default=None)


@rule(
    "R46",
    "BANK-CONFLICT",
    "compute",
    Stage.DEVICE,
    disproof="the same time with shared memory laid out so that no bank is asked twice",
)
def bank_conflicts(case: Case) -> Hint | None:
    """Threads of a warp ask the same bank of shared memory, and wait for each other.

    Symptom: counters (`--counters`, `gpu.bank_conflicts`) show conflicts in `share` of the cycles
    while one kernel of at least `step_share` of the steps (without steps, of the requests) runs, in
    `samples` samples or more. Without counters it is not judged. Source: brief. Disproof: another
    layout that is as slow.
    """
    limits = case.limits("R46")
    every = counted(case, "gpu.bank_conflicts", limits["step_share"], limits["samples"])
    best = _costliest(every, limits["share"])
    if best is None:
        return None
    charge = case.charge((best.shape.part,), best.shape.spans)
    return Hint(
        f"Shared memory is asked with bank conflicts in {percent(best.median)} of the cycles of"
        f" {name(best.shape.name)}",
        "medium",
        charge,
        {
            "kernel": name(best.shape.name, 200),
            "conflict_share": best.median,
            "samples": best.samples,
            f"{best.loss.of}_share": best.loss.share,
        },
        saving_ns=round(charge.ns * min(best.median, 1.0)),
    )


@rule(
    "R47",
    "STRIDED-ACCESS",
    "compute",
    Stage.DEVICE,
    disproof="the same time with neighbouring threads that read neighbouring addresses",
)
def strided_access(case: Case) -> Hint | None:
    """Neighbouring threads read addresses that lie apart, and most of what is fetched is unused.

    Symptom: counters (`--counters`, `gpu.load_sectors`) show `sectors` sectors of 32 bytes a load
    of a warp while one kernel of at least `step_share` of the steps (without steps, of the
    requests) runs, in `samples` samples or more; side by side it is 4 for floats and 16 at most,
    and 32 where every thread has one of its own. The saving takes threads to read 4 bytes each, and
    time to follow the sectors; where they read 16 it is `saving_if_16_bytes_ns`: no counter tells
    how wide they read. Matrix products and attention, which fetch by asynchronous copies, and
    kernels above 33 sectors a load, are not judged, nor is anything without counters. Source:
    brief. Disproof: neighbouring reads as slow.
    """
    limits = case.limits("R47")
    every = counted(case, "gpu.load_sectors", limits["step_share"], limits["samples"])
    loading = (one for one in every if one.shape.part not in COPYING and one.median <= APART)
    best = _costliest(loading, limits["sectors"])
    if best is None:
        return None
    charge = case.charge((best.shape.part,), best.shape.spans)
    return Hint(
        f"A load of a warp fetches {best.median:.3g} sectors of 32 bytes in"
        f" {name(best.shape.name)}; side by side it would be {USUAL} for floats, {WIDEST} at most",
        "medium",
        charge,
        {
            "kernel": name(best.shape.name, 200),
            "sectors_per_load": best.median,
            "samples": best.samples,
            f"{best.loss.of}_share": best.loss.share,
            "bytes_a_thread_assumed": 4,
            "saving_if_16_bytes_ns": round(charge.ns * (1 - WIDEST / best.median)),
        },
        saving_ns=round(charge.ns * (1 - USUAL / best.median)),
    )
