"""Ordered patterns against the plain way: try each in turn."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm.attribute.matcher import OrderedPatterns, required_letters

PATTERNS = [
    "all_?reduce|^ab$",
    r"(abc|bcd)+e?fgh",
    r"ab[cd]e|cab*c",
    r"\bcab(?!c)",
    "a{2}b|(b|c)",
    "abc",
]
texts = st.text("abcdefgh_ ", max_size=12)


@given(texts, st.permutations(PATTERNS))
def test_first_is_the_first_that_matches(text: str, patterns: list[str]) -> None:
    plain = next((i for i, pattern in enumerate(patterns) if re.search(pattern, text)), None)
    assert OrderedPatterns(patterns, []).first(text) == plain


REQUIRED: list[tuple[str, list[set[str]]]] = [
    ("abcd", [{"abc", "bcd"}]),
    ("all_?reduce", [{"all", "red", "edu", "duc", "uce"}]),
    ("abc|x(abc|def)y", [{"abc"}, set()]),
    (r"abc\ddef?", [{"abc"}]),
    ("ab*cde", [{"cde"}]),
    ("(?<!fb)gem", [{"gem"}]),
]


@pytest.mark.parametrize(("pattern", "expected"), REQUIRED)
def test_required_letters_are_in_every_match(pattern: str, expected: list[set[str]]) -> None:
    assert required_letters(pattern) == expected
