"""Numbers in the sentences of hints: a unit that suits, and never an exponent."""

from __future__ import annotations

import pytest

from rca_llm.hints import wording


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999_960, "1 ms"),
        (12_345_678, "12.35 ms"),
        (12_345_678_000_000, "12,346 s"),
    ],
)
def test_times(ns: int, text: str) -> None:
    assert wording.time(ns) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.0042, "0.42 %"), (0.999, "99.9 %"), (12.34, "1,234 %")]
)
def test_percent(fraction: float, text: str) -> None:
    assert wording.percent(fraction) == text


def test_a_figure_of_any_size_has_no_exponent() -> None:
    assert wording.figure(123_456.7, 3) == "123,457"
    assert wording.figure(0.1234, 3) == "0.123"
    assert wording.size(45 * 10**16) == "450,000 TB"


def test_the_nanoseconds_of_a_finding_get_units() -> None:
    text = "114 records, 106873915 ns in all, 999 ns of it here"
    assert wording.readable(text) == "114 records, 106.9 ms in all, 999 ns of it here"
