"""How near matrix products come to what their device can do at most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rca_llm import hardware
from rca_llm.attribute.job import Member
from rca_llm.attribute.parts import CODE
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, rank_rows
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.wording import name, percent, plural, time
from rca_llm.summary.device import device_of
from rca_llm.table import Array, Ints, known
from rca_llm.trace import KERNEL, NUMBER_FORMATS


@dataclass(frozen=True)
class Products:
    """The matrix products of a rank that serve and whose shapes are known, one row a kernel.

    `least` is the time that the device needs for each at best, ns: the longer of its operations at
    the peak of its number format, and its bytes at the memory's rate; `computing` says which are
    bound by operations. `clock` is the fraction of the full clock at which they ran, None where
    nobody says; peaks are taken at it.
    """

    rows: Ints
    lasting: Ints
    least: Array
    computing: Array
    clock: float | None

    @property
    def reached(self) -> float:
        """The fraction of the roof that they reach together."""
        return float(self.least.sum() / self.lasting.sum()) if self.lasting.sum() else 1.0


def products_of(case: Case, member: Member) -> Products | None:
    """The products of a rank; None without shapes, or on a device whose peak is not known."""
    recording, partition = member
    gpu = recording.timeline["gpu"]
    told = (gpu["kind"] == KERNEL) & known(gpu["flops"]) & (gpu["format"] >= 0)
    told &= (recording.gpu_parts == CODE["compute.gemm"]) & rank_rows(member, gpu)
    rows = np.flatnonzero(told & known(gpu["start"]) & (gpu["end"] > gpu["start"]))
    spans = gpu["start"][rows], gpu["end"][rows]
    rows = rows[case.serving(recording, partition.step_of[rows], spans)]
    if not len(rows):
        return None
    device = device_of(recording.timeline, int(gpu["device"][rows[0]]), partition.rank.processes)
    peak = hardware.peak(device.name, device.limits) if device else None
    if device is None or peak is None:
        return None
    clock = _clock(case, device.limits.get("clock_hz"))
    most = np.array([peak.flops.get(text, np.nan) for text in NUMBER_FORMATS]) * (clock or 1.0)
    computing = gpu["flops"][rows] / most[gpu["format"][rows]] * 1e9
    moving = gpu["moved"][rows] / peak.memory_bytes_s * 1e9
    kept = ~np.isnan(computing)
    rows, computing, moving = rows[kept], computing[kept], moving[kept]
    lasting = (gpu["end"] - gpu["start"])[rows]
    # With TF32 a product of 32-bit floats may be quicker than their own peak: it is at the roof.
    least = np.minimum(np.maximum(computing, moving), lasting)
    return Products(rows, lasting, least, computing >= moving, clock) if len(rows) else None


def _clock(case: Case, full_hz: int | None) -> float | None:
    """The median clock that was sampled, as a fraction of the full one."""
    values = [value * 1e6 for _, value in records.samples(case, "gpu.sm_clock_mhz") if value > 0]
    return min(float(np.median(values)) / full_hz, 1.0) if values and full_hz else None


@rule(
    "R25",
    "GEMM-BELOW-75",
    "compute",
    Stage.DEVICE,
    disproof="a library that reaches more with the same shapes on the same device",
)
def slow_products(case: Case) -> Hint | None:
    """Matrix products stay below the roof of their device.

    Symptom: those with known shapes take `step_share` of the steps (without steps, of the requests)
    and reach less than `roof` of the time that operations at the peak, or bytes at the memory's
    rate, would need; peaks are those of the observed clock where that was sampled. Without shapes,
    or on an unknown device, they are not judged. Source: brief; thread C67. Disproof: a library
    that reaches more.
    """
    limits = case.limits("R25")
    found = [(member, own) for member in case.job.ranks if (own := products_of(case, member))]
    judged = [one for one in found if one[1].reached < limits["roof"]]
    best = max(
        judged, key=lambda one: float(one[1].lasting.sum() - one[1].least.sum()), default=None
    )
    if best is None:
        return None
    member, own = best
    spans = _spans(member, own)
    loss, charge = case.of_service(("compute.gemm",), spans), case.charge(("compute.gemm",), spans)
    if not charge.ns or loss.share < limits["step_share"]:
        return None
    what, lost = next(_worst(member, own))
    bound = "operations" if own.computing.mean() >= 0.5 else "memory"
    return Hint(
        f"{plural(len(own.rows), 'matrix product')} reach {percent(own.reached)} of the roof"
        f" ({bound}); {name(what)} loses most ({time(lost)})",
        "medium",
        charge,
        {
            "products": len(own.rows),
            "products_ns": int(own.lasting.sum()),
            "roof_ns": round(float(own.least.sum())),
            "reached_share": own.reached,
            "bound_by_operations_share": float(own.computing.mean()),
            "clock_share": own.clock,
            f"{loss.of}_share": loss.share,
            "kernel": name(what, 200),
        },
        saving_ns=round(charge.ns * max(1 - own.reached / limits["roof"], 0.0)),
    )


def _spans(member: Member, own: Products) -> Spans:
    gpu = member[0].timeline["gpu"]
    return gpu["start"][own.rows], gpu["end"][own.rows]


def _worst(member: Member, own: Products) -> Iterator[tuple[str, int]]:
    """The kernels by the time that they lose against the roof, the most first, ns."""
    timeline = member[0].timeline
    names, number = np.unique(timeline["gpu"]["name"][own.rows], return_inverse=True)
    lost = np.bincount(number.reshape(-1), weights=own.lasting - own.least)
    for place in np.argsort(-lost, kind="stable").tolist():
        yield timeline.strings[int(names[place])], round(float(lost[place]))
