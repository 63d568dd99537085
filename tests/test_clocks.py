"""Clocks of ranks come back onto one, and verdicts stay silent below what that is known to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca_llm.align import align
from rca_llm.attribute import clocks
from rca_llm.attribute.clock_fit import fit
from rca_llm.attribute.job import attribute
from rca_llm.trace import Finding, Timeline, Trace
from tests.timelines import Builder, findings

US, MS, S = 1_000, 1_000_000, 1_000_000_000
BASE = 1_700_000_000 * S
NOISE_NS = 2 * US
PROBES = (0.0, 0.5, 1.0)
"""Parts of the run at which a mark without noise tells how well the clocks agree."""


@dataclass
class World:
    """Ranks with clocks of their own that meet in collectives; times from the first on, ns.

    `offset` and `drift` hold a value a rank; `late` is who comes how much later, a collective.
    """

    ranks: int
    span: int = 10 * S
    meetings: int = 60
    offset: list[int] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    hosts: int | None = None
    noise: int = NOISE_NS
    late: list[tuple[int, int]] = field(default_factory=list)
    op: str = "all_reduce"
    step: dict[int, tuple[int, int]] = field(default_factory=dict)
    seed: int = 0
    transfer: int = 30 * US

    def on(self, rank: int, time: float) -> int:
        """A true time as a rank's clock shows it."""
        own = self.offset[rank] if self.offset else 0
        drift = self.drift[rank] if self.drift else 0.0
        at, size = self.step.get(rank, (0, 0))
        return BASE + round(time * (1 + drift)) + own + (size if time >= at else 0)

    def timelines(self) -> list[Timeline]:
        """The recordings of all ranks, each with noise on every time, and exact marks."""
        random = np.random.default_rng(self.seed)
        builders = [
            Builder(
                rank=rank,
                world_size=self.ranks,
                host=None if self.hosts is None else f"h{rank * self.hosts // self.ranks}",
            )
            for rank in range(self.ranks)
        ]
        for rank, builder in enumerate(builders):
            for part in PROBES:
                builder.row("marks", t=self.on(rank, part * self.span), name="probe", process=1)
        for seq, time in enumerate(np.linspace(0, self.span - MS, self.meetings).tolist()):
            arrival = np.full(self.ranks, time)
            if self.late:
                who, much = self.late[seq % len(self.late)]
                arrival[who % self.ranks] += much
            end = arrival.max() + self.transfer * (1 + seq % 3)
            for rank, builder in enumerate(builders):
                off = random.normal(0, self.noise, 2) if self.noise else (0, 0)
                builder.row(
                    "collectives",
                    comm="tp",
                    op=self.op,
                    seq=seq,
                    bytes=4096,
                    process=1,
                    start=self.on(rank, arrival[rank]) + round(off[0]),
                    end=self.on(rank, end) + round(off[1]),
                )
        return [builder.build() for builder in builders]


def aligned(world: World) -> tuple[list[Timeline], list[Finding]]:
    trace = align(Trace(world.timelines()))
    return trace.timelines, [*trace.findings, *clocks.refine(trace.timelines, world.ranks)]


def errors(timelines: list[Timeline]) -> np.ndarray:
    """How far each rank's marks are from those of rank 0, ns."""
    marks = np.stack([timeline["marks"]["t"] for timeline in timelines])
    return np.abs(marks - marks[0])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ranks = draw(st.sampled_from([2, 3, 4, 8, 16, 64]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    late = zip(random.integers(0, ranks, 20), random.exponential(MS / 2, 20), strict=True)
    return World(
        ranks,
        span=draw(st.sampled_from([S // 10, S, 10 * S, 60 * S])),
        meetings=draw(st.sampled_from([50, 90])),
        offset=random.integers(-S, S, ranks).tolist(),
        drift=random.uniform(-50e-6, 50e-6, ranks).tolist(),
        late=[(int(who), round(much)) for who, much in late],
        seed=int(random.integers(2**32)),
    )


def test_random_clocks_come_back_and_the_last_rank_is_right() -> None:
    """Every example adds its verdicts, so that the share is one over all of them."""
    right, told = [], []

    @settings(max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(worlds())
    def check(world: World) -> None:
        timelines, _ = aligned(world)
        assert errors(timelines).max() <= 5 * US
        unsure = max(timeline.clock.uncertainty_ns or 0 for timeline in timelines)
        assert 0 < unsure < 30 * US
        for one in attribute(timelines).collectives:
            seq = one.parts[0].seq or 0
            who, much = world.late[seq % len(world.late)]
            if much > unsure:
                right.append(one.last_rank == who % world.ranks)
            if one.last_rank is not None:
                told.append(one.last_rank == who % world.ranks)

    check()
    assert len(right) > 500
    assert sum(right) >= 0.99 * len(right)
    assert sum(told) >= 0.99 * len(told)


def test_ranks_of_one_host_are_left_as_they_are() -> None:
    world = World(4, hosts=1)
    before = [timeline["collectives"]["start"].copy() for timeline in world.timelines()]
    timelines, found = aligned(world)
    assert [t.clock.offset_ns for t in timelines] == [0, 0, 0, 0]
    assert [t.clock.uncertainty_ns for t in timelines] == [0, 0, 0, 0]
    assert not found
    for timeline, times in zip(timelines, before, strict=True):
        assert np.array_equal(timeline["collectives"]["start"], times)


def test_ranks_of_one_host_move_together() -> None:
    offset = [0, 0, 3 * MS, 3 * MS]
    timelines, found = aligned(World(4, hosts=2, offset=offset))
    assert timelines[2].clock == timelines[3].clock
    assert timelines[2].clock.offset_ns == pytest.approx(-3 * MS, abs=5 * US)
    assert [(one.code, one.where) for one in found] == [("clock_offset", "rank 2, 3, host h1")]


def test_true_clocks_are_not_called_wrong() -> None:
    timelines, found = aligned(World(2, hosts=2))
    assert not found
    assert abs(timelines[1].clock.offset_ns or 0) <= 5 * US


def test_anchors_jitter_and_one_host_stays_together() -> None:
    builders = [Builder(rank=rank, host="h", utc=False) for rank in range(3)]
    for builder, jitter in zip(builders, (-300, 0, 900), strict=True):
        builder.timeline.header.anchors = [(0, BASE + jitter)]
        builder.row("marks", t=50, name="probe", process=1)
    timelines = align(Trace([builder.build() for builder in builders])).timelines
    assert [int(t["marks"]["t"][0]) for t in timelines] == [BASE + 50] * 3
    clocks.refine(timelines)
    assert [t.clock.offset_ns for t in timelines] == [0, 0, 0]


@pytest.mark.parametrize("op", ["broadcast", "reduce", "send_recv"])
def test_one_sided_operations_tell_nothing(op: str) -> None:
    timelines, found = aligned(World(2, hosts=2, op=op))
    assert timelines[1].clock.offset_ns is None
    assert timelines[1].clock.uncertainty_ns is None
    assert [one.code for one in found] == ["clock_offset"]
    rows = summary(World(2, hosts=2, op=op, late=[(1, MS)]))["collectives"]
    assert {row["last_rank"] for row in rows} == {None}
    assert {row["wait_ns"] is None for row in rows} == {True}


def summary(world: World) -> dict[str, Any]:
    return Trace(world.timelines()).attribute().summary


@pytest.mark.parametrize("size", [5 * MS, -5 * MS])
def test_a_step_is_found_and_mended(size: int) -> None:
    timelines, found = aligned(World(2, hosts=2, meetings=200, step={1: (4 * S, size)}))
    assert errors(timelines).max() <= 5 * US
    [step] = [one for one in found if one.code == "clock_step"]
    stated = int(step.detail.split("by ")[1].split(" ns")[0])
    assert stated == pytest.approx(size, abs=10 * US)
    starts = timelines[1]["collectives"]["start"]
    assert np.all(np.diff(starts) >= 0)


def test_an_outlier_is_named_and_moves_nothing() -> None:
    timelines = align(Trace(World(2, hosts=2).timelines())).timelines
    table = timelines[1]["collectives"]
    end = table["end"].copy()
    end[7] += 40 * MS
    timelines[1].tables["collectives"] = table.with_columns(end=end)
    [finding] = clocks.refine(timelines, 2)
    assert "1 disagree: most of all tp all_reduce 7" in finding.detail
    assert errors(timelines).max() <= 5 * US


def test_few_collectives_are_within_the_uncertainty_they_state() -> None:
    offset = [0, 700 * US]
    timelines, _ = aligned(World(2, hosts=2, meetings=3, offset=offset, late=[(1, MS), (0, MS)]))
    clock = timelines[1].clock
    assert clock.offset_ns is not None and clock.uncertainty_ns is not None
    assert abs(clock.offset_ns + 700 * US) <= clock.uncertainty_ns


def test_clocks_are_tied_through_others() -> None:
    """Ranks 0 and 1 meet, and 1 and 2, but never 0 and 2."""
    offset = [0, 2 * MS, -7 * MS]
    world = World(3, hosts=3, offset=offset)
    timelines = align(Trace(world.timelines())).timelines
    for number, comm in ((0, "a"), (2, "b")):
        table = timelines[number]["collectives"]
        own = timelines[number].strings.code(comm)
        timelines[number].tables["collectives"] = table.with_columns(
            comm=np.full(len(table), own, np.int32)
        )
    table, strings = timelines[1]["collectives"], timelines[1].strings
    even = np.arange(len(table)) % 2 == 0
    comm = np.where(even, strings.code("a"), strings.code("b"))
    timelines[1].tables["collectives"] = table.with_columns(comm=comm)
    clocks.refine(timelines, 3)
    assert timelines[2].clock.offset_ns == pytest.approx(7 * MS, abs=5 * US)
    unsure = [t.clock.uncertainty_ns or 0 for t in timelines]
    assert 0 == unsure[0] < unsure[1] < unsure[2]


def test_verdicts_below_the_uncertainty_are_none() -> None:
    near = summary(World(2, hosts=2, late=[(1, 3 * US), (0, 3 * US)]))
    far = summary(World(2, hosts=2, late=[(1, 3 * MS), (0, 3 * MS)]))
    unsure = near["ranks"][1]["uncertainty_ns"]
    assert unsure > 3 * US
    certain = [row for row in near["collectives"] if row["last_rank"] is not None]
    assert len(certain) <= 1
    assert all(row["transfer_ns"] > 0 for row in near["collectives"])
    assert "communication.wait" not in near["parts"] or certain
    assert [row["last_rank"] for row in far["collectives"][:4]] == [1, 0, 1, 0]
    assert far["parts"]["communication.wait"] == pytest.approx(60 * 3 * MS, rel=0.02)


def test_a_drift_that_bends_is_followed() -> None:
    """A clock that warms up: the drift grows from 0 to 20 ppm over a minute."""
    random = np.random.default_rng(3)
    times = np.linspace(0, 60 * S, 1200).astype(np.int64)
    true = np.round(10e-6 * times**2.0 / (60 * S)).astype(np.int64)
    found = fit(times, times + true + np.round(random.normal(0, 2 * US, 1200)).astype(np.int64))
    assert np.abs(found.correction(times) - true).max() <= 5 * US
    assert not found.steps


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, S), st.integers(-S, S)), min_size=1, max_size=80),
    st.lists(st.integers(-S, 2 * S), min_size=2, max_size=40),
)
def test_corrected_times_never_run_backwards(
    pairs: list[tuple[int, int]], times: list[int]
) -> None:
    """Whatever nonsense the pairs say."""
    own, other = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    found = fit(own, other)
    ascending = np.sort(np.array(times, np.int64))
    assert np.all(np.diff(ascending + found.correction(ascending)) >= 0)


def test_findings_stand_in_the_summary() -> None:
    found = summary(World(2, hosts=2, offset=[0, 4 * MS]))
    [row] = findings(found, "clock_offset")
    assert str(found["ranks"][1]["offset_ns"]) in row["detail"]
    assert math.isclose(found["ranks"][1]["offset_ns"], -4 * MS, abs_tol=5 * US)
