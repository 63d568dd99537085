"""A life told in stretches is, to the nanosecond, what looking at every instant by itself tells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca_llm import intervals
from rca_llm.attribute import job as jobs
from rca_llm.attribute import life as lives
from rca_llm.attribute import touched
from rca_llm.attribute.life import INTERFERENCE, PREEMPT, QUEUE, RECOMPUTE, Life
from rca_llm.attribute.life import _own_spans as own_spans
from rca_llm.attribute.partition import RankPartition, Recording, Segments
from rca_llm.attribute.parts import NO_PART
from rca_llm.attribute.requests import Request, requests_of
from rca_llm.attribute.stretches import OTHER
from rca_llm.intervals import Pieces
from rca_llm.table import NEVER, Ints
from rca_llm.trace import Timeline
from tests.timelines import Builder

Row = tuple[int, int, int, int]
"""Start, end, part and step of a piece of a life."""

times = st.integers(0, 60)
kinds = st.sampled_from(["tokenize", "detokenize", "host", "http", "work", "gc", "compute"])
names = st.sampled_from(["preempted", "resumed", "scheduled", "aborted"])


@st.composite
def services(draw: st.DrawFn) -> Timeline:
    """A small service with requests in batches, in which anything may overlap anything."""
    builder = Builder()
    for _ in range(draw(st.integers(0, 8))):
        start, lasting = draw(times), draw(st.integers(1, 12))
        builder.launch("gemm", (start, start + 1), (start + 1, start + 1 + lasting))
    for number in range(draw(st.integers(0, 6))):
        start, lasting = draw(times), draw(st.integers(0, 15))
        phases = st.sampled_from(["prefill", "decode", "recompute"])
        batch = draw(st.dictionaries(st.sampled_from("AB"), phases))
        builder.step(number, start, start + lasting, **batch)
    for _ in range(draw(st.integers(0, 5))):
        start, lasting = draw(times), draw(st.integers(0, 20))
        owner: dict[str, Any] = draw(st.sampled_from([{}, {"request": "A"}, {"request": "B"}]))
        owner |= {"process": draw(st.integers(1, 2)), "thread": draw(st.integers(1, 2))}
        builder.span(draw(kinds), start, start + lasting, **owner)
    for id in "AB":
        _request(draw, builder, id)
    return builder.build()


def _request(draw: st.DrawFn, builder: Builder, id: str) -> None:
    marks = ("arrival", "scheduled", "first_token", "finished")
    at = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    said = {name: t for name, t in zip(marks, at, strict=True) if draw(st.booleans())}
    builder.row("requests", id=id, **{"arrival": at[0]} | said)
    for t in draw(st.lists(times, max_size=3)):
        builder.row("tokens", request=id, t=t)
    for t in draw(st.lists(times, max_size=3)):
        builder.row("marks", request=id, name=draw(names), t=t, process=1)


class Plain:
    """The rules of a life, one instant after another."""

    def __init__(
        self, request: Request, recording: Recording, partition: RankPartition, view: Segments
    ) -> None:
        self.request, self.recording, self.view = request, recording, view
        self.steps = recording.steps
        self.member, self.again = lives._membership(recording, request)
        self.arrival = request.arrival or 0
        finished = request.finished if request.finished is not None else partition.rank.end
        self.end = max(finished, self.arrival)
        admitted = lives._admitted(request, self.steps.start, self.member)
        self.begin = min(max(admitted, self.arrival), self.end)
        cuts = {*view.start.tolist(), *view.end.tolist(), *lives._turns(request).tolist()}
        self.cuts = sorted({self.begin, *(t for t in cuts if self.begin < t < self.end)})
        span, processes = (self.begin, self.end), partition.rank.processes
        nothing = intervals.EMPTY
        on_cpu = not self.member.any() and not recording.on_gpu
        self.layers: list[tuple[Pieces, Sequence[int] | None]] = [
            (
                touched.instead(recording, request.id, processes, *span) if on_cpu else nothing,
                None,
            ),
            (
                touched.own_computing(recording, request.id, self.arrival, self.end)
                if on_cpu
                else nothing,
                None,
            ),
            (own_spans(recording, request.id), (QUEUE, OTHER)),
            (
                touched.own_threads(
                    recording, request.id, self.arrival, self.end, alone=bool(on_cpu)
                ),
                (OTHER,),
            ),
        ]

    def rows(self) -> list[Row]:
        """The pieces of the life, as long as part and step stay."""
        edges = {self.arrival, self.end, *self.cuts}
        for told, _ in self.layers:
            edges |= {*told.start.tolist(), *told.end.tolist()}
        inside = sorted(t for t in edges if self.arrival <= t <= self.end)
        found: list[Row] = []
        for start, end in itertools.pairwise(inside):
            part, step = self._at(start)
            if found and found[-1][2:] == (part, step):
                start = found.pop()[0]
            found.append((start, end, part, step))
        return found

    def _at(self, t: int) -> tuple[int, int]:
        part, step = (QUEUE, -1) if t < self.begin else self._admitted(t)
        for told, over in self.layers:
            said = _covering(told.start, told.end, t)
            label = NO_PART if said is None else int(told.label[said])
            if label != NO_PART and (over is None or part in over):
                part = label
        return part, step

    def _admitted(self, t: int) -> tuple[int, int]:
        row = _covering(self.view.start, self.view.end, t)
        part = OTHER if row is None else int(self.view.part[row])
        step = -1 if row is None else int(self.view.step[row])
        own = step >= 0 and bool(self.member[step])
        if step >= 0 and not own:
            part = INTERFERENCE
        elif own and self.again[step]:
            part = RECOMPUTE
        here = max(cut for cut in self.cuts if cut <= t)
        if not own and any(begun <= here < until for begun, until in self._waits()):
            part = PREEMPT
        late = here >= self._done() and not own
        return OTHER if late and (self.request.tokens or step >= 0) else part, step

    def _waits(self) -> Iterator[tuple[int, int]]:
        starts = [int(t) for t, own in zip(self.steps.start, self.member, strict=True) if own]
        for begun, resumed in self.request.preempted:
            later = min((t for t in starts if t >= begun), default=NEVER)
            yield begun, later if resumed is None else resumed

    def _done(self) -> int:
        if self.request.tokens:
            return self.request.tokens[-1]
        own = [
            min(int(end), self.end)
            for start, end, step in zip(self.view.start, self.view.end, self.view.step, strict=True)
            if step >= 0 and self.member[step] and start < self.end and end > self.begin
        ]
        return max(own, default=NEVER)


def _covering(start: Ints, end: Ints, t: int) -> int | None:
    found = np.flatnonzero((start <= t) & (end > t))
    return int(found[0]) if len(found) else None


def _rows(life: Life) -> list[Row]:
    columns = (life.pieces.start, life.pieces.end, life.pieces.label, life.step)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(services(), st.sets(st.integers(0, 12)))
def test_stretches_tell_what_every_instant_tells(timeline: Timeline, lost: set[int]) -> None:
    job = jobs.attribute([timeline])
    for recording, partition in job.ranks:
        whole = partition.segments
        # A view of several ranks may have holes.
        kept = [row for row in range(len(whole)) if row not in lost or row in (0, len(whole) - 1)]
        for view in (whole, whole.take(np.array(kept, np.int64))):
            for request in requests_of(timeline):
                life = lives.life(request, recording, partition, view)
                if life is None:
                    assert request.arrival is None
                    continue
                plain = Plain(request, recording, partition, view).rows()
                assert _rows(life) == plain
                assert life.shared_ns == _shared_ns(plain, recording, request)


def _shared_ns(rows: list[Row], recording: Recording, request: Request) -> int:
    member, _ = lives._membership(recording, request)
    return sum(
        end - start
        for start, end, part, step in rows
        if step >= 0
        and member[step]
        and recording.steps.size[step] > 1
        and part not in (QUEUE, PREEMPT, INTERFERENCE)
    )


def test_a_segment_in_which_a_request_is_resumed_counts_as_waiting_whole() -> None:
    builder = Builder()
    builder.launch("gemm", (0, 1), (1, 40))
    builder.launch("gemm", (41, 42), (42, 60))
    builder.step(0, 0, 40, B="decode")
    builder.step(1, 10, 60, A="decode")
    builder.row("requests", id="A", arrival=0, scheduled=0, finished=60)
    builder.row("marks", request="A", name="preempted", t=5, process=1)
    timeline = builder.build()
    recording, partition = jobs.attribute([timeline]).ranks[0]
    (request,) = requests_of(timeline)
    life = lives.life(request, recording, partition, partition.segments)
    assert life is not None
    assert (5, 40, PREEMPT, 0) in _rows(life)
    assert _rows(life) == Plain(request, recording, partition, partition.segments).rows()
