"""The finished requests of a rank as columns, and their latencies on a replay's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca_llm.attribute.job import Job
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE, codes
from rca_llm.intervals import Pieces
from rca_llm.summary.requests import latency
from rca_llm.table import UNKNOWN, Array, Ints, Mask, known
from rca_llm.whatif.arrivals import Turns
from rca_llm.whatif.change import Change
from rca_llm.whatif.clock import Clock
from rca_llm.whatif.settings import DERIVED
from rca_llm.whatif.waits import Served

Row = dict[str, Any]


@dataclass(frozen=True)
class Requests:
    """Finished requests of one rank, one row each; instants are ns after the graph's base.

    `place` is their place among all lives, `last` when the engine was done with them, `first` the
    first token, `UNKNOWN` without one. `at`, `ready` and `text` are those of the admission where
    `admitted`. `tail` are the pieces after `last`, each of the row that `owner` says. Of one
    that its own threads tell (`alone`) `last` is its admission, and its tail all that follows.
    """

    place: Ints
    ids: list[str]
    arrival: Ints
    lasted: Ints
    last: Ints
    first: Ints
    admitted: Mask
    at: Ints
    ready: Ints
    text: Ints
    alone: Mask
    tail: Pieces
    owner: Ints

    def replayed(self, turns: Turns, clock: Clock, change: Change, base: int) -> list[Row]:
        """Every request as measured and as replayed."""
        came = self._came(turns, clock, change, base)
        done = clock(self.last)
        ended = _whole(done + self._after(self.tail.end, clock, change, base) - came)
        before = self._after(self.first[self.owner], clock, change, base)
        begun = np.where(self.alone, done + before, clock(np.maximum(self.first, 0)))
        begun = _whole(begun - came)
        first = np.maximum(self.first - self.arrival, 0)
        rows = zip(*(x.tolist() for x in (self.lasted, ended, first, begun)), strict=True)
        told: list[bool] = known(self.first).tolist()
        return [
            {
                "id": id,
                "latency_ns": old,
                "new_latency_ns": new,
                "ttft_ns": ttft if has else None,
                "new_ttft_ns": new_ttft if has else None,
            }
            for id, has, (old, new, ttft, new_ttft) in zip(self.ids, told, rows, strict=True)
        ]

    def _after(self, until: Ints, clock: Clock, change: Change, base: int) -> Array:
        """What becomes of the tail of each request, of every piece up to an instant.

        What a request that its own threads tell waits for others follows the engine.
        """
        start, label = self.tail.start, self.tail.label
        end = np.maximum(np.minimum(self.tail.end, until), start)
        lasting = (end - start) * change.factor(label, start, end, base)
        follows = self.alone[self.owner] & among(label, codes(DERIVED).tolist())
        lasting[follows] = clock(end[follows]) - clock(start[follows])
        return np.bincount(self.owner, lasting, len(self.ids))

    def _came(self, turns: Turns, clock: Clock, change: Change, base: int) -> Array:
        """When requests come that wait as long as they would, beside their new steps."""
        since = self.ready - self.text
        part = np.full(len(since), CODE["scheduling.tokenize"], np.int64)
        needed = self.text * change.factor(part, since, self.ready, base)
        waited = turns.waited(self.at, self.ready, since + needed, clock, clock.busy)
        # One that waited for nobody is not held up by what the engine does for others either.
        waited = np.where(self.alone & (self.at == self.ready), 0, waited)
        return np.where(self.admitted, clock(self.at) - needed - waited, self.arrival)


def _whole(times: Array) -> Ints:
    return np.asarray(np.maximum(np.rint(times), 0), np.int64)


def by_rank(job: Job, served: Sequence[Served], base: int) -> list[Requests]:
    """The finished requests of every rank of a job, with instants after `base`."""
    return [
        _columns([(place, one) for place, one in enumerate(served) if one.rank == number], base)
        for number in range(len(job.ranks))
    ]


def _columns(served: Sequence[tuple[int, Served]], base: int) -> Requests:
    """The columns of those that are finished."""
    rows = [row for place, one in served if (row := _row(place, one, base))]
    table = np.array([row[1:-1] for row in rows], np.int64).reshape(len(rows), 10)
    columns = [np.asarray(table[:, place], np.int64) for place in range(table.shape[1])]
    place, arrival, lasted, last, first, admitted, at, ready, text, alone = columns
    tails: list[Pieces] = [row[-1] for row in rows]
    tail, owner = _joined(tails, base)
    ids: list[str] = [row[0] for row in rows]
    waits = np.asarray(admitted > 0), at, ready, text
    own = np.asarray(alone > 0)
    return Requests(place, ids, arrival, lasted, last, first, *waits, own, tail, owner)


def _joined(tails: Sequence[Pieces], base: int) -> tuple[Pieces, Ints]:
    """The pieces of all, with instants after `base`, and whose each is."""
    none = [np.zeros(0, np.int64)]
    start = np.concatenate([own.start for own in tails] or none) - base
    end = np.concatenate([own.end for own in tails] or none) - base
    label = np.concatenate([own.label for own in tails] or none)
    counts = np.array([len(own) for own in tails], np.int64)
    return Pieces(start, end, label), np.repeat(np.arange(len(tails)), counts)


def _row(place: int, served: Served, base: int) -> tuple[Any, ...] | None:
    """A finished request as its columns; None of any other."""
    life, one = served.life, served.admission
    request, lasted = life.request, latency(life.request)
    if request.arrival is None or lasted is None or request.status != "finished":
        return None
    last = request.tokens[-1] if request.tokens else request.finished or request.arrival
    if life.alone and one is not None:
        last = one.at
    tail = life.pieces.clip(last, max(last, request.finished or last))
    first = UNKNOWN if request.first_token is None else request.first_token - base
    begin = request.arrival - base
    wait = (0, begin, begin, 0) if one is None else (1, one.at - base, one.ready - base, one.text)
    alone = int(life.alone)
    return request.id, place, begin, lasted, last - base, first, *wait, alone, tail
