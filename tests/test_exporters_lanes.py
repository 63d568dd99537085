from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.exporters.lanes import FLOOR, Labels, Lane, levels_of
from rca_llm.intervals import Pieces


def pieces_from(lengths: list[tuple[int, int, int]]) -> Pieces:
    """Disjoint pieces from (gap before, length, label)."""
    at, start, end, label = 0, [], [], []
    for gap, length, code in lengths:
        start.append(at + gap)
        at += gap + length
        end.append(at)
        label.append(code)
    return Pieces(np.array(start), np.array(end), np.array(label))


PIECES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 5_000), st.integers(0, 4)),
    min_size=1,
    max_size=900,
).map(pieces_from)


@given(PIECES, st.integers(50, 400))
def test_every_level_has_the_same_busy_time_and_no_overlap(pieces: Pieces, cap: int) -> None:
    low, high = int(pieces.start[0]), int(pieces.end[-1])
    busy = int((pieces.end - pieces.start).sum())
    for level in levels_of(pieces, low, high, cap):
        assert int(level.busy.sum()) == busy
        assert int(level.count.sum()) == len(pieces)
        assert np.all(level.start[1:] >= level.end[:-1])
        assert np.all(level.end - level.start >= level.busy)
        assert int(level.start[0]) == low
        assert int(level.end[-1]) == high


@given(PIECES, st.integers(50, 400))
def test_a_level_holds_about_as_many_pieces_as_it_may(pieces: Pieces, cap: int) -> None:
    low, high = int(pieces.start[0]), int(pieces.end[-1])
    levels = levels_of(pieces, low, high, cap)
    # Long pieces and grid cells are at most half the cap each; a long one can split a cell once.
    assert len(levels[0]) <= 2 * cap
    assert all(len(b) < len(a) for a, b in itertools.pairwise(levels))


def test_what_is_longer_than_the_resolution_is_never_touched() -> None:
    pieces = pieces_from([(0, 1, 0)] * 3_000 + [(0, 1_000_000, 1)] + [(0, 1, 2)] * 3_000)
    for level in levels_of(pieces, 0, int(pieces.end[-1]), FLOOR):
        long = np.flatnonzero(level.label == 1)
        assert len(long) == 1
        assert (int(level.start[long[0]]), int(level.end[long[0]])) == (3_000, 1_003_000)
        assert int(level.count[long[0]]) == 1


def test_a_joined_piece_carries_the_label_with_most_time() -> None:
    pieces = pieces_from([(0, 10, 3), (0, 40, 1), (0, 10, 3), (0, 15, 3)] * 500)
    level = levels_of(pieces, 0, int(pieces.end[-1]), 60)[-1]
    assert set(level.label.tolist()) == {1}


def test_packed_columns_lead_back_to_the_pieces() -> None:
    labels = Labels()
    code = labels.code("kernel", "compute")
    pieces = Pieces(np.array([100, 150]), np.array([120, 190]), np.array([code, code]))
    packed = Lane("GPU 0", "kernels", pieces).packed(90, 200, 100)
    assert packed["levels"] == [{"gap": [10, 30], "length": [20, 40], "label": [0, 0]}]
    assert labels.rows() == [("kernel", "compute")]
