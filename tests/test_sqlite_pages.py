"""The page reader against the sqlite3 module, on databases that sqlite3 wrote."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rca_llm.readers.sqlite_pages import DamagedDatabase, Database
from rca_llm.table import UNKNOWN

INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-300, 300)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
ROWS = st.lists(
    st.tuples(
        st.none() | INTEGERS,
        st.none() | TEXTS | st.integers(0, 3).map(lambda n: "long " * 900 * n),
        st.none() | INTEGERS,
    ),
    max_size=60,
)


def written(path: Path, rows: list[tuple[object, ...]], page: int = 4096) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b TEXT, c INTEGER)")
    connection.executemany("INSERT INTO t (a, b, c) VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def read(path: Path) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    with Database(path) as database:
        for rows in database.scan("t", ["id", "a", "c"], ["b"]):
            ints = [[None if v == UNKNOWN else v for v in rows.ints[n].tolist()] for n in "ac"]
            texts = [rows.texts["b"].get(row) for row in range(len(rows))]
            decoded = [None if text is None else database.text(text) for text in texts]
            found += zip(rows.ints["id"].tolist(), ints[0], decoded, ints[1], strict=True)
        assert (database.lost_pages, database.lost_rows) == (0, 0)
    return found


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([512, 1024, 4096, 65536]))
def test_reads_what_sqlite_wrote(rows: list[tuple[object, ...]], page: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder, "t.sqlite"), rows, page)
        assert read(path) == [(number, *row) for number, row in enumerate(rows, 1)]


def test_many_pages_and_deleted_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t.sqlite", [(n, f"row {n}", -n) for n in range(20_000)], 512)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM t WHERE a % 3 = 0")
    connection.commit()
    expected = connection.execute("SELECT id, a, b, c FROM t").fetchall()
    connection.close()
    assert read(path) == expected


def test_columns_that_were_added_later_are_null(tmp_path: Path) -> None:
    path = written(tmp_path / "t.sqlite", [(1, "x", 2)])
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE t ADD COLUMN d INTEGER")
    connection.execute("INSERT INTO t VALUES (9, 1, 'y', 2, 3)")
    connection.commit()
    connection.close()
    with Database(path) as database:
        (rows,) = database.scan("t", ["d"])
        assert database.columns("t") == ("id", "a", "b", "c", "d")
        assert rows.ints["d"].tolist() == [UNKNOWN, 3]


def test_numbers_of_other_types(tmp_path: Path) -> None:
    path = written(tmp_path / "t.sqlite", [])
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE u (a)")
    values = [1.0, 2.6, -2.5e300, float("inf"), "7", b"\1\2", None, 0, 1, -1, 2**40]
    connection.executemany("INSERT INTO u VALUES (?)", [(value,) for value in values])
    connection.commit()
    connection.close()
    with Database(path) as database:
        (rows,) = database.scan("u", ["a"])
    unknown = [UNKNOWN] * 5
    assert rows.ints["a"].tolist() == [1, 3, *unknown, 0, 1, -1, 2**40]


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA encoding = '{encoding}'")
    connection.close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA encoding = '{encoding}'")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b TEXT, c INTEGER)")
    connection.execute("INSERT INTO t VALUES (1, 2, 'kernel µ', 3)")
    connection.commit()
    connection.close()
    assert read(path) == [(1, 2, "kernel µ", 3)]


def test_only_the_rows_asked_for(tmp_path: Path) -> None:
    rows = [(n, f"secret {n}", n) for n in range(50_000)]
    path = written(tmp_path / "t.sqlite", rows, 512)
    wanted = [1, 7, 4000, 30_001, 49_999, 50_000, 99_999]
    with Database(path) as database:
        parts = list(database.scan("t", ["id"], ["b"], rowids=np.array(wanted[::-1])))
        texts = [part.texts["b"].get(row) for part in parts for row in range(len(part))]
        assert len(parts[0].texts["b"].data) < 100 * 512
    assert texts == [f"secret {id - 1}".encode() for id in wanted[:-1]]


def test_equal_texts_are_asked_for_once(tmp_path: Path) -> None:
    names = ["gemm", "add, op_id = 12", "gemm", None, "add, op_id = 7", "add", "7", "op_id = 7"]
    path = written(tmp_path / "t.sqlite", [(0, name, 0) for name in names])
    asked: list[bytes] = []

    def intern(text: bytes) -> int:
        asked.append(text)
        return len(asked) - 1

    with Database(path) as database:
        (rows,) = database.scan("t", [], ["b"])
        cut = rows.texts["b"].cut_number(b", op_id = ")
        codes = rows.texts["b"].codes(intern).tolist()
    assert cut.tolist() == [False, True, False, False, True, False, False, False]
    assert sorted(asked) == [b"7", b"add", b"gemm", b"op_id = 7"]
    found = [asked[code].decode() if code >= 0 else None for code in codes]
    assert found == ["gemm", "add", "gemm", None, "add", "add", "7", "op_id = 7"]


def decoded(database: Database, table: str) -> int:
    """The rows of a table, every column decoded both as numbers and as texts."""
    columns = database.columns(table)
    count = 0
    for rows in database.scan(table, columns, columns):
        count += len(rows)
        for column in rows.texts.values():
            column.cut_number(b"row ")
            column.codes(len)
    return count


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_never_raises_and_never_invents_rows(data: st.DataObject) -> None:
    rows = [(n, f"row {n}", n) for n in range(400)]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder, "t.sqlite"), rows, 512)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 8))):
            content[data.draw(st.integers(100, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(512, len(content)))])
        try:
            with Database(path) as database:
                found = sum(decoded(database, name) for name in database.tables)
        except DamagedDatabase:
            return
        assert found <= 50_000


def test_a_file_cut_short_gives_its_first_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t.sqlite", [(n, f"row {n}", n) for n in range(20_000)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with Database(path) as database:
        numbers = np.concatenate([part.ints["a"] for part in database.scan("t", ["a"])])
        assert database.lost_pages > 0
    assert numbers.tolist() == list(range(len(numbers)))
    assert 8_000 < len(numbers) < 12_000


def test_what_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"SQLite format 3\0" + bytes(10))
    with pytest.raises(DamagedDatabase, match="byte 0"):
        Database(path)
    path.write_bytes(b"SQLite format 3\0" + b"\0\7" + bytes(4096))
    with pytest.raises(DamagedDatabase, match="byte 16"):
        Database(path)
