"""Parquet columns: what is written comes back exactly, nulls and 64-bit integers included."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rca_llm import columns

UNKNOWN = np.iinfo(np.int64).min
INT64 = st.integers(UNKNOWN + 1, np.iinfo(np.int64).max)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.none() | INT64, st.floats(allow_nan=False), st.none() | TEXTS)))
def test_rows_come_back_as_they_were_written(
    rows: list[tuple[int | None, float, str | None]],
) -> None:
    vocabulary = sorted({text for _, _, text in rows if text is not None})
    values = np.array([UNKNOWN if row[0] is None else row[0] for row in rows], np.int64)
    fractions = np.array([row[1] for row in rows], np.float64)
    codes = np.array([-1 if r[2] is None else vocabulary.index(r[2]) for r in rows], np.int32)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        written = {
            "value": columns.numbers(values, values == UNKNOWN),
            "fraction": columns.numbers(fractions),
            "text": columns.texts(vocabulary, codes),
        }
        columns.write(path, written, rising=["value"])
        found = columns.read(path)
    np.testing.assert_array_equal(columns.to_numbers(found["value"], UNKNOWN), values)
    np.testing.assert_array_equal(columns.to_numbers(found["fraction"], np.nan), fractions)
    texts, indices = columns.to_texts(found["text"])
    assert [texts[i] if i >= 0 else None for i in indices] == [row[2] for row in rows]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
def test_number_types_survive(tmp_path: Path, dtype: type[np.generic]) -> None:
    for length in (0, 3):
        columns.write(tmp_path / "t", {"x": columns.numbers(np.zeros(length, dtype))})
        assert columns.to_numbers(columns.read(tmp_path / "t")["x"], 0).dtype == dtype


def test_unknown_values_are_null_in_the_file(tmp_path: Path) -> None:
    values = np.array([1, UNKNOWN, 3])
    columns.write(tmp_path / "t", {"x": columns.numbers(values, values == UNKNOWN)})
    assert columns.read(tmp_path / "t")["x"].to_pylist() == [1, None, 3]


def test_rising_columns_are_stored_smaller(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(1).integers(500, 40_000, 50_000))
    columns.write(tmp_path / "plain", {"t": columns.numbers(times)})
    columns.write(tmp_path / "rising", {"t": columns.numbers(times)}, rising=["t"])
    assert (tmp_path / "rising").stat().st_size < (tmp_path / "plain").stat().st_size / 2


def test_a_field_of_records_is_a_column_too(tmp_path: Path) -> None:
    """Its values lie apart in memory."""
    records = np.zeros(5, [("grid", "<i4", 3), ("start", "<i8")])
    records["grid"][:, 1] = range(5)
    columns.write(tmp_path / "t", {"x": columns.numbers(records["grid"][:, 1])})
    assert columns.read(tmp_path / "t")["x"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_full_disk_is_an_error_and_no_panic(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="No space left"):
        columns.write(Path("/dev/full"), {"a": columns.numbers(np.arange(100_000))})
    assert capfd.readouterr().err == ""
