"""Access to the tables of an Nsight Systems export, whatever its container and schema version.

Tables exist only where they have rows, and columns come, go and change their names from version to
version: an `Export` is asked for tables and columns by their newest names and answers with what is
there; the rest is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rca_llm.readers.sqlite_cells import Interning
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Mask, Strings, known

OLD_TABLES = {"META_DATA_EXPORT": "EXPORT_META_DATA"}
"""Names that tables had before."""

OLD_COLUMNS = {
    "name": ("key",),
    "timestamp": ("rawTimestamp", "start"),
    "overheadType": ("overheadKind",),
}
"""Other names of columns, in the order in which they are tried."""


class TextColumn(Protocol):
    """The texts of some rows."""

    def get(self, row: int, /) -> bytes | None:
        """The bytes of one text."""
        ...

    def take(self, rows: Array, /) -> TextColumn:
        """The texts of some of the rows."""
        ...

    def cut_number(self, before: bytes, /) -> Mask:
        """Cut `before` and the number behind it off the ends; where there was one."""
        ...

    def codes(self, intern: Callable[[bytes], int], /) -> Array:
        """A code for every text; `intern` gives it and is asked once for equal texts."""
        ...


@dataclass
class Chunk:
    """Some rows of a table."""

    length: int
    ints: dict[str, Ints]
    texts: dict[str, TextColumn]

    def __getitem__(self, column: str) -> Ints:
        """A column of integers, unknown throughout where the table has none of this name."""
        found = self.ints.get(column)
        return np.full(self.length, UNKNOWN) if found is None else found


class Tables(Protocol):
    """The tables of one container."""

    def names(self) -> Collection[str]:
        """The names of the tables."""
        ...

    def columns(self, table: str, /) -> Collection[str]:
        """The names of a table's columns."""
        ...

    def chunks(self, table: str, ints: Sequence[str], texts: Sequence[str], /) -> Iterator[Chunk]:
        """The rows of a table with some of its columns; NULL is `UNKNOWN`."""
        ...

    def strings(self, table: str, id: str, value: str, ids: Ints, /) -> dict[int, bytes]:
        """The texts with these ids, and no others: the string table holds secrets too."""
        ...


@dataclass
class Export:
    """An export, read by the newest names of its tables and columns.

    `base` is added to times: the UTC time of the session's start where it is known.
    """

    tables: Tables
    strings: Strings = field(default_factory=Strings)
    base: int = 0
    bad_texts: int = 0
    intern: Interning = field(init=False)
    """Gives the code of a text as the export stores it."""
    _names: dict[str, str] = field(init=False)
    _texts: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def __post_init__(self) -> None:
        self.intern = Interning(lambda text: self.strings.code(self.decoded(text)))
        self._names = {name.lower(): name for name in self.tables.names()}

    def __contains__(self, table: str) -> bool:
        """Whether there is such a table."""
        return self._table(table) is not None

    @property
    def names(self) -> list[str]:
        """The names of all tables."""
        return list(self._names.values())

    def has(self, table: str, column: str) -> bool:
        """Whether a table has a column."""
        found = self._table(table)
        return found is not None and self._column(found, column) is not None

    def chunks(self, table: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Iterator[Chunk]:
        """The rows of a table, some at a time; none where it does not exist."""
        found = self._table(table)
        if found is None:
            return
        names = {name: self._column(found, name) for name in (*ints, *texts)}
        real = [[own for name in wanted if (own := names[name])] for wanted in (ints, texts)]
        if not real[0] and not real[1]:
            return
        for chunk in self.tables.chunks(found, *real):
            yield Chunk(
                chunk.length,
                {name: chunk.ints[own] for name in ints if (own := names[name])},
                {name: chunk.texts[own] for name in texts if (own := names[name])},
            )

    def columns(self, table: str, *names: str) -> dict[str, Ints]:
        """Whole columns of integers; empty where the table does not exist."""
        chunks = list(self.chunks(table, names))
        empty = np.empty(0, np.int64)
        return {name: np.concatenate([empty, *(c[name] for c in chunks)]) for name in names}

    def records(
        self, table: str, ints: Sequence[str], texts: Sequence[str] = ()
    ) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
        """The rows of a small table: the numbers and the texts that each has."""
        for chunk in self.chunks(table, ints, texts):
            for row in range(chunk.length):
                numbers = {name: int(chunk[name][row]) for name in ints}
                values = {name: column.get(row) for name, column in chunk.texts.items()}
                yield (
                    {name: value for name, value in numbers.items() if value != UNKNOWN},
                    {name: self.decoded(text) for name, text in values.items() if text is not None},
                )

    def texts(self, ids: Ints, clean: Callable[[str], str | None] = str) -> Array:
        """The codes of the texts with these ids, each as `clean` makes it."""
        distinct, inverse = _distinct(ids)
        found = self._strings(distinct[known(distinct)])
        codes = [
            self.strings.code(clean(self.decoded(found[id]))) if id in found else NO_TEXT
            for id in distinct.tolist()
        ]
        return np.array(codes, np.int32)[inverse]

    def decoded(self, text: bytes) -> str:
        """A text; undecodable bytes become U+FFFD and are counted."""
        try:
            return text.decode()
        except UnicodeDecodeError:
            self.bad_texts += 1
            return text.decode(errors="replace")

    def time(self, values: Ints) -> Ints:
        """Times of the session on the timeline's clock."""
        return np.where(known(values), values + self.base, values)

    def _strings(self, ids: Ints) -> dict[int, bytes]:
        """The texts with these ids, those asked for before among them."""
        new = np.array([id for id in ids.tolist() if id not in self._texts], np.int64)
        table = self._table("StringIds")
        if table is not None and len(new):
            id, value = self._column(table, "id"), self._column(table, "value")
            if id and value:
                self._texts |= self.tables.strings(table, id, value, new)
        return self._texts

    def _table(self, name: str) -> str | None:
        """What a table is called here: by its name, an older one, or with the highest `_V<n>`."""
        for candidate in (name, OLD_TABLES.get(name, name)):
            if candidate.lower() in self._names:
                return self._names[candidate.lower()]
        versions = {
            int(match[1]): table
            for table in self._names.values()
            if (match := re.fullmatch(rf"{re.escape(name)}_V(\d+)", table, re.IGNORECASE))
        }
        return versions[max(versions)] if versions else None

    def _column(self, table: str, name: str) -> str | None:
        own = {_plain(column): column for column in self.tables.columns(table)}
        for candidate in (name, *OLD_COLUMNS.get(name, ())):
            if _plain(candidate) in own:
                return own[_plain(candidate)]
        return None


def _distinct(ids: Ints) -> tuple[Ints, Ints]:
    """The different ids and the place of each among them, without sorting where ids are small."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if low < 0 or high > max(len(ids), 1 << 16):
        return np.unique(ids, return_inverse=True)
    place = np.zeros(high + 1, np.int64)
    place[ids] = 1
    distinct = np.flatnonzero(place)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[ids]


def _plain(name: str) -> str:
    """A column's name without what versions differ in: case and underscores."""
    return name.lower().replace("_", "")


def small(values: Ints) -> Array:
    """Numbers for a small column: -1 where unknown, at most 32 bits."""
    limits = np.iinfo(np.int32)
    capped = np.minimum(np.maximum(values, limits.min), limits.max)
    return np.where(known(values), capped, -1).astype(np.int32)


def nonzero(values: Ints) -> Ints:
    """Ids that begin at 1; old exports write 0 for NULL."""
    return np.where(values == 0, UNKNOWN, values)


def process(ids: Ints) -> Ints:
    """The process part of global ids: machine, virtual machine and pid, 40 bits."""
    return np.where(known(ids) & (ids != 0), (ids >> 24) & 0xFFFFFFFFFF, UNKNOWN)


def thread(ids: Ints) -> Ints:
    """The thread id in global thread ids."""
    return np.where(known(ids) & (ids != 0), ids & 0xFFFFFF, UNKNOWN)
