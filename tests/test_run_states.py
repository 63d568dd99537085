"""The estimate of thread states from scheduler counters keeps to its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.readers.run_counted import FINE_NS, Looks
from rca_llm.readers.run_states import SHORTEST_NS, Known, faults, states
from rca_llm.table import Strings, Table

_MS = 1_000_000


def _looks(*looks: tuple[int, int, int], own: bool = False) -> dict[tuple[int, int], Looks]:
    rows = np.array(looks, np.int64)
    time, on_cpu, delay = rows[:, 0], rows[:, 1], rows[:, 2]
    unsaid = np.full(len(time), -1)
    return {(1, 2): Looks(time, on_cpu, delay, unsaid, unsaid, np.full(len(time), own))}


def _states(*looks: tuple[int, int, int], known: Known | None = None) -> tuple[Table, Strings]:
    strings = Strings()
    return states(_looks(*looks, own=known is not None), strings, known), strings


def _rows(*looks: tuple[int, int, int], known: Known | None = None) -> list[tuple[str, int, int]]:
    table, strings = _states(*looks, known=known)
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


def _spans(*edges: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(edges[::2], np.int64) * _MS, np.array(edges[1::2], np.int64) * _MS


def test_a_span_inside_a_wait_takes_its_share_of_it() -> None:
    edges = {(1, 2): np.array([0, 40 * _MS, 80 * _MS])}
    looks = (0, 0, 0), (100 * _MS, 10 * _MS, 90 * _MS)
    assert _rows(*looks, known=Known(edges=edges)) == [
        ("runnable", 0, 36 * _MS),
        ("running", 36 * _MS, 40 * _MS),
        ("runnable", 40 * _MS, 76 * _MS),
        ("running", 76 * _MS, 80 * _MS),
        ("runnable", 80 * _MS, 98 * _MS),
        ("running", 98 * _MS, 100 * _MS),
    ]


def test_the_end_of_a_wait_for_the_lock_is_a_wait_for_a_cpu_where_it_fits_nowhere_else() -> None:
    waits = {(1, 2): _spans(2, 10)}
    known = Known(calls=waits, locks=waits)
    assert _rows((0, 0, 0), (10 * _MS, 2 * _MS, 3 * _MS), known=known) == [
        ("running", 0, 2 * _MS),
        ("runnable", 7 * _MS, 10 * _MS),
    ]
    assert _rows((0, 0, 0), (10 * _MS, 2 * _MS, 3 * _MS), known=Known(calls=waits)) == [
        ("running", 0, 2 * _MS)
    ]


def _on_cpus(*told: tuple[int, int]) -> list[tuple[str, int, int, int]]:
    """Rows with their CPU, of a thread that waits 1 ms of each 10 and runs 9; looks in ms."""
    looks = [(i * 10 * _MS, i * 9 * _MS, i * _MS) for i in range(5)]
    time, cpu = (np.array(column, np.int64) for column in zip(*told, strict=True))
    known = Known(cpus={(1, 2): (time * _MS, cpu)})
    strings = Strings()
    table = states(_looks(*looks), strings, known)
    names = [strings[code] for code in table["state"].tolist()]
    times = (table[name].tolist() for name in ("start", "end", "cpu"))
    return [
        (name, start // _MS, end // _MS, cpu)
        for name, start, end, cpu in zip(names, *times, strict=True)
    ]


def test_a_look_says_on_which_cpu_a_thread_ran_before_it() -> None:
    assert _on_cpus((0, 7), (20, 3), (40, 3)) == [
        ("runnable", 0, 1, -1), ("running", 1, 10, 3),
        ("runnable", 10, 11, -1), ("running", 11, 20, 3),
        ("runnable", 20, 21, -1), ("running", 21, 30, 3),
        ("runnable", 30, 31, -1), ("running", 31, 40, 3),
    ]  # fmt: skip


def test_what_runs_over_a_look_is_cut_where_the_cpu_is_another_and_unknown_after_the_last() -> None:
    assert _on_cpus((15, 2), (25, 5)) == [
        ("runnable", 0, 1, -1), ("running", 1, 10, 2),
        ("runnable", 10, 11, -1), ("running", 11, 15, 2), ("running", 15, 20, 5),
        ("runnable", 20, 21, -1), ("running", 21, 30, 5),
        ("runnable", 30, 31, -1), ("running", 31, 40, -1),
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=1, max_size=6).map(sorted)
)
def test_cpus_change_no_time_of_any_state(told: list[tuple[int, int]]) -> None:
    rows, plain = _on_cpus(*told), _on_cpus((-1, 0))
    for state in ("running", "runnable"):
        assert sum(b - a for name, a, b, _ in rows if name == state) == sum(
            b - a for name, a, b, _ in plain if name == state
        )
    assert {cpu for name, *_, cpu in rows if name != "running"} <= {-1}
    assert {cpu for *_, cpu in rows} <= {cpu for _, cpu in told} | {-1}


@pytest.mark.parametrize("ms", [_MS, 10 * _MS])  # near looks, and distant ones
def test_a_wait_over_a_look_from_outside_is_put_where_there_is_room(ms: int) -> None:
    waits = {(1, 2): (np.array([10 * ms]), np.array([18 * ms]))}
    (looks,) = _looks((0, 0, 0), (8 * ms, 2 * ms, 0), (18 * ms, 2 * ms, 9 * ms)).values()
    looks = looks._replace(own=np.array([True, False, True]))
    table = states({(1, 2): looks}, Strings(), Known(calls=waits, locks=waits))
    start, end = table["start"].tolist(), table["end"].tolist()
    assert (min(start), max(end)) == (0, 18 * ms)
    # Six of the nine fit before the look and two behind it: one was in the wait for the lock.
    in_lock = [b - a for a, b in zip(start, end, strict=True) if a >= 10 * ms]
    assert in_lock == [ms]


def test_faults_cost_what_was_measured_where_ticks_saw_less() -> None:
    (looks,) = _looks((0, 0, 0), (10 * _MS, 6 * _MS, 0)).values()
    looks = looks._replace(faults=np.array([0, 50]), kernel=np.array([0, 1000]))
    lengths = [
        int((table["end"] - table["start"]).sum())
        for work in (0, 40_000)
        for table in [faults({(1, 2): looks}, Strings(), Known(fault_work=work))]
    ]
    # Blocked for 4 ms; at work for the 1 ms that was counted, or for 50 times 40 µs.
    assert lengths == [5 * _MS, 6 * _MS]


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
