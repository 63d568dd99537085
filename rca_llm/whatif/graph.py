"""The dependency graph of a job.

What it holds, for every rank: the thread that launches, as pieces of time with the part that
each is charged to; device work, which starts after its launch, after the work before it on its
stream and, where it follows other work at once, after that; synchronisations and step ends, at
which the thread waits for the device; collectives, which begin when their last rank has come; and
arrivals, before which no request is served. What delays a start beyond these stays as measured, so
that an unchanged replay gives the measured times back. Time of the thread of which nothing is
recorded, from its last launch of a step to the end of the step's work, is taken for waiting.

What it does not hold: clients that send the next request when they have an answer, batches that
would be formed otherwise, and queues of launches that are full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.parts import CODE
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, known
from rca_llm.whatif import hand_overs
from rca_llm.whatif.waits import Served, Waits, main_thread
from rca_llm.whatif.waits import waits as waits_of
from rca_llm.whatif.work import Work, by_stream, work_of

Rows = TypeVar("Rows", Pieces, Work, Waits)


@dataclass(frozen=True)
class Graph:
    """Everything that a replay needs; times are ns after `base`, so that they stay exact.

    The work of every stream is together, in its order. `special` are the rows that wait for more
    than their launch and the row before them on their stream, by their start.
    """

    base: int
    threads: list[Pieces]
    work: Work
    waits: Waits
    special: Ints


def graph(job: Job, served: Sequence[Served]) -> Graph:
    """The dependencies of a job."""
    work = work_of(job)
    threads = [_thread(member) for member in job.ranks]
    special = np.flatnonzero((work.other >= 0) | (work.group >= 0))
    waits = waits_of(job, work, threads, served)
    base = min((partition.rank.start for _, partition in job.ranks), default=0)
    threads = [_since(base, own, "start", "end") for own in threads]
    waits = _since(base, waits, "start", "end", "until")
    work, place = by_stream(_since(base, work, "start", "end", "called", "arrived"))
    return Graph(base, threads, work, replace(waits, row=place[waits.row]), place[special])


def _since(base: int, rows: Rows, *times: str) -> Rows:
    """The same rows, with some columns of times counted from `base`."""
    columns: dict[str, Ints] = {name: getattr(rows, name) for name in times}
    return replace(rows, **{n: np.where(known(t), t - base, t) for n, t in columns.items()})


def _thread(member: Member) -> Pieces:
    """What the thread of a rank does; while the devices idle, what that is charged to."""
    recording, partition = member
    rank, segments = partition.rank, partition.segments
    if rank.span == 0:
        return intervals.EMPTY
    # A wait for a neighbour is one of the device's work: the thread does what its records tell.
    waits = intervals.at(partition.contended, segments.start) >= 0
    waits &= segments.part == CODE["scheduling.queue"]
    idle = segments.pieces.take(np.flatnonzero((segments.activity < 0) & ~waits))
    window, main = (np.array([rank.start]), np.array([rank.end])), main_thread(member)
    layers = [idle, *host.layers(recording.host, window, main)]
    pieces, layer = intervals.overlay(layers, rank.start, rank.end)
    untold = layer < 0
    if recording.on_gpu and not len(recording.timeline["api"]):
        # Without its calls nobody can tell a thread that works from one that spins in a wait.
        untold |= (layer > 0) & (pieces.label == CODE["scheduling.host"])
    label = np.where(untold, CODE["scheduling.other"], pieces.label)
    pieces = intervals.join(Pieces(pieces.start, pieces.end, label))
    return hand_overs.relabelled(pieces, hand_overs.driven(member, main))
