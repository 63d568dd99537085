"""What lives are charged, summed over what they share, is what their own pieces say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rca_llm import intervals
from rca_llm.attribute import job as jobs
from rca_llm.attribute.life import Life
from rca_llm.attribute.lives import lives_in
from rca_llm.hints.charging import Population
from rca_llm.intervals import Pieces
from rca_llm.trace import Timeline
from tests.test_stretches import services

spans = st.lists(st.tuples(st.integers(-5, 80), st.integers(1, 20)), max_size=6)


def _plain(life: Life, wanted: set[int], within: Pieces | None) -> tuple[int, int, int] | None:
    """The same, instant by instant: time, begin of the first and end of the last piece charged."""
    instants = None if within is None else _instants(within)
    found: list[tuple[int, int, int]] = []
    for start, end, label in zip(
        life.pieces.start.tolist(),
        life.pieces.end.tolist(),
        life.pieces.label.tolist(),
        strict=True,
    ):
        own = range(start, end)
        ns = len(own) if instants is None else sum(t in instants for t in own)
        if label in wanted and ns:
            found.append((ns, start, end))
    return (sum(ns for ns, _, _ in found), found[0][1], found[-1][2]) if found else None


def _instants(pieces: Pieces) -> set[int]:
    bounds = zip(pieces.start.tolist(), pieces.end.tolist(), strict=True)
    return {t for start, end in bounds for t in range(start, end)}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(services(), services(), st.data())
def test_sums_over_shared_pieces_are_those_of_every_life(
    one: Timeline, other: Timeline, data: st.DataObject
) -> None:
    lives = [life for own in (one, other) for life in lives_in(jobs.attribute([own]))[1]]
    if data.draw(st.booleans()):  # a life that somebody made of pieces alone
        lives = [replace(life, stretches=None) if n % 2 else life for n, life in enumerate(lives)]
    seen = sorted({label for life in lives for label in life.pieces.label.tolist()}) or [0]
    wanted = data.draw(st.sets(st.sampled_from(seen)))
    chosen = data.draw(st.none() | spans)
    within = None
    if chosen is not None:
        edges = np.array(chosen, np.int64).reshape(-1, 2)
        start, end = intervals.union(edges[:, 0], edges[:, 0] + edges[:, 1])
        within = Pieces(start, end, np.zeros(len(start), np.int64))
    found = Population(lives).charged(np.array(sorted(wanted), np.int64), within)
    plain = [(number, _plain(life, wanted, within)) for number, life in enumerate(lives)]
    assert found == [(number, *told) for number, told in plain if told is not None]
