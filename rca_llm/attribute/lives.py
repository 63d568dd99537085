"""The lives of all requests of a job."""

from __future__ import annotations

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import pauses
from rca_llm.attribute.job import Job, Member, is_stranger
from rca_llm.attribute.life import Life, life
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.requests import Request, requests_of
from rca_llm.attribute.view import engine_view
from rca_llm.intervals import Pieces
from rca_llm.table import Ints


def lives_in(job: Job) -> tuple[list[Request], list[Life]]:
    """The requests of a job by arrival, and the partition of each that has an arrival."""
    requests: list[Request] = []
    lives: list[Life] = []
    seen: set[tuple[str | None, str]] = set()
    for number, (recording, partition) in enumerate(job.ranks):
        if is_stranger((recording, partition)):
            continue
        others = _stepping_elsewhere(job, (recording, partition))
        fresh = [
            request
            for request in requests_of(recording.timeline)
            if (recording.timeline.header.job, request.id) not in seen
            and not _served_in(recording, request, others)
        ]
        if not fresh:
            continue
        seen.update((recording.timeline.header.job, request.id) for request in fresh)
        view = engine_view(job.ranks, number, job.collectives)
        untold = pauses.untold(recording.timeline, view.shared.pieces)
        held = _contended(job, recording)
        found = [life(request, recording, partition, view, untold, held) for request in fresh]
        requests += fresh
        lives += [one for one in found if one is not None]
    requests.sort(key=lambda request: request.arrival or 0)
    lives.sort(key=lambda one: one.request.arrival or 0)
    return requests, lives


def _stepping_elsewhere(job: Job, member: Member) -> Ints:
    """The steps of a recording that other ranks of it run and this one does not."""
    recording, partition = member
    every = [one.steps for place, one in job.ranks if place is recording]
    return np.setdiff1d(np.concatenate(every), partition.steps)


def _served_in(recording: Recording, request: Request, steps: Ints) -> bool:
    """Whether a request is in steps, and all of them are among some: another engine has it."""
    if not len(steps):
        return False
    rows, _ = recording.steps.of_request(recording.timeline.strings.find(request.id))
    return len(rows) > 0 and bool(np.isin(rows, steps).all())


def _contended(job: Job, recording: Recording) -> Pieces:
    """When work of any rank of a recording waited for another process, by process."""
    own = [one.contended for place, one in job.ranks if place is recording and len(one.contended)]
    if len(own) < 2:
        return own[0] if own else intervals.EMPTY
    low, high = min(int(one.start[0]) for one in own), max(int(one.end[-1]) for one in own)
    pieces, _ = intervals.overlay(own, low, high)
    return pieces.take(np.flatnonzero(pieces.label >= 0))
