"""Offsets between ranks of one host, whose clocks are the same, with and without an added one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rca_llm.attribute import clocks
from rca_llm.table import known
from rca_llm.trace import TABLES, Clock, Timeline
from tests.nccl_truth.truth import Findings, Recording

NEAR_NS = 5_000
"""How far an offset may be from the true one."""

SHIFT_NS = 3_141_592
"""The artificial offset of the last rank's clock."""


def alone(timeline: Timeline, rank: int, processes: Iterable[int]) -> Timeline:
    """One rank of a timeline as a recording of its own."""
    wanted = [*processes]
    own = timeline.copy()
    own.tables = {
        name: table.take(np.flatnonzero(np.isin(table["process"], wanted)))
        if "process" in table
        else table
        for name, table in timeline.tables.items()
        if name not in ("batch", "requests", "tokens")
    }
    own.header.rank = rank
    own.header.host = f"host {rank}"
    own.clock = Clock(rank, None, None)
    return own


def shift_times(timeline: Timeline) -> None:
    """Move every time of a timeline, as if its clock were off."""
    for name, table in timeline.tables.items():
        moved = {
            column: np.where(known(values), values + SHIFT_NS, values)
            for column, values in table.known.items()
            if TABLES[name][column] == "time"
        }
        timeline.tables[name] = table.with_columns(**moved)


def compare_offsets(found: Findings, recorded: Recording) -> None:
    """Ranks of one host, taken for ranks on clocks of their own: 0, and what was added."""
    for shift in (0, SHIFT_NS):
        split: list[Timeline] = []
        for member, partition in recorded.job.ranks:
            own = alone(member.timeline, partition.rank.number, partition.rank.processes)
            if partition is recorded.job.ranks[-1][1] and shift:
                shift_times(own)
            split.append(own)
        clocks.refine(split, len(split))
        offset, unsure = split[-1].clock.offset_ns, split[-1].clock.uncertainty_ns
        error = None if offset is None else offset + shift
        found.facts[f"offset {shift}"] = {"offset_ns": offset, "uncertainty_ns": unsure}
        name = "offset on one host" if not shift else "artificial offset recovered"
        found.hold(
            f"{name} within 5 us", error is not None and abs(error) <= NEAR_NS, offset, -shift
        )
