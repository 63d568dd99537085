"""The lives of all requests of a job."""

from __future__ import annotations

from rca_llm.attribute import pauses
from rca_llm.attribute.job import Job
from rca_llm.attribute.life import Life, life
from rca_llm.attribute.requests import Request, requests_of
from rca_llm.attribute.view import engine_view


def lives_in(job: Job) -> tuple[list[Request], list[Life]]:
    """The requests of a job by arrival, and the partition of each that has an arrival."""
    requests: list[Request] = []
    lives: list[Life] = []
    seen: set[tuple[str | None, str]] = set()
    for number, (recording, partition) in enumerate(job.ranks):
        fresh = [
            request
            for request in requests_of(recording.timeline)
            if (recording.timeline.header.job, request.id) not in seen
        ]
        if not fresh:
            continue
        seen.update((recording.timeline.header.job, request.id) for request in fresh)
        view = engine_view(job.ranks, number, job.collectives)
        untold = pauses.untold(recording.timeline, view.shared.pieces)
        found = [life(request, recording, partition, view, untold) for request in fresh]
        requests += fresh
        lives += [one for one in found if one is not None]
    requests.sort(key=lambda request: request.arrival or 0)
    lives.sort(key=lambda one: one.request.arrival or 0)
    return requests, lives
