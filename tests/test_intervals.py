"""Interval arithmetic against a naive model that looks at every nanosecond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rca_llm import intervals
from rca_llm.intervals import Pieces

HORIZON = 40
Interval = tuple[int, int]

interval = st.tuples(st.integers(0, HORIZON), st.integers(0, 12)).map(
    lambda pair: (pair[0], min(pair[0] + pair[1], HORIZON))
)
many = st.lists(interval, max_size=12)


def columns(items: list[Interval]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(items, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def painted(pieces: Pieces) -> list[int]:
    line = [-1] * HORIZON
    for start, end, label in zip(pieces.start, pieces.end, pieces.label, strict=True):
        assert start < end
        for t in range(start, end):
            assert line[t] == -1, "pieces overlap"
            line[t] = int(label)
    return line


def chosen(items: list[Interval], key: Callable[[int], tuple[int, ...]]) -> list[int]:
    line: list[int] = []
    for t in range(HORIZON):
        covering = [i for i, (start, end) in enumerate(items) if start <= t < end]
        line.append(min(covering, key=key) if covering else -1)
    return line


@given(many)
def test_union_covers_what_any_covers(items: list[Interval]) -> None:
    start, end = intervals.union(*columns(items))
    covered = {t for a, b in zip(start, end, strict=True) for t in range(a, b)}
    assert covered == {t for a, b in items for t in range(a, b)}
    assert intervals.length(*columns(items)) == len(covered)
    assert all(start[1:] > end[:-1])


@given(st.lists(st.tuples(st.integers(0, 3), interval), max_size=12))
def test_lengths_by_group(items: list[tuple[int, Interval]]) -> None:
    group = np.array([g for g, _ in items], np.int64)
    found = intervals.lengths_by(group, *columns([pair for _, pair in items]), groups=4)
    for number in range(4):
        own = {t for g, (a, b) in items if g == number for t in range(a, b)}
        assert found[number] == len(own)


@given(many)
def test_the_earliest_start_wins(items: list[Interval]) -> None:
    found = painted(intervals.earliest_wins(*columns(items)))
    assert found == chosen(items, lambda i: (items[i][0], -items[i][1], i))


@given(many)
def test_the_innermost_wins(items: list[Interval]) -> None:
    found = painted(intervals.innermost_wins(*columns(items)))
    assert found == chosen(items, lambda i: (-items[i][0], items[i][1], -i))


@given(many, many)
def test_without_leaves_what_no_other_covers(items: list[Interval], others: list[Interval]) -> None:
    start, end = intervals.without(columns(items), columns(others))
    found = painted(Pieces(start, end, np.zeros(len(start), np.int64)))
    for t in range(HORIZON):
        mine, away = (any(a <= t < b for a, b in spans) for spans in (items, others))
        assert (found[t] == 0) == (mine and not away)


@given(many)
def test_complement_and_union_partition_the_window(items: list[Interval]) -> None:
    start, end = intervals.union(*columns(items))
    free_start, free_end = intervals.complement(start, end, 5, 30)
    free = {t for a, b in zip(free_start, free_end, strict=True) for t in range(a, b)}
    assert free == set(range(5, 30)) - {t for a, b in items for t in range(a, b)}


@given(st.lists(many, max_size=3))
def test_overlay_takes_the_first_layer_that_covers(
    layers: list[list[Interval]],
) -> None:
    found = [intervals.earliest_wins(*columns(items)) for items in layers]
    pieces, source = intervals.overlay(found, 3, 33)
    assert int((pieces.end - pieces.start).sum()) == 30
    lines = [painted(layer) for layer in found]
    for start, end, label, layer in zip(
        pieces.start, pieces.end, pieces.label, source, strict=True
    ):
        for t in range(start, end):
            covering = [i for i, line in enumerate(lines) if line[t] >= 0]
            assert layer == (covering[0] if covering else -1)
            assert label == (lines[layer][t] if covering else -1)


@given(many, st.lists(st.integers(0, HORIZON), max_size=6))
def test_cutting_changes_no_label(items: list[Interval], edges: list[int]) -> None:
    pieces = intervals.earliest_wins(*columns(items))
    assert painted(intervals.cut(pieces, np.array(edges, np.int64))) == painted(pieces)


@given(many, many)
def test_touching(items: list[Interval], others: list[Interval]) -> None:
    found = intervals.touching(*columns(items), intervals.union(*columns(others)))
    points = {t for a, b in others for t in range(a, b)}
    for (start, end), hit in zip(items, found, strict=True):
        if end > start:
            assert hit == bool(points & set(range(start, end)))


@given(many, many)
def test_meeting_takes_the_pieces_that_intervals_touch(
    items: list[Interval], others: list[Interval]
) -> None:
    pieces, spans = intervals.earliest_wins(*columns(items)), intervals.union(*columns(others))
    hit = intervals.touching(pieces.start, pieces.end, spans)
    assert painted(intervals.meeting(pieces, spans)) == painted(pieces.take(np.flatnonzero(hit)))


@given(many, many)
def test_covered_counts_what_lies_in_pieces(items: list[Interval], others: list[Interval]) -> None:
    start, end = intervals.union(*columns(others))
    pieces = Pieces(start, end, np.zeros(len(start), np.int64))
    inside = {time for low, high in others for time in range(low, high)}
    found = intervals.covered(pieces, *columns(items)).tolist()
    assert found == [sum(time in inside for time in range(low, high)) for low, high in items]
