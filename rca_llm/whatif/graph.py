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

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import host
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.parts import CODE, NO_PART
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, known
from rca_llm.whatif import hand_overs
from rca_llm.whatif import waits as waiting
from rca_llm.whatif.waits import Wait
from rca_llm.whatif.work import Work, work_of


@dataclass(frozen=True)
class Graph:
    """Everything that a replay needs; times are ns after `base`, so that they stay exact."""

    base: int
    threads: list[Pieces]
    work: Work
    waits: list[Wait]


def graph(job: Job, lives: Sequence[Life]) -> Graph:
    """The dependencies of a job."""
    work = work_of(job)
    threads = [_thread(member) for member in job.ranks]
    waits = [*waiting.synchronisations(job, work), *waiting.step_ends(job, work, threads)]
    waits += waiting.arrivals(job, lives, threads)
    waits.sort(key=lambda wait: (wait.end, not wait.sync))
    return _since(min((p.rank.start for _, p in job.ranks), default=0), threads, work, waits)


def _since(base: int, threads: list[Pieces], work: Work, waits: list[Wait]) -> Graph:
    """The graph with all times counted from `base`."""
    moved = {name: _moved(getattr(work, name), base) for name in _TIMES}
    return Graph(
        base,
        [Pieces(own.start - base, own.end - base, own.label) for own in threads],
        replace(work, **moved),
        [replace(w, start=w.start - base, end=w.end - base, until=w.until - base) for w in waits],
    )


_TIMES = ("start", "end", "called", "arrived")
"""The columns of the work that hold times."""


def _moved(times: Ints, base: int) -> Ints:
    return np.where(known(times), times - base, times)


def _thread(member: Member) -> Pieces:
    """What the thread of a rank does; while the devices idle, what that is charged to."""
    recording, partition = member
    rank, segments = partition.rank, partition.segments
    if rank.span == 0:
        return intervals.EMPTY
    idle = segments.take(np.flatnonzero(segments.activity < 0)).pieces
    window = np.array([rank.start]), np.array([rank.end])
    main = waiting.main_thread(member)
    own = host.explain(recording.host, window, np.array([main]))
    if recording.on_gpu and not len(recording.timeline["api"]):
        # Without its calls nobody can tell a thread that works from one that spins in a wait.
        spinning = own.label == CODE["scheduling.host"]
        label = np.where(spinning, CODE["scheduling.other"], own.label)
        own = Pieces(own.start, own.end, label)
    pieces, _ = intervals.overlay([idle, own], rank.start, rank.end)
    label = np.where(pieces.label == NO_PART, CODE["scheduling.other"], pieces.label)
    pieces = Pieces(pieces.start, pieces.end, label)
    return hand_overs.relabelled(pieces, hand_overs.driven(member, main))
