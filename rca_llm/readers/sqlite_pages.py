"""Whole columns of a SQLite table, read straight from the pages of the file.

The `sqlite3` module hands over one row at a time, about a microsecond each, and refuses a file that
was cut short. Here the records of many pages are decoded at once, several times as fast, and of a
damaged file the pages that are left are read. The sections that comments name are those of
https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rca_llm.readers.sqlite_cells import (
    PADDING,
    Bytes,
    Cells,
    Texts,
    fields,
    pairs,
    varints,
)
from rca_llm.table import Ints

MAGIC = b"SQLite format 3\0"

_CHUNK = 1 << 21
"""Bytes of pages that are decoded at a time; more fall out of the processor's caches."""

_DEPTH = 32
"""More levels than any table has; a file with more points to itself."""

_INTERIOR, _LEAF = 5, 13
_ENCODINGS = {1: "utf-8", 2: "utf-16-le", 3: "utf-16-be"}


class DamagedDatabase(Exception):
    """A file whose header or schema cannot be read; the message names the byte."""


@dataclass
class Rows:
    """Some rows of a table, column by column."""

    ints: dict[str, Ints]
    texts: dict[str, Texts]
    length: int

    def __len__(self) -> int:
        return self.length


class _Layout(NamedTuple):
    """Where a table begins, its columns as rows store them, and the name of the row id if any."""

    root: int
    columns: tuple[str, ...]
    rowid: str | None


class Database:
    """A SQLite file, open for reading; it is never written to.

    `size` is that of the file in bytes; `lost_pages` and `lost_rows` count what was asked for so
    far and is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        head = self._file.read(100)
        if len(head) < 100 or not head.startswith(MAGIC):
            raise DamagedDatabase("byte 0: expected the header of a SQLite database")
        size = int.from_bytes(head[16:18], "big")
        self._page = 1 << 16 if size == 1 else size
        if self._page < 512 or self._page & (self._page - 1):
            raise DamagedDatabase(f"byte 16: expected a page size, found {size}")
        self._usable = self._page - head[20]
        self.size = os.fstat(self._file.fileno()).st_size
        self._pages = self.size // self._page
        self.encoding = _ENCODINGS.get(int.from_bytes(head[56:60], "big"), "utf-8")
        self.lost_pages = self.lost_rows = 0
        self._layouts: dict[str, _Layout] = {}
        self._tables = self._schema()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return list(self._tables)

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of a table's columns."""
        return self._layout(table).columns

    def rowid(self, table: str) -> str | None:
        """The column that is another name of the row id, None where there is none."""
        return self._layout(table).rowid

    def scan(
        self,
        table: str,
        ints: Sequence[str],
        texts: Sequence[str] = (),
        rowids: Ints | None = None,
    ) -> Iterator[Rows]:
        """The rows of a table with these of its columns, some pages at a time.

        With `rowids`, only the rows of these ids are decoded at all.
        """
        layout = self._layout(table)
        rowids = None if rowids is None else np.sort(rowids)
        leaves = self._leaves(layout.root, rowids)
        step = max(1, _CHUNK // self._page)
        for begin in range(0, len(leaves), step):
            cells = self._cells(leaves[begin : begin + step], rowids)
            rows = self._rows(layout, cells, ints, texts)
            if len(rows):
                yield rows

    def text(self, value: bytes) -> str:
        """A text as the database encodes it; bytes that are none become U+FFFD."""
        return value.decode(self.encoding, "replace")

    def _schema(self) -> dict[str, tuple[int, str]]:
        """The root page and the definition of every table, from the schema table (2.6)."""
        layout = _Layout(1, ("type", "name", "tbl_name", "rootpage", "sql"), None)
        found: dict[str, tuple[int, str]] = {}
        for leaf in self._leaves(1):
            cells = self._cells(np.array([leaf]), None)
            rows = self._rows(layout, cells, ["rootpage"], ["type", "name", "sql"])
            for row, root in enumerate(rows.ints["rootpage"].tolist()):
                kind, name, sql = (
                    self.text(rows.texts[column].get(row) or b"")
                    for column in ("type", "name", "sql")
                )
                if kind == "table" and root > 0:
                    found[name] = root, sql
        return found

    def _layout(self, table: str) -> _Layout:
        if table not in self._layouts:
            root, sql = self._tables[table]
            self._layouts[table] = _Layout(root, *_columns(table, sql))
        return self._layouts[table]

    def _leaves(self, root: int, rowids: Ints | None = None) -> Ints:
        """The leaf pages below a page, in the order of their row ids (1.6).

        With `rowids`, which ascend, those that hold none of them are left out as a rule.
        """
        level = np.array([root])
        for _ in range(_DEPTH):
            if self._kind(level) != _INTERIOR:
                return level
            level = np.concatenate([self._children(number, rowids) for number in level.tolist()])
            level = level[: self._pages]
        return level[:0]

    def _kind(self, level: Ints) -> int:
        """What the pages of one level are, by the first that is there: leaves are equally deep."""
        for number in level.tolist():
            if page := self._read_page(number):
                return page[_head(number)]
        return _LEAF

    def _children(self, number: int, rowids: Ints | None) -> Ints:
        """The pages below one, of which each but the last tells the highest row id in it."""
        page, head = self._read_page(number), _head(number)
        if not page or page[head] != _INTERIOR:
            self.lost_pages += 1
            return np.empty(0, np.int64)
        count = int.from_bytes(page[head + 3 : head + 5], "big")
        count = min(count, (self._page - head - 12) // 2)
        data = np.frombuffer(page + bytes(PADDING), np.uint8)
        cells = np.frombuffer(page, ">u2", count, head + 12).astype(np.int64)
        cells = cells[cells <= self._page - 4]
        places = np.append(cells, head + 8)
        children = pairs(data, places) << 16 | pairs(data, places + 2)
        if rowids is None:
            return children
        highest = np.searchsorted(rowids, varints(data, cells + 4)[0], "right")
        wanted = np.diff(highest, prepend=0, append=len(rowids)) > 0
        return children[wanted]

    def _read_page(self, number: int) -> bytes:
        """A page, empty where the file has none of this number."""
        if not 1 <= number <= self._pages:
            return b""
        return os.pread(self._file.fileno(), self._page, (number - 1) * self._page)

    def _load(self, numbers: Ints) -> Bytes:
        """Some pages one behind another; neighbours are read at once."""
        data = np.zeros(len(numbers) * self._page + PADDING, np.uint8)
        cuts = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        first = 0
        for last in cuts:
            view = data[first * self._page : last * self._page].data
            if len(view):
                os.preadv(self._file.fileno(), [view], (int(numbers[first]) - 1) * self._page)
            first = last
        return data

    def _cells(self, numbers: Ints, rowids: Ints | None) -> Cells:
        """The records of some leaf pages (1.6)."""
        there = (numbers >= 1) & (numbers <= self._pages)
        self.lost_pages += int(np.count_nonzero(~there))
        numbers = numbers[there]
        data = self._load(numbers)
        base = np.arange(len(numbers)) * self._page
        head = base + np.where(numbers == 1, _head(1), 0)
        count = pairs(data, head + 3)
        sound = (data[head] == _LEAF) & (head - base + 8 + 2 * count <= self._usable)
        self.lost_pages += int(np.count_nonzero(~sound))
        base, head, count = base[sound], head[sound], count[sound]
        slot = np.repeat(head + 8 - 2 * (np.cumsum(count) - count), count)
        start = np.repeat(base, count)
        cell = start + pairs(data, slot + 2 * np.arange(len(slot)))
        return self._records(data, cell, start + self._usable, rowids)

    def _records(self, data: Bytes, cell: Ints, limit: Ints, rowids: Ints | None) -> Cells:
        """The records of cells that begin at `cell`, on pages that end at `limit`."""
        size, taken = varints(data, np.minimum(cell, limit))
        rowid, more = varints(data, np.minimum(cell + taken, limit))
        at = cell + taken + more
        end = at + self._local(size)
        sound = (size > 0) & (end + np.where(end - at < size, 4, 0) <= limit)
        self.lost_rows += int(np.count_nonzero(~sound))
        if rowids is not None:
            sound &= np.isin(rowid, rowids)
        return self._completed(Cells(data, rowid, at, end).take(sound), size[sound])

    def _local(self, size: Ints) -> Ints:
        """How many bytes of a record of this size lie on the leaf page itself (1.6)."""
        most = self._usable - 35
        if not np.any(size > most):
            return size
        least = (self._usable - 12) * 32 // 255 - 23
        kept = least + (size - least) % (self._usable - 4)
        return np.where(size <= most, size, np.where(kept <= most, kept, least))

    def _completed(self, cells: Cells, size: Ints) -> Cells:
        """The same records, those that go on on overflow pages copied whole behind the others."""
        rows = np.flatnonzero(cells.end - cells.at < size).tolist()
        if not rows:
            return cells
        wholes = [self._whole(cells, row, int(size[row])) for row in rows]
        begins = len(cells.data) + np.cumsum([0, *map(len, wholes)])
        joined = np.frombuffer(b"".join([*wholes, bytes(PADDING)]), np.uint8)
        cells.data = np.concatenate([cells.data, joined])
        cells.at[rows], cells.end[rows] = begins[:-1], begins[1:]
        broken = cells.end - cells.at < size
        self.lost_rows += int(np.count_nonzero(broken))
        return cells.take(~broken)

    def _whole(self, cells: Cells, row: int, size: int) -> bytes:
        """A record with what lies on its overflow pages (1.6); shorter where one is missing."""
        at, end = int(cells.at[row]), int(cells.end[row])
        parts, missing = [cells.data[at:end].tobytes()], size - (end - at)
        following = cells.data[end : end + 4].tobytes()
        while missing > 0 and (page := self._read_page(int.from_bytes(following, "big"))):
            following, part = page[:4], page[4 : self._usable][:missing]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _rows(
        self, layout: _Layout, cells: Cells, ints: Sequence[str], texts: Sequence[str]
    ) -> Rows:
        numbers = {name: layout.columns.index(name) for name in (*ints, *texts)}
        found, sound = fields(cells, set(numbers.values()))
        self.lost_rows += int(np.count_nonzero(~sound))
        rows = Rows({}, {}, int(np.count_nonzero(sound)))
        for name in ints:
            values = cells.rowid if name == layout.rowid else found[numbers[name]].ints()
            rows.ints[name] = values[sound]
        for name in texts:
            rows.texts[name] = found[numbers[name]].texts().take(sound)
        return rows


def _head(number: int) -> int:
    """Where the header of a page begins: on the first page, behind that of the file."""
    return 100 if number == 1 else 0


def _columns(table: str, sql: str) -> tuple[tuple[str, ...], str | None]:
    """The columns that a definition gives, and the one that is the row id (2.3), if one is."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(sql)
        quoted = table.replace('"', '""')
        found = connection.execute(f'PRAGMA table_info("{quoted}")').fetchall()
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return (), None
    finally:
        connection.close()
    keys = [(name, kind) for _, name, kind, _, _, key in found if key]
    alias = keys[0][0] if len(keys) == 1 and keys[0][1].upper() == "INTEGER" else None
    return tuple(row[1] for row in found), alias
