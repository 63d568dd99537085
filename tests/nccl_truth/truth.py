"""The two sides of the comparison, the program's own words and its recording, and its outcome."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rca_llm import align, readers
from rca_llm.attribute import clocks
from rca_llm.attribute import job as jobs
from rca_llm.attribute.collective_parts import Part
from rca_llm.attribute.collectives import Collective
from rca_llm.attribute.job import Job
from rca_llm.table import NO_TEXT, UNKNOWN, known
from rca_llm.trace import Trace

TOLERANCE = 0.05


class Findings:
    """Checks as they are made."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}

    def hold(self, name: str, ok: bool, found: object, wanted: object) -> None:
        """A comparison that must hold."""
        self.checks.append({"name": name, "ok": bool(ok), "found": found, "wanted": wanted})

    def told(self) -> dict[str, Any]:
        """Everything as data."""
        failed = [check["name"] for check in self.checks if not check["ok"]]
        return {"failed": failed, "checks": self.checks, "facts": self.facts}


@dataclass(frozen=True)
class Truth:
    """What one rank says."""

    rank: int
    world: int
    phases: list[dict[str, Any]]

    def phase(self, name: str) -> dict[str, Any]:
        """A phase by name."""
        return next(phase for phase in self.phases if phase["name"] == name)


def truths(folder: Path) -> list[Truth]:
    """What all ranks say, by rank."""
    told = [json.loads(path.read_text()) for path in folder.glob("truth-*.json")]
    told.sort(key=lambda one: one["rank"])
    return [Truth(one["rank"], one["world"], one["phases"]) for one in told]


@dataclass(frozen=True)
class Recording:
    """A recording with its collectives matched between ranks."""

    trace: Trace
    job: Job

    def window(self, rank: int, phase: str) -> tuple[int, int]:
        """When a phase began and ended on a rank, by the range of that name."""
        for recording, partition in self.job.ranks:
            if partition.rank.number != rank:
                continue
            timeline = recording.timeline
            table, code = timeline["ranges"], timeline.strings.find(f"phase {phase}")
            mine = np.isin(table["process"], [*partition.rank.processes, UNKNOWN])
            rows = np.flatnonzero((table["name"] == code) & mine & known(table["end"]))
            if code != NO_TEXT and len(rows):
                return int(table["start"][rows].min()), int(table["end"][rows].max())
        raise LookupError(f"no range 'phase {phase}' of rank {rank}")

    def within(self, rank: int, phase: str) -> list[tuple[Part, Collective]]:
        """A rank's parts in the collectives of a phase, by start."""
        begin, end = self.window(rank, phase)
        found = [
            (part, one)
            for one in self.job.collectives
            for part in one.parts
            if part.rank == rank and begin <= part.start < end
        ]
        return sorted(found, key=lambda pair: pair[0].start)


def recording(paths: Sequence[Path]) -> Recording:
    """Read and match; on the clocks of the inputs, brought together as a report does it."""
    trace = readers.load(*paths)
    trace = align.align(Trace([timeline.copy() for timeline in trace.timelines], trace.findings))
    clocks.refine(trace.timelines, jobs.world_size(trace.timelines))
    return Recording(trace, jobs.attribute(trace.timelines))


def near(found: Findings, name: str, value: float, wanted: float) -> None:
    """A time that must be within the tolerance of another one."""
    close = bool(wanted) and abs(value / wanted - 1) <= TOLERANCE
    found.hold(f"{name} within 5 %", close, value, wanted)
