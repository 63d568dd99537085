"""Causes in how kernels use a device: launch shapes and unfused attention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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

    Symptom: a kernel of at least `step_share` of the steps, not a matrix product or attention,
    has a theoretical occupancy below `occupancy`, or blocks under `threads` threads with more
    blocks than multiprocessors. Low occupancy alone is no defect: confidence stays low. Source:
    thread C68. Disproof: bandwidth or tensor cores at the roof.
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
        reached = f"allows only {percent(full)} occupancy" if full is not None else "is tiny"
        found.append(
            Hint(
                f"Possible: block of {shape.threads} threads / {shape.registers} registers"
                f" {reached} in {name(shape.name)}",
                "low",
                case.charge((shape.part,), shape.spans),
                {
                    "kernel": name(shape.name, 200),
                    "threads": shape.threads,
                    "registers": shape.registers,
                    "shared_bytes": shape.shared,
                    "blocks": shape.blocks,
                    "theoretical_occupancy": full,
                    "step_share": loss.share,
                },
                unjudged=True,
            )
        )
    return found


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

    Symptom: a kernel of at least `step_share` of the steps has fewer blocks than multiprocessors,
    or under `waves` waves that are filled to less than `efficiency`. Needs the device's limits.
    Source: thread C68; proposal. Disproof: another kernel in the empty slots.
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
                    "step_share": loss.share,
                    "kernel_ns": charge.ns,
                },
                saving_ns=round(charge.ns * (1 - fill.efficiency)),
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
    runs. Source: thread C69. Disproof: a fused kernel in the same layers.
    """
    limits = case.limits("R26")
    best: tuple[int, int, Spans, Spans] | None = None
    for member in case.job.ranks:
        found = _unfused(member)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None or best[1] < limits["repeats"]:
        return None
    whole, repeats, extra, window = best
    total = int((window[1] - window[0]).sum())
    if not total or whole < limits["prefill_share"] * total:
        return None
    charge = case.charge(COMPUTE, extra)
    return Hint(
        f"Attention runs unfused: matrix product, softmax, matrix product {repeats:,} times,"
        f" {percent(whole / total)} of the prefill",
        "medium",
        charge,
        {
            "sequences": repeats,
            "sequence_ns": whole,
            "prefill_ns": total,
            "prefill_share": whole / total,
            "between_products_ns": charge.ns,
        },
    )


def _unfused(member: Member) -> tuple[int, int, Spans, Spans] | None:
    """A rank's unfused attention.

    Its time, how often it runs, the kernels between the products, and the prefill. None
    where a fused kernel runs, or nothing fits.
    """
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
    rows = np.concatenate(found)
    whole = int((gpu["end"][rows] - gpu["start"][rows]).sum())
    between = np.concatenate([one[1:-1] for one in found])
    spans = intervals.union(gpu["start"][between], gpu["end"][between])
    return whole, len(found), spans, windows


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
