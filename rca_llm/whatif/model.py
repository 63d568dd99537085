"""What hints and predictions share: a job, the lives of its requests, and the graph of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rca_llm.attribute import job as jobs
from rca_llm.attribute.job import Job
from rca_llm.attribute.life import Life
from rca_llm.attribute.lives import lives_in
from rca_llm.whatif.arrivals import Turns
from rca_llm.whatif.graph import Graph, graph
from rca_llm.whatif.requests import Requests, by_rank
from rca_llm.whatif.waits import Served, served

if TYPE_CHECKING:
    from rca_llm.report import Report


@dataclass(frozen=True)
class Model:
    """A job, the lives of its requests, and the dependency graph of both, ready to be replayed."""

    job: Job
    lives: Sequence[Life]

    @cached_property
    def served(self) -> list[Served]:
        """The requests, each with its rank and its admission."""
        return served(self.job, self.lives)

    @cached_property
    def graph(self) -> Graph:
        """The graph, built when it is first asked for: hints and predictions share it."""
        return graph(self.job, self.served)

    @cached_property
    def turns(self) -> list[Turns]:
        """The steps of every rank, which requests wait for; times as in the graph."""
        base, ranks = self.graph.base, self.job.ranks
        both = [(one.steps.start[own.steps], one.steps.end[own.steps]) for one, own in ranks]
        return [Turns(start - base, end - base) for start, end in both]

    @cached_property
    def requests(self) -> list[Requests]:
        """The finished requests of every rank; times as in the graph."""
        return by_rank(self.job, self.served, self.graph.base)


def model(report: Report) -> Model:
    """The dependency graph behind a report."""
    if report.model is not None:
        return report.model
    job = jobs.attribute(report.trace.timelines)
    return Model(jobs.serving(job), lives_in(job)[1])
