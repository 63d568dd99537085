"""Kernels by name and launch shape, with the device they ran on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.job import Member
from rca_llm.attribute.parts import PARTS
from rca_llm.hardware import Waves, blocks_per_sm, occupancy, tail_share, waves
from rca_llm.hints.case import Case, Loss, Spans, rank_rows
from rca_llm.summary.device import SHAPE, device_of
from rca_llm.table import Ints, Table, known
from rca_llm.trace import KERNEL

MOST_SHAPES = 64
"""How many launch shapes of a rank are looked at, the longest first."""


@dataclass(frozen=True)
class Shape:
    """One name and launch shape on one rank: its rows in `gpu`, its times and its device."""

    member: Member
    rows: Ints
    name: str
    part: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: int
    device: str | None
    limits: Mapping[str, int]

    @cached_property
    def spans(self) -> Spans:
        """When these kernels ran."""
        gpu = self.member[0].timeline["gpu"]
        return intervals.union(gpu["start"][self.rows], gpu["end"][self.rows])

    @property
    def threads(self) -> int | None:
        """Threads a block, None where the shape was not recorded."""
        return None if min(self.block) < 1 else self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int | None:
        """Blocks of the grid, None where the shape was not recorded."""
        return None if min(self.grid) < 1 else self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def occupancy(self) -> float | None:
        """The theoretical occupancy, None where something needed is not known."""
        if self.threads is None or min(self.registers, self.shared) < 0:
            return None
        return occupancy(self.threads, self.registers, self.shared, self.limits)

    @property
    def waves(self) -> Waves | None:
        """How the grid fills the device, None where something needed is not known."""
        sms = self.limits.get("sms")
        if self.threads is None or self.blocks is None or sms is None:
            return None
        per_sm = self._per_sm
        return None if per_sm is None else waves(self.blocks, per_sm, sms)

    @property
    def lost(self) -> float | None:
        """About which fraction of its time an evenly filled grid would not take, None of no loss.

        Without a full wave, that of the multiprocessors without a block; else as `tail_share`.
        """
        fill, per_sm = self.waves, self._per_sm
        if fill is None or per_sm is None or self.threads is None:
            return None
        if fill.waves <= 1:
            return 1 - fill.efficiency
        return tail_share(fill.blocks, self.threads, per_sm, fill.sms)

    @property
    def _per_sm(self) -> int | None:
        """How many blocks fit one multiprocessor, None where something needed is not known."""
        if self.threads is None or min(self.registers, self.shared) < 0:
            return None
        return blocks_per_sm(self.threads, self.registers, self.shared, self.limits)


def heavy_shapes(case: Case, least: float) -> Iterator[tuple[Shape, Loss]]:
    """Kernels that take at least a fraction of the step time of their rank, the longest first.

    Without steps, of the requests' time.
    """
    whole = case.of_service(())
    # A kernel may be in the time of every request.
    most = len(case.lives) if whole.of == "request" else 1
    for number, member in enumerate(case.job.ranks):
        shapes = case.once(("shapes", number), partial(_shapes, member))
        for place, (shape, total) in enumerate(shapes):
            if total * most < least * (whole.total or member[1].rank.span):
                break
            loss = case.once(
                ("shape", number, place), partial(case.of_service, (shape.part,), shape.spans)
            )
            if loss.share >= least:
                yield shape, loss


def _shapes(member: Member) -> list[tuple[Shape, int]]:
    """The launch shapes of a rank and the sum of their times, the longest first."""
    recording, _ = member
    gpu = recording.timeline["gpu"]
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & rank_rows(member, gpu) & known(gpu["start"]))
    if not len(rows):
        return []
    number = _numbered(gpu, rows)
    totals = intervals.sum_by(number, (gpu["end"] - gpu["start"])[rows], int(number.max()) + 1)
    order = np.argsort(-totals, kind="stable")[:MOST_SHAPES]
    return [(_shape(member, rows[number == one]), int(totals[one])) for one in order.tolist()]


def _numbered(gpu: Table, rows: Ints) -> Ints:
    """A number for every different name, device and launch shape."""
    number = np.zeros(len(rows), np.int64)
    for column in ("name", "device", *SHAPE):
        code = gpu[column][rows].astype(np.int64) + 1
        if code.min() == code.max():
            continue
        number = number * (int(code.max()) + 1) + code
        if int(number.max()) > _MOST:
            number = np.unique(number, return_inverse=True)[1].astype(np.int64)
    return np.unique(number, return_inverse=True)[1].astype(np.int64)


_MOST = 1 << 30
"""Numbers beyond this are made dense, so that the next factor cannot overflow."""


def _shape(member: Member, rows: Ints) -> Shape:
    recording, partition = member
    timeline, row = recording.timeline, int(rows[0])
    gpu = timeline["gpu"]
    values = [int(gpu[column][row]) for column in SHAPE]
    device = device_of(timeline, int(gpu["device"][row]), partition.rank.processes)
    return Shape(
        member,
        rows,
        timeline.strings[int(gpu["name"][row])],
        PARTS[int(recording.gpu_parts[row])],
        (values[0], values[1], values[2]),
        (values[3], values[4], values[5]),
        values[6],
        values[7],
        device.name if device else None,
        device.limits if device else {},
    )
