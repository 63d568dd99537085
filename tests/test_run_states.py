"""The estimate of thread states from scheduler counters keeps to its bounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.readers.run_states import FINE_NS, SHORTEST_NS, Looks, states
from rca_llm.table import Strings, Table

_MS = 1_000_000


def _states(*looks: tuple[int, int, int]) -> tuple[Table, Strings]:
    strings = Strings()
    time, on_cpu, delay = np.array(looks, np.int64).T
    unsaid, outside = np.full(len(time), -1), np.zeros(len(time), bool)
    return states({(1, 2): Looks(time, on_cpu, delay, unsaid, unsaid, outside)}, strings), strings


def _rows(*looks: tuple[int, int, int]) -> list[tuple[str, int, int]]:
    table, strings = _states(*looks)
    texts = [strings[code] for code in table["state"].tolist()]
    return list(zip(texts, table["start"].tolist(), table["end"].tolist(), strict=True))


def test_a_wait_comes_before_a_run() -> None:
    assert _rows((0, 0, 0), (10 * _MS, 6 * _MS, 3 * _MS)) == [
        ("runnable", 0, 3 * _MS),
        ("running", 3 * _MS, 9 * _MS),
    ]


def test_looks_far_apart_say_only_what_fills_the_time() -> None:
    assert _rows((0, 0, 0), (200 * _MS, 100 * _MS, 20 * _MS)) == []
    assert _rows((0, 0, 0), (200 * _MS, 190 * _MS, 0)) == [("running", 0, 190 * _MS)]


def test_counters_that_step_back_give_nothing() -> None:
    assert _rows((0, 50, 50), (10 * _MS, 0, 0)) == []


def test_no_looks_give_an_empty_table() -> None:
    assert len(states({}, Strings())) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2 * FINE_NS), st.integers(0, 2 * FINE_NS), st.integers(0, 2 * FINE_NS)
        ),
        min_size=2,
        max_size=20,
    )
)
def test_states_never_overlap_and_never_exceed_what_was_counted(
    steps: list[tuple[int, int, int]],
) -> None:
    looks = np.cumsum(np.array(steps, np.int64), axis=0)
    table, strings = _states(*[(int(a), int(b), int(c)) for a, b, c in looks])
    start, end = table["start"], table["end"]
    assert (end - start >= SHORTEST_NS).all()
    assert (start[1:] >= end[:-1]).all()
    for name, column in (("running", 1), ("runnable", 2)):
        own = table["state"] == strings.code(name)
        assert (end - start)[own].sum() <= looks[-1, column] - looks[0, column]
