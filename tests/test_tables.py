"""Columns of a table, and what finds rows in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm import tsv
from rca_llm.table import UNKNOWN, first_rows, integers, optional

KEYS = st.lists(st.integers(-3, 5), max_size=12)


@given(KEYS, KEYS)
def test_the_first_row_with_each_key(keys: list[int], wanted: list[int]) -> None:
    found = first_rows(np.array(keys, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [keys.index(key) if key in keys else -1 for key in wanted]


def test_what_is_not_known_is_none_outside_and_a_mark_inside() -> None:
    values = [7, None, -1, 0]
    column = integers(values)
    assert column.tolist() == [7, UNKNOWN, -1, 0]
    assert [optional(value) for value in column.tolist()] == values


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("rca_llm", "hardware.tsv"),
        ("rca_llm.attribute", "kernels.tsv"),
        ("rca_llm.attribute", "calls.tsv"),
        ("rca_llm.hints", "nccl_reports.tsv"),
    ],
)
def test_every_row_of_a_table_of_the_package_is_as_long_as_its_head(
    package: str, name: str
) -> None:
    assert len(tsv.records(package, name)) == len(tsv.rows(package, name)) > 0
