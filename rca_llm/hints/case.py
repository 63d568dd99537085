"""What rules look at: the job, the lives of its requests, and the time that causes are charged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import GRAPH_LAUNCH, JIT, LAUNCH
from rca_llm.attribute.job import Job, Member
from rca_llm.attribute.life import Life
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CODE, PARTS, codes
from rca_llm.hints.charging import Population
from rca_llm.hints.model import Charge
from rca_llm.hints.thresholds import Thresholds
from rca_llm.hints.wording import plural
from rca_llm.intervals import Pieces
from rca_llm.readers.events_values import as_dict
from rca_llm.table import UNKNOWN, Array, Ints, Mask, Table, known
from rca_llm.trace import SETTINGS
from rca_llm.whatif import Model

Answer = TypeVar("Answer")

Spans = tuple[Ints, Ints]
"""Starts and ends of intervals, ns."""

WARM_UP = 5
"""Steps that the steady window leaves out at the beginning."""

LONG_PAUSE = 10
"""Without requests, a pause of more median steps than this is one in which nothing was asked."""

_INTERFERENCE = CODE["scheduling.prefill_interference"]

_ENGINES = ("vllm", "sglang", "tensorrt", "transformers", "llama")

_STEP_STYLES = (("vllm", re.compile(r"execute_context_\d+")), ("sglang", re.compile(r"step\[\w+")))


@dataclass
class Case:
    """Everything that rules may look at; nothing in it is changed by them."""

    summary: Mapping[str, Any]
    model: Model
    thresholds: Thresholds
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """The gates that failed, each with what it said."""
    blocking: set[str] = field(default_factory=set[str])
    """Those of them that silence rules."""
    _found: dict[tuple[object, ...], Any] = field(default_factory=dict[tuple[object, ...], Any])

    @property
    def job(self) -> Job:
        """The job that is judged."""
        return self.model.job

    @property
    def lives(self) -> Sequence[Life]:
        """The lives of its requests."""
        return self.model.lives

    def once(self, key: tuple[object, ...], find: Callable[[], Answer]) -> Answer:
        """What several rules look at, found by the first that asks for it."""
        if key not in self._found:
            self._found[key] = find()
        found: Answer = self._found[key]
        return found

    def limits(self, id: str) -> Mapping[str, float]:
        """The thresholds of a rule."""
        return self.thresholds.get(id, {})

    @cached_property
    def engine(self) -> str | None:
        """The engine that was traced, in lower case, None where nothing tells."""
        named = " ".join(r.timeline.header.engine or "" for r in self.job.recordings).lower()
        told = next((engine for engine in _ENGINES if engine in named), None)
        return told or next(filter(None, map(_engine_of_steps, self.job.recordings)), None)

    @cached_property
    def settings(self) -> dict[str, bool]:
        """Which settings of the engine are on or off, where all recordings that tell agree."""
        told: dict[str, set[bool]] = {}
        for recording in self.job.recordings:
            given = recording.timeline.header.extra.get(SETTINGS)
            for name, on in as_dict(given).items():
                if isinstance(on, bool):
                    told.setdefault(name, set()).add(on)
        return {name: True in on for name, on in told.items() if len(on) == 1}

    @cached_property
    def graph_level(self) -> bool:
        """Whether graph replays were recorded as one piece, so that gaps inside them are hidden."""
        return any(row["code"] == "graph_level_only" for row in self.summary["quality"])

    @cached_property
    def finished(self) -> list[Life]:
        """The lives of requests that finished."""
        return [life for life in self.lives if life.request.status == "finished"]

    @cached_property
    def request_rows(self) -> dict[str, Mapping[str, Any]]:
        """The rows of the summary's `requests` by id."""
        return {row["id"]: row for row in self.summary["requests"]}

    @cached_property
    def totals(self) -> Ints:
        """The time of every part in every life, ns: (lives, parts)."""
        rows = [life.totals for life in self.lives]
        return np.stack(rows) if rows else np.zeros((0, len(PARTS)), np.int64)

    @cached_property
    def sums(self) -> Ints:
        """The time of every part, ns: over all requests, without any over the longest rank."""
        if len(self.lives):
            return np.asarray(self.totals.sum(axis=0))
        ranks = [partition.totals for _, partition in self.job.ranks]
        return max(ranks, key=lambda totals: int(totals.sum()), default=np.zeros(len(PARTS), int))

    def time_of(self, *parts: str) -> int:
        """The time of some parts over the whole population, ns."""
        return int(self.sums[codes(parts)].sum())

    def charge(self, parts: Sequence[str], spans: Spans | None = None) -> Charge:
        """The latency in some parts, within spans where those are given."""
        wanted = codes(parts)
        within = None if spans is None else _as_pieces(spans)
        found = (self._over_lives if self.lives else self._over_ranks)(wanted, within)
        covered = None if within is None else (within.start, within.end)
        return replace(found, parts=tuple(parts), within=covered)

    @cached_property
    def _population(self) -> Population:
        return Population(self.lives)

    def _over_lives(self, wanted: Ints, within: Pieces | None) -> Charge:
        # Most rules ask for parts that no request has, or for a time that never was.
        some = self.sums[wanted].any() and (within is None or len(within) > 0)
        found = self._population.charged(wanted, within) if some else []
        return over([(self.lives[n], ns, first, last) for n, ns, first, last in found])

    def _over_ranks(self, wanted: Ints, within: Pieces | None) -> Charge:
        found = [
            (_charged(partition.segments.pieces, wanted, within), partition.rank)
            for _, partition in self.job.ranks
        ]
        if not found:
            return Charge(0, 0)
        (ns, first, last), rank = max(found, key=lambda one: one[0][0])
        return Charge(ns, rank.span, (), first, last, f"the window of rank {rank.number}")

    def spans(self, recording: Recording, *kinds: str) -> Table:
        """The probe spans of some kinds, by start."""
        ranges, strings = recording.timeline["ranges"], recording.timeline.strings
        wanted = [code for code in map(strings.find, kinds) if code >= 0]
        rows = np.flatnonzero(among(ranges["kind"], wanted) & known(ranges["start"]))
        return ranges.take(rows).sorted_by("start")

    def in_steps(self, number: int, parts: Sequence[str]) -> Ints:
        """The time of some parts in every step of a rank (an index), ns."""
        recording, partition = self.job.ranks[number]
        rows = partition.steps
        start, end = recording.steps.start[rows], partition.step_end[rows]
        return self.in_windows(number, parts, (start, end))

    def in_windows(self, number: int, parts: Sequence[str], windows: Spans) -> Ints:
        """The time of some parts of a rank (an index) in each of some windows, ns."""
        pieces = self.job.ranks[number][1].segments.pieces
        rows = np.flatnonzero(among(pieces.label, codes(parts).tolist()))
        mine = Pieces(pieces.start[rows], pieces.end[rows], np.zeros(len(rows), np.int64))
        return intervals.covered(mine, *windows)

    def felt(self, parts: Sequence[str], spans: Spans) -> Ints:
        """The time of some parts in each of some spans, on the rank where it is most, ns."""
        ranks = range(len(self.job.ranks))
        found = [self.in_windows(number, parts, spans) for number in ranks]
        return np.asarray(np.max(found, axis=0)) if found else np.zeros(len(spans[0]), np.int64)

    @cached_property
    def _steady(self) -> list[Ints]:
        jit = ("scheduling.jit", "scheduling.graph_capture")
        found: list[Ints] = []
        for number in range(len(self.job.ranks)):
            compiling = self.in_steps(number, jit) > 0
            places = np.flatnonzero(~compiling)
            found.append(places[places >= WARM_UP] if len(compiling) > 2 * WARM_UP else places)
        return found

    def steady(self, number: int) -> Ints:
        """Places among a rank's steps (an index) that are neither warm-up nor compile.

        A run too short to have a steady state is judged whole.
        """
        return self._steady[number]

    def of_steps(self, parts: Sequence[str], spans: Spans | None = None) -> Loss:
        """The time of some parts within steady steps, against that of the steps, of the worst rank.

        Without steps the rank's whole window is judged.
        """
        wanted = codes(parts)
        within = None if spans is None else _as_pieces(spans)
        ranks = range(len(self.job.ranks))
        found = [self._of_steps(number, wanted, within) for number in ranks]
        return max(found, key=lambda loss: (loss.ns, loss.total), default=Loss(0, 0, 0))

    def of_service(self, parts: Sequence[str], spans: Spans | None = None) -> Loss:
        """The time of some parts in the steps, as `of_steps`; without steps, in the requests.

        A window in which a server waits to be asked says nothing of its requests. It is judged
        only where neither steps nor requests tell.
        """
        loss = self.of_steps(parts, spans)
        asked = int(self.sums.sum()) if self.lives else 0
        if loss.steps or not asked:
            return loss
        return Loss(self.charge(parts, spans).ns, asked, 0, "request")

    def serving(self, recording: Recording, step: Ints, spans: Spans) -> Mask:
        """Which work of a recording is service: in a step (a row), or while a request is served.

        Requests tell only without steps; where neither does, all work counts.
        """
        if len(recording.steps):
            return np.asarray(step >= 0)
        if not len(self.served[0]):
            return np.ones(len(step), bool)
        return intervals.touching(*spans, self.served)

    def _of_steps(self, number: int, wanted: Ints, within: Pieces | None) -> Loss:
        partition, steady = self.job.ranks[number][1], self.steady(number)
        if not len(steady):
            ns, *_ = _charged(partition.segments.pieces, wanted, within)
            return Loss(ns, partition.rank.span, 0)
        pieces, sums = self._steady_pieces[number]
        ns = int(sums[wanted].sum())
        if ns and within is not None:
            ns = _charged(pieces, wanted, within)[0]
        return Loss(ns, int(sums.sum()), len(steady))

    @cached_property
    def _steady_pieces(self) -> list[tuple[Pieces, Ints]]:
        """Every rank's pieces in its steady steps and on the way to the next; the sum by part."""
        found: list[tuple[Pieces, Ints]] = []
        for number, (recording, partition) in enumerate(self.job.ranks):
            steps, steady = partition.steps, self.steady(number)
            start, end = recording.steps.start[steps], partition.step_end[steps]
            until = np.where(self.followed(number), np.append(start[1:], end[-1:]), end)
            windows = intervals.union(start[steady], np.maximum(until, end)[steady])
            pieces = intervals.meeting(partition.segments.pieces, windows)
            found.append((pieces, pieces.sums(len(PARTS))))
        return found

    def followed(self, number: int) -> Mask:
        """After which steps of a rank (an index) the next one was wanted at once.

        A request must be between its arrival and its end meanwhile; without requests, the pause
        must not be far longer than usual.
        """
        recording, partition = self.job.ranks[number]
        start, end = recording.steps.start[partition.steps], partition.step_end[partition.steps]
        if not len(start):
            return np.zeros(0, bool)
        pause = np.append(start[1:], end[-1:]) - end
        if not self.lives:
            usual = float(np.median(end - start))
            wanted = pause <= LONG_PAUSE * usual
        else:
            served = _as_pieces(self.served)
            here, there = (intervals.at(served, t) for t in (end, end + np.maximum(pause, 0)))
            wanted = (here >= 0) & (here == there)
        wanted[-1] = False
        return np.asarray(wanted)

    @cached_property
    def served(self) -> Spans:
        """When any request was between its arrival and its end."""
        whole = [life.pieces for life in self.lives if len(life.pieces)]
        start = np.array([int(pieces.start[0]) for pieces in whole], np.int64)
        end = np.array([int(pieces.end[-1]) for pieces in whole], np.int64)
        return intervals.union(start, end)

    @cached_property
    def warm_since(self) -> int:
        """From when on work is service rather than start-up, ns.

        The first arrival, else the first step, else the middle of all device work, since nothing
        tells.
        """
        arrivals = [life.request.arrival for life in self.lives if life.request.arrival is not None]
        steps = [
            int(recording.steps.start[partition.steps[0]])
            for recording, partition in self.job.ranks
            if len(partition.steps)
        ]
        work = [partition.activity for _, partition in self.job.ranks if len(partition.activity)]
        first = min((int(activity.start.min()) for activity in work), default=0)
        last = max((int(activity.end.max()) for activity in work), default=0)
        return min(arrivals or steps, default=(first + last) // 2)

    def charge_steps(self, excess: Mapping[tuple[int, int], int], total: int) -> Charge:
        """The charge of time lost in single steps, for every request that is in them.

        `excess` is by recording (an index) and row of its steps, ns; `total` is what it is compared
        with where there are no requests.
        """
        recordings = {id(r): number for number, r in enumerate(self.job.recordings)}
        found: list[tuple[Life, int, int | None, int | None]] = []
        for life in self.lives:
            recording = self.recording_of(life)
            number = -1 if recording is None else recordings[id(recording)]
            own = np.unique(life.step[(life.step >= 0) & (life.pieces.label != _INTERFERENCE)])
            ns = sum(excess.get((number, row), 0) for row in own.tolist())
            if ns:
                found.append((life, ns, None, None))
        lost = sum(excess.values())
        return over(found) if self.lives else Charge(lost, total, population="the steps")

    def recording_of(self, life: Life) -> Recording | None:
        """The recording that tells of a request's steps, else the first that tells of it at all."""
        id = life.request.id
        knows = [r for r in self.job.recordings if r.timeline.strings.find(id) >= 0]
        with_steps = [r for r in knows if len(r.steps)]
        return next(iter(with_steps or knows), None)


@dataclass(frozen=True)
class Loss:
    """Time lost within the steps of a rank: `ns` out of `total`, over `steps` steps.

    `of` is what evidence calls it: `step`, or `request` where it is that of all requests.
    """

    ns: int
    total: int
    steps: int
    of: str = "step"

    @property
    def share(self) -> float:
        """The fraction of the step time."""
        return self.ns / self.total if self.total else 0.0

    @property
    def a_step(self) -> int:
        """The loss in one step, ns; the whole where there are no steps."""
        return self.ns // (self.steps or 1)


def over(found: Sequence[tuple[Life, int, int | None, int | None]]) -> Charge:
    """The charge of some lives: each with its ns, and the first and last instant charged."""
    if not found:
        return Charge(0, 0)
    total = sum(int(life.totals.sum()) for life, *_ in found)
    firsts = [first for _, _, first, _ in found if first is not None]
    lasts = [last for *_, last in found if last is not None]
    return Charge(
        sum(ns for _, ns, _, _ in found),
        total,
        tuple(life.request.id for life, *_ in found),
        min(firsts, default=None),
        max(lasts, default=None),
        plural(len(found), "request"),
    )


def _as_pieces(spans: Spans) -> Pieces:
    """The union of some spans, every piece with label 0."""
    start, end = intervals.union(*spans)
    return Pieces(start, end, np.zeros(len(start), np.int64))


def _charged(
    pieces: Pieces, wanted: Ints, within: Pieces | None
) -> tuple[int, int | None, int | None]:
    """How much of some pieces has a wanted label, and from when to when."""
    if within is not None and not len(within):
        return 0, None, None
    rows = np.flatnonzero(among(pieces.label, wanted.tolist()))
    if within is None:
        lasting = pieces.end[rows] - pieces.start[rows]
    else:
        lasting = intervals.covered(within, pieces.start[rows], pieces.end[rows])
    rows, lasting = rows[lasting > 0], lasting[lasting > 0]
    if not len(rows):
        return 0, None, None
    return int(lasting.sum()), int(pieces.start[rows[0]]), int(pieces.end[rows[-1]])


def _engine_of_steps(recording: Recording) -> str | None:
    """The engine whose way of naming steps a recording shows."""
    ranges, strings = recording.timeline["ranges"], recording.timeline.strings
    names = [strings[code] for code in used(ranges["name"])]
    return next((name for name, p in _STEP_STYLES if any(map(p.match, names))), None)


def used(column: Array) -> list[int]:
    """The text codes that occur in a column, ascending."""
    return [int(code) for code in np.flatnonzero(np.bincount(column[column >= 0]))]


def rank_rows(member: Member, table: Table) -> Mask:
    """Which rows of a table belong to a rank's processes."""
    return among(table["process"], [*member[1].rank.processes])


def launches_of(member: Member) -> Ints:
    """Rows of `api` that launch kernels or graphs for a rank."""
    recording, _ = member
    launch = (recording.calls == LAUNCH) | (recording.calls == GRAPH_LAUNCH)
    return np.flatnonzero(launch & rank_rows(member, recording.timeline["api"]))


def jit_calls(recording: Recording) -> Ints:
    """Rows of `api` that load or compile code."""
    return np.flatnonzero(recording.calls == JIT)


def whole(value: int) -> int | None:
    """A count or size, None where it is unknown."""
    return None if value == UNKNOWN else int(value)


def ranks_of(member: Member) -> int:
    """The number of a rank."""
    return member[1].rank.number
