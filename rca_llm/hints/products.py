"""How near matrix products come to what their device can do at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import KERNEL, NUMBER_FORMATS


@dataclass(frozen=True)
class Products:
    """The matrix products of a rank that serve and whose shapes are known, one row a kernel.

    `least` is the time that the device needs for each at best, ns: the longer of its operations at
    the peak of its number format, and its bytes at the memory's rate; `computing` says which are
    bound by operations, `beyond` which were quicker than that. `clock` is the fraction of the full
    clock at which they ran, None where nobody says; peaks are taken at it.
    """

    rows: Ints
    lasting: Ints
    least: Array
    computing: Mask
    beyond: Mask
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
    least = np.maximum(computing, moving)
    beyond, least = least > lasting, np.minimum(least, lasting)
    found = Products(rows, lasting, least, computing >= moving, beyond, clock)
    return found if len(rows) else None


def _clock(case: Case, full_hz: int | None) -> float | None:
    """The median clock that was sampled, as a fraction of the full one."""
    values = [value * 1e6 for _, value in records.samples(case, "gpu.sm_clock_mhz") if value > 0]
    return min(float(np.median(values)) / full_hz, 1.0) if values and full_hz else None


MOST_PEERS = 256
"""How many groups of products serve as yardsticks, the best ones."""


@dataclass(frozen=True)
class Measured:
    """Products in groups of one kernel and shape, each held against a yardstick.

    `group` is that of each product. Of every group: `lost`, how much of its time it would not take
    at its yardstick, ns; `yardstick`, a fraction of the roof; and whether it is that of `peers`.
    """

    group: Ints
    lost: Array
    yardstick: Array
    peers: Mask


def measured(member: Member, own: Products, limits: Mapping[str, float]) -> Measured:
    """Hold products below `roof` against what others like them reach, where that is more.

    Groups that reach `roof` lose nothing, and do not make up for others. Those like a group are of
    another kernel or shape, of the same number format and bound by the same, operations or memory;
    `alike` and `order` say within which factors their intensity and their work are those of the
    group: far larger ones reach more, since start and end of a kernel weigh less. `peers` products
    of one kernel and shape tell, by their median, so that a single quick one does not. Those
    quicker than their format allows (TF32 for 32-bit floats, data from a cache) tell nothing.
    """
    gpu = member[0].timeline["gpu"].take(own.rows)
    group = _grouped([gpu[name] for name in ("name", "format", "flops", "moved")])
    first, sizes = np.unique(group, return_index=True, return_counts=True)[1:]
    lasting, least = (np.bincount(group, weights=ns) for ns in (own.lasting, own.least))
    slow, usual = least < limits["roof"] * lasting, _medians(group, own.least / own.lasting)
    told = (sizes >= limits["peers"]) & (usual > limits["roof"])
    told &= np.bincount(group, weights=own.beyond) * 2 < sizes
    kind = gpu["format"][first] * 2 + own.computing[first]
    intensity, work = gpu["flops"][first] / np.maximum(gpu["moved"][first], 1), own.least[first]
    yardstick = np.full(len(first), limits["roof"])
    best = np.flatnonzero(told)
    for one in best[np.argsort(usual[best], kind="stable")][-MOST_PEERS:].tolist():
        like = slow & (kind == kind[one]) & _within(intensity, one, limits["alike"])
        like &= _within(work, one, limits["order"])
        like[one] = False
        yardstick[like] = usual[one]  # the best comes last
    lost = np.where(slow, lasting - least / yardstick, 0.0)
    return Measured(group, lost, yardstick, yardstick > limits["roof"])


def _within(values: Array, one: int, factor: float) -> Mask:
    """Which values are at most so many times that of one of them, or the reverse."""
    return np.asarray((values <= values[one] * factor) & (values * factor >= values[one]))


def _grouped(columns: Sequence[Array]) -> Ints:
    """A number, from 0 on, for every different row of some columns."""
    number, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        if most * len(values) >= np.iinfo(np.int64).max:  # dense again, so that none overflows
            number = np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64)
            most = int(number.max()) + 1
        number, most = number * len(values) + code.reshape(-1), most * len(values)
    return np.unique(number, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _medians(group: Ints, values: Array) -> Array:
    """The lower median of the values of each group."""
    sizes = np.bincount(group)
    middle = np.cumsum(sizes) - sizes + (sizes - 1) // 2
    return np.asarray(values[np.lexsort([values, group])][middle])


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
    and together reach less than `roof` of the time that operations at the peak, or bytes at the
    memory's rate, would need; peaks are those of the observed clock where that was sampled. Without
    shapes, or on an unknown device, they are not judged. The saving is of those below `roof` by
    themselves, by kernel and shape: what they would not take if they reached what others like them
    reach in the same trace (`peers` of one kernel and shape, within `alike` in operations a byte
    and `order` in work), which shows what the device and its library can do; where none are seen to
    reach more, if they reached `roof`. Source: brief; thread C67. Disproof: a library that reaches
    more.
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
    held = measured(member, own, limits)
    what, lost, against = _worst(member, own, held)
    bound = "operations" if own.computing.mean() >= 0.5 else "memory"
    seen = f", where others like it reach {percent(against)}" if against > limits["roof"] else ""
    return Hint(
        f"{plural(len(own.rows), 'matrix product')} reach {percent(own.reached)} of the roof"
        f" ({bound}); {name(what)} loses most ({time(lost)}){seen}",
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
            "yardstick_share": against,
            "yardstick": _told(held),
        },
        saving_ns=round(charge.ns * float(held.lost.sum()) / int(own.lasting.sum())),
    )


def _told(held: Measured) -> str:
    """What the lost time is measured against."""
    lost = float(held.lost.sum())
    by_peers = float(held.lost[held.peers].sum()) / lost if lost else 0.0
    if not by_peers:
        return "the threshold `roof`: no others like them reach more"
    rest = "" if by_peers == 1 else f" for {percent(by_peers)} of it, else the threshold `roof`"
    return f"others of the trace, alike in number format, intensity and work{rest}"


def _spans(member: Member, own: Products) -> Spans:
    gpu = member[0].timeline["gpu"]
    return gpu["start"][own.rows], gpu["end"][own.rows]


def _worst(member: Member, own: Products, held: Measured) -> tuple[str, int, float]:
    """The kernel and shape that loses most: its name, how much, ns, and its yardstick."""
    place = int(np.argmax(held.lost))
    row = own.rows[int(np.argmax(held.group == place))]
    timeline = member[0].timeline
    text = timeline.strings[int(timeline["gpu"]["name"][row])]
    return text, round(float(held.lost[place])), float(held.yardstick[place])
