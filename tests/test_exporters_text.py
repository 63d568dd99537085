from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.exporters import units
from rca_llm.exporters.text import shown, visible


@given(st.text())
def test_nothing_that_controls_or_reorders_is_left(text: str) -> None:
    for character in visible(text):
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in (
            "RLO",
            "LRO",
            "RLE",
            "LRE",
            "RLI",
            "PDF",
        )


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_marks_are_shown_by_number() -> None:
    assert visible("a\u202eb\x1b[31m\n") == "a⟨U+202E⟩b⟨U+001B⟩[31m⟨U+000A⟩"
    assert visible("\ud800") == "\ufffd"


def test_joiners_that_scripts_need_stay() -> None:
    assert visible("👩\u200d🔬") == "👩\u200d🔬"


def test_a_long_name_is_cut_and_says_how_long_it_was() -> None:
    text = shown("k" * 100_000)
    assert len(text) < 500
    assert text.endswith("… (100,000 characters)")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "–"),
        (0, "0 ns"),
        (999, "999 ns"),
        (999_600, "1.00 ms"),
        (1_234_567, "1.23 ms"),
        (12_345_678, "12.3 ms"),
        (123_456_789, "123 ms"),
        (61_000_000_000, "61.0 s"),
        (-2_500, "-2.50 µs"),
    ],
)
def test_durations(ns: int | None, text: str) -> None:
    assert units.duration(ns) == text


def test_unknown_is_never_zero() -> None:
    for show in (units.duration, units.milliseconds, units.size, units.rate, units.percent):
        assert show(None) == units.UNKNOWN
        assert show(0) != units.UNKNOWN


def test_a_small_share_does_not_look_like_none() -> None:
    assert units.percent(0.0001) == "< 0.1 %"
    assert units.percent(0) == "0.0 %"


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    assert units.unbroken("85.0 % of 6 requests took 5.64 ms or less") == (
        "85.0\u00a0% of 6 requests took 5.64\u00a0ms or less"
    )
