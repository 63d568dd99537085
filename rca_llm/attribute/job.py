"""A whole job: every rank of every timeline partitioned, collectives matched between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rca_llm.attribute import collectives as comm
from rca_llm.attribute.collective_parts import parts_of
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
    parts = [parts_of(recording.timeline, recording.gpu_parts, rank) for recording, rank in todo]
    matched = comm.match(parts, world_size(timelines))
    arrived = comm.arrivals(matched)
    ranks: list[Member] = []
    for (recording, rank), own in zip(todo, parts, strict=True):
        activity, work = activities(recording, rank)
        activity = comm.add_to(activity, own, arrived.get(rank.number, ({}, {})))
        found = partition(recording, rank, activity, work)
        ranks.append((recording, found))
    return Job(recordings, ranks, matched)


def is_stranger(member: Member) -> bool:
    """Whether a rank runs none of the steps that others of its recording run: a neighbour."""
    recording, partition = member
    return len(recording.steps) > 0 and not len(partition.steps)


def serving(job: Job) -> Job:
    """The job without ranks that are neighbours of those that serve."""
    return replace(job, ranks=[member for member in job.ranks if not is_stranger(member)])


def world_size(timelines: Sequence[Timeline]) -> int | None:
    """How many ranks the files say the job has, None where none does."""
    return max((t.header.world_size or 0 for t in timelines), default=0) or None
