"""A whole job: every rank of every timeline partitioned, collectives matched between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rca_llm.attribute import collectives as comm
from rca_llm.attribute.collectives import Collective
from rca_llm.attribute.partition import (
    RankPartition,
    Recording,
    activities,
    partition,
    prepare,
)
from rca_llm.trace import Timeline

Member = tuple[Recording, RankPartition]
"""A rank with the recording it stands in."""


@dataclass(frozen=True)
class Job:
    """The partition of a job: its recordings, the ranks in them, and their collectives."""

    recordings: list[Recording]
    ranks: list[Member]
    collectives: list[Collective]


def attribute(timelines: Sequence[Timeline]) -> Job:
    """Partition the window of every rank of a job."""
    recordings = [prepare(timeline) for timeline in timelines]
    todo = [(recording, rank) for recording in recordings for rank in recording.ranks]
    parts = [comm.parts_of(recording, rank) for recording, rank in todo]
    matched = comm.match(parts)
    ranks: list[Member] = []
    for (recording, rank), own in zip(todo, parts, strict=True):
        work, mine, step_of, step_end = activities(recording, rank)
        work = comm.add_to(work, own, matched, rank.number)
        found = partition(recording, rank, work, mine, step_of, step_end)
        ranks.append((recording, found))
    return Job(recordings, ranks, matched)


def collective_rows(job: Job) -> list[dict[str, object]]:
    """The contract's `collectives` rows, by start."""
    return [comm.summary_row(collective) for collective in job.collectives]
