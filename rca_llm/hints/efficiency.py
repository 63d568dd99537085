"""Causes in how kernels use a device: launch shapes and unfused attention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import hardware, intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.hints.case import Case, Spans, rank_rows, used
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.shapes import Shape, heavy_shapes
from rca_llm.hints.wording import name, percent, plural
from rca_llm.table import Ints, known
from rca_llm.trace import KERNEL

COMPUTE = tuple(part for part in PARTS if part.startswith("compute."))

BY_DESIGN = ("compute.gemm", "compute.attention", "compute.moe")
"""Classes whose kernels trade occupancy for registers and shared memory on purpose."""


@rule(
    "R27",
    "LOW-OCCUPANCY",
    "compute",
    Stage.DEVICE,
    disproof="memory bandwidth at its roof, or tensor cores busy, in this kernel",
)
def low_occupancy(case: Case) -> list[Hint]:
    """A launch shape leaves most of each multiprocessor empty.

    Symptom: a kernel of at least `step_share` of the steps (without steps, of the requests), not a
    matrix product or attention, has a theoretical occupancy below `occupancy`, or blocks under
    `threads` threads with more blocks than multiprocessors. Low occupancy alone is no defect:
    confidence stays low. What better blocks would save is an estimate, and only for blocks of few
    threads with low occupancy, where not registers are the reason, which kernels use in place of
    warps: a kernel that waits takes time as 1 / occupancy (Little's law, as in Volkov, "Better
    performance at lower occupancy", GTC 2010), so a filled multiprocessor would save 1 - occupancy
    of it. That is the most: memory or arithmetic at its roof ends it earlier. Elsewhere the saving
    is null. Source: thread C68. Disproof: bandwidth or tensor cores at the roof.
    """
    limits = case.limits("R27")
    found: list[Hint] = []
    for shape, loss in heavy_shapes(case, limits["step_share"]):
        if shape.part in BY_DESIGN or not shape.part.startswith("compute."):
            continue
        full = shape.occupancy
        tiny = _tiny_blocks(shape, limits["threads"])
        if not tiny and (full is None or full >= limits["occupancy"]):
            continue
        charge = case.charge((shape.part,), shape.spans)
        few = tiny and full is not None and full < limits["occupancy"]
        most = round(charge.ns * (1 - (full or 0))) if few and _registers_allow(shape) else None
        reached = f"allows only {percent(full)} occupancy" if full is not None else "is tiny"
        found.append(
            Hint(
                f"Possible: block of {shape.threads} threads / {shape.registers} registers"
                f" {reached} in {name(shape.name)}",
                "low",
                charge,
                {
                    "kernel": name(shape.name, 200),
                    "threads": shape.threads,
                    "registers": shape.registers,
                    "shared_bytes": shape.shared,
                    "blocks": shape.blocks,
                    "theoretical_occupancy": full,
                    f"{loss.of}_share": loss.share,
                    "saving_most_ns": most,
                },
                saving_ns=most,
                unjudged=most is None,
            )
        )
    return found


def _registers_allow(shape: Shape) -> bool:
    """Whether threads use so few registers that a multiprocessor could be full of them."""
    needed = shape.registers * shape.limits["max_threads_per_sm"]
    return 0 <= needed <= shape.limits["registers_per_sm"]


def _tiny_blocks(shape: Shape, least: float) -> bool:
    """Whether blocks have few threads although the grid covers every multiprocessor."""
    sms = shape.limits.get("sms", hardware.most_sms())
    threads, blocks = shape.threads, shape.blocks
    return threads is not None and blocks is not None and threads < least and blocks > sms


@rule(
    "R28",
    "TAIL-WAVE",
    "compute",
    Stage.DEVICE,
    disproof="blocks of very unequal length, or another kernel that fills the empty slots",
)
def tail_wave(case: Case) -> list[Hint]:
    """A grid leaves multiprocessors empty in its only, or in its last, wave.

    Symptom: a kernel of at least `step_share` of the steps (without steps, of the requests) has
    fewer blocks than multiprocessors, or under `waves` waves that are filled to less than
    `efficiency`. Needs the device's limits. What an even grid would save is an estimate:
    multiprocessors without a block of a grid that does not fill one wave; of a last wave, as
    `rca_llm.hardware.tail_share` says, since a block that has a multiprocessor for itself is
    quicker than one among many. `saving_most_ns` is with a last wave that takes as long as a full
    one. Source: thread C68; proposal. Disproof: another kernel in the empty slots.
    """
    limits = case.limits("R28")
    found: list[Hint] = []
    for shape, loss in heavy_shapes(case, limits["step_share"]):
        fill = shape.waves
        if fill is None or not shape.part.startswith("compute.") or fill.waves >= limits["waves"]:
            continue
        if fill.efficiency >= limits["efficiency"]:
            continue
        charge = case.charge((shape.part,), shape.spans)
        last = fill.waves - int(fill.waves)
        how = (
            f"fills {fill.busy_sms} of {fill.sms} SMs"
            if fill.blocks < fill.sms
            else f"leaves its last wave {percent(last)} full"
        )
        found.append(
            Hint(
                f"Grid of {plural(fill.blocks, 'block')} {how} in {name(shape.name)}",
                "medium",
                charge,
                {
                    "kernel": name(shape.name, 200),
                    "blocks": fill.blocks,
                    "sms": fill.sms,
                    "waves": fill.waves,
                    "filled_share": fill.efficiency,
                    f"{loss.of}_share": loss.share,
                    "kernel_ns": charge.ns,
                    "saving_most_ns": round(charge.ns * (1 - fill.efficiency)),
                },
                saving_ns=round(charge.ns * (shape.lost or 0.0)),
            )
        )
    return found


_SOFTMAX = re.compile(r"softmax", re.I)
_FUSED = re.compile(r"flash|fmha|paged|mha_|attention(?!.*softmax)|fmha|sdpa|xqa", re.I)
_BETWEEN = ("compute.elementwise", "compute.attention", "compute.other", "compute.memory")


@rule(
    "R26",
    "ATTENTION-UNFUSED",
    "compute",
    Stage.DEVICE,
    disproof="a fused attention kernel in the same layers",
)
def unfused_attention(case: Case) -> Hint | None:
    """Attention runs as matrix product, softmax and matrix product.

    Symptom: this sequence, with nothing but elementwise kernels in between, repeats on a stream
    `repeats` times, takes `prefill_share` of the steps that prefill, and no fused attention kernel
    runs. A fused kernel keeps the scores on the chip (Dao et al., "FlashAttention", 2022): it saves
    the kernels between the products at least, and at most also the time in which the products write
    and read the scores. One kernel in between reads and writes them, so each product moves half as
    much as the quickest of these; how much of that hides behind its arithmetic no record tells. The
    saving is the middle of both, an estimate. Source: thread C69. Disproof: a fused kernel in the
    same layers.
    """
    limits = case.limits("R26")
    every = (found for member in case.job.ranks if (found := _unfused(member)))
    best = max(every, key=lambda found: found.whole, default=None)
    if best is None or best.repeats < limits["repeats"]:
        return None
    total = int((best.prefill[1] - best.prefill[0]).sum())
    if not total or best.whole < limits["prefill_share"] * total:
        return None
    between = case.charge(COMPUTE, best.between).ns
    moving = round(case.charge(COMPUTE, best.products).ns * best.moving)
    return Hint(
        "Attention runs unfused: matrix product, softmax, matrix product"
        f" {best.repeats:,} times, {percent(best.whole / total)} of the prefill",
        "medium",
        case.charge(COMPUTE, best.spans),
        {
            "sequences": best.repeats,
            "sequence_ns": best.whole,
            "prefill_ns": total,
            "prefill_share": best.whole / total,
            "between_products_ns": between,
            "saving_least_ns": between,
            "saving_most_ns": between + moving,
        },
        saving_ns=between + moving // 2,
    )


@dataclass(frozen=True)
class _Unfused:
    """A rank's unfused attention.

    Its time `whole`, ns, and how often it runs; when all of it, the kernels `between` the products
    and the `products` ran; `moving`, the most of the products' time that scores are written and
    read, a fraction; and when the rank prefilled.
    """

    whole: int
    repeats: int
    spans: Spans
    between: Spans
    products: Spans
    moving: float
    prefill: Spans


def _unfused(member: Member) -> _Unfused | None:
    """A rank's unfused attention; None where a fused kernel runs, or nothing fits."""
    recording, _ = member
    gpu, strings = recording.timeline["gpu"], recording.timeline.strings
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & rank_rows(member, gpu) & known(gpu["start"]))
    names = used(gpu["name"][rows])
    soft = [code for code in names if _SOFTMAX.search(strings[code])]
    if not soft or any(_FUSED.search(strings[code]) for code in names if code not in soft):
        return None
    windows = _prefill(member)
    rows = rows[intervals.touching(gpu["start"][rows], gpu["end"][rows], windows)]
    found = [
        found
        for stream in _streams(recording, rows)
        for found in _sequences(recording, stream, soft)
    ]
    if not found:
        return None
    start, lasting = gpu["start"], gpu["end"] - gpu["start"]
    rows, between = np.concatenate(found), np.concatenate([one[1:-1] for one in found])
    products = np.concatenate([one[[0, -1]] for one in found])
    half = np.repeat([int(lasting[one[1:-1]].min()) / 2 for one in found], 2)
    moved, spent = np.minimum(half, lasting[products]).sum(), lasting[products].sum()
    all_of, inner, outer = (
        intervals.union(start[own], gpu["end"][own]) for own in (rows, between, products)
    )
    share = float(moved / spent) if spent else 0.0
    whole = int(lasting[rows].sum())
    return _Unfused(whole, len(found), all_of, inner, outer, share, windows)


def _prefill(member: Member) -> Spans:
    """The steps of a rank that prefill; all its time where nobody says."""
    recording, partition = member
    rows = partition.steps[recording.steps.prefill_tokens[partition.steps] > 0]
    if not len(rows):
        return np.array([partition.rank.start]), np.array([partition.rank.end])
    return intervals.union(recording.steps.start[rows], partition.step_end[rows])


def _streams(recording: Recording, rows: Ints) -> list[Ints]:
    stream = recording.timeline["gpu"]["stream"][rows]
    return [rows[stream == one] for one in np.unique(stream).tolist()]


def _sequences(recording: Recording, rows: Ints, soft: Sequence[int]) -> Iterator[Ints]:
    """Rows of one stream from a matrix product over a softmax to the next matrix product."""
    names, parts = recording.timeline["gpu"]["name"][rows], recording.gpu_parts[rows]
    product = parts == CODE["compute.gemm"]
    softmax = among(names, list(soft))
    allowed = softmax | among(parts, [CODE[part] for part in _BETWEEN])
    places = np.flatnonzero(product)
    for begin, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        inner = slice(begin + 1, end)
        if softmax[inner].any() and allowed[inner].all():
            yield rows[begin : end + 1]
