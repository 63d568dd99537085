"""Waiting for the engine: requests that come in a step wait for its end, however long it lasts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.whatif.arrivals import Admission, Turns
from tests.scenes import MS

STEPS = Turns(np.arange(10) * 20 * MS, np.arange(10) * 20 * MS + 19 * MS)
"""Ten steps of 19 ms, one every 20."""


def waited(one: Admission, ready: float, factor: float) -> float:
    """How long a request waits when all steps last so many times as long."""
    columns = np.array([one.at]), np.array([one.ready]), np.array([ready])
    clock = partial(np.multiply, factor)
    return float(STEPS.waited(*columns, clock, clock)[0])


@given(st.integers(0, 199 * MS), st.integers(0, 80 * MS), st.integers(0, 50 * MS))
def test_on_the_same_clock_a_request_waits_as_it_did(ready: int, wait: int, text: int) -> None:
    one = Admission(ready + wait, ready, text)
    assert waited(one, ready, 1.0) == pytest.approx(wait, abs=1e-3)


def test_a_request_that_meets_a_step_waits_for_the_rest_of_the_new_one() -> None:
    one = Admission(180 * MS, 164 * MS, 0)
    assert waited(one, 164 * MS, 0.5) == pytest.approx(6 * MS)


def test_shorter_steps_follow_each_other_while_it_comes() -> None:
    one = Admission(180 * MS, 173 * MS, 0)
    assert waited(one, 173 * MS, 0.5) == pytest.approx(7 * MS)
    assert waited(one, 173 * MS, 0.25) == pytest.approx(2 * MS)


def test_requests_wait_half_a_step_in_the_mean_whatever_it_lasts() -> None:
    for factor in (0.25, 0.5, 1.0):
        found = [
            waited(Admission(180 * MS, ready, 0), ready, factor)
            for ready in range(160 * MS + MS // 2, 179 * MS, MS)
        ]
        assert np.mean(found) == pytest.approx(factor * 10 * MS, rel=0.15)


def test_a_request_passed_over_waits_for_the_same_steps() -> None:
    one = Admission(180 * MS, 124 * MS, 0)
    assert waited(one, 124 * MS, 0.5) == pytest.approx(6 * MS + 20 * MS)


def test_a_request_that_finds_the_engine_idle_waits_as_it_did() -> None:
    one = Admission(180 * MS, 179 * MS + MS // 2, 0)
    assert waited(one, one.ready, 0.5) == MS // 2


def test_an_engine_that_is_late_is_waited_for_all_the_longer() -> None:
    one = Admission(180 * MS, 164 * MS, 0)
    assert waited(one, 164 * MS, 2.0) == pytest.approx((360 - 164) * MS)


def test_a_request_tokenised_sooner_joins_the_step_that_then_begins() -> None:
    one = Admission(180 * MS, 164 * MS, 50 * MS)
    assert waited(one, 117 * MS, 1.0) == pytest.approx(3 * MS)
