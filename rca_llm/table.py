"""Columnar tables: equally long NumPy columns with a fixed schema, and the text they point to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

UNKNOWN = np.iinfo(np.int64).min
"""An unknown time, id or count in a 64-bit column."""

NEVER = int(np.iinfo(np.int64).max)
"""The end of what has not ended: later than every time."""

NO_TEXT = -1
"""An unknown text, and an unknown value of a small integer column."""

Kind = Literal["time", "int", "small", "text", "float"]
"""What a column holds: `time` int64 ns, `int` int64, `small` int32, `text` an int32 index into
`Strings`, `float` float64. Unknown is `UNKNOWN`, `UNKNOWN`, -1, -1 and NaN."""

_DTYPES: dict[Kind, tuple[Any, Any]] = {
    "time": (np.int64, UNKNOWN),
    "int": (np.int64, UNKNOWN),
    "small": (np.int32, -1),
    "text": (np.int32, NO_TEXT),
    "float": (np.float64, np.nan),
}

Schema = Mapping[str, Kind]


class RowsBy:
    """The rows that hold a value of a column, for many values: ordered once, two searches each.

    `rows` are those to look in, all where None.
    """

    def __init__(self, column: Array, rows: Ints | None = None) -> None:
        mine = column if rows is None else column[rows]
        order = np.argsort(mine, kind="stable")
        self._rows: Ints = order if rows is None else rows[order]
        self._values = mine[order]

    def __getitem__(self, value: int) -> Ints:
        """The rows that hold a value, ascending where the rows to look in are."""
        first = np.searchsorted(self._values, value, "left")
        return self._rows[first : np.searchsorted(self._values, value, "right")]


class Strings:
    """The distinct texts of a timeline; columns hold their indices."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._index: dict[str, int] = {}
        for text in texts:
            self.code(text)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, code: int) -> str:
        """The text of a code; an unknown one is empty."""
        return self.texts[code] if code >= 0 else ""

    def code(self, text: str | None) -> int:
        """The code of a text, new if need be; `NO_TEXT` for None."""
        if text is None:
            return NO_TEXT
        found = self._index.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
        return found

    def put(self, code: int, text: str) -> None:
        """Give a text the next code, whatever was given the same text before."""
        if code != len(self.texts):
            raise ValueError(code)
        self.texts.append(text)
        self._index.setdefault(text, code)

    def find(self, text: str) -> int:
        """The code of a text, `NO_TEXT` where it does not occur."""
        return self._index.get(text, NO_TEXT)

    def codes(self, texts: Iterable[str | None]) -> NDArray[np.int32]:
        """The codes of many texts."""
        return np.fromiter((self.code(text) for text in texts), np.int32)

    def lookup(self, values: Mapping[str, int] | Sequence[int], default: int = 0) -> Ints:
        """A value for every code, so that `lookup(...)[column]` translates a column.

        One more entry stands at the end for `NO_TEXT`. `values` maps texts, or lists a value for
        every text in order.
        """
        if isinstance(values, Mapping):
            found = [values.get(text, default) for text in self.texts]
        else:
            found = list(values)
        return np.array([*found, default], np.int64)


class Table:
    """Rows of one kind of record, column by column.

    A column that is not given is unknown in every row and takes no memory until it is asked for.
    """

    def __init__(self, schema: Schema, columns: Mapping[str, Any] | None = None) -> None:
        self.schema = schema
        self._columns: dict[str, Array] = {}
        lengths: set[int] = set()
        for name, values in (columns or {}).items():
            if name not in schema:
                raise KeyError(name)
            self._columns[name] = np.asarray(values, _DTYPES[schema[name]][0])
            lengths.add(len(self._columns[name]))
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, column: str) -> bool:
        """Whether the column is known in any row."""
        return column in self._columns

    def __getitem__(self, column: str) -> Array:
        """A column; unknown throughout where it was not given."""
        found = self._columns.get(column)
        if found is None:
            dtype, unknown = _DTYPES[self.schema[column]]
            found = np.full(self._length, unknown, dtype)
        return found

    @property
    def known(self) -> dict[str, Array]:
        """The columns that were given."""
        return dict(self._columns)

    def take(self, rows: Array) -> Table:
        """The rows that a mask or an index array selects, in its order."""
        return self._like({name: values[rows] for name, values in self._columns.items()}, rows)

    def _like(self, columns: dict[str, Array], rows: Array) -> Table:
        table = Table(self.schema, columns)
        if not columns:
            table._length = int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows)
        return table

    def with_columns(self, **columns: Any) -> Table:
        """The same rows with some columns replaced or added."""
        return Table(self.schema, self._columns | columns)

    def sorted_by(self, *columns: str) -> Table:
        """The rows in ascending, stable order; the first column decides first."""
        if len(columns) == 1:
            keys = self[columns[0]]
            if len(keys) < 2 or bool(np.all(keys[:-1] <= keys[1:])):
                return self
            return self.take(np.argsort(keys, kind="stable"))
        return self.take(np.lexsort([self[name] for name in reversed(columns)]))

    def grouped(self, columns: Sequence[str]) -> tuple[Ints, Ints]:
        """Number the distinct rows of some columns; returns every row's number, each one's first.

        Rows are told apart by a 64-bit mix of the columns, which is then checked against them.
        """
        mixed = _mixed([self[name] for name in columns])
        _, first, group = np.unique(mixed, return_index=True, return_inverse=True)
        if all(np.array_equal(self[n], self[n][first[group]]) for n in columns):
            return group.astype(np.int64), first
        rows = np.stack([self[name] for name in columns], axis=1)
        _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return group.reshape(-1).astype(np.int64), first

    def repeated(self) -> Mask:
        """Which rows equal an earlier row in every column; numbers with fractions do not count."""
        columns = {n: v for n, v in self._columns.items() if self.schema[n] != "float"}
        return repeated(columns, next(n for n in self.schema if self.schema[n] == "time"))

    def frame(self, strings: Strings | None = None) -> pd.DataFrame:
        """The table as a pandas frame, texts as categories; unknown values become missing."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for name, kind in self.schema.items():
            values = self[name]
            if kind == "text" and strings is not None:
                columns[name] = pd.Categorical.from_codes(values, pd.Index(strings.texts))
            elif kind in ("time", "int"):
                own: Ints = np.array(values, np.int64)
                columns[name] = pd.arrays.IntegerArray(own, ~known(own))
            else:
                columns[name] = values
        frame: pd.DataFrame = pd.DataFrame(columns)
        return frame


def _mixed(columns: Sequence[Array]) -> NDArray[np.uint64]:
    """A 64-bit hash of every row."""
    mixed = np.zeros(len(columns[0]) if columns else 0, np.uint64)
    for values in columns:
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + values.astype(np.uint64)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def repeated(columns: Mapping[str, Array], by: str) -> Mask:
    """Which rows equal an earlier row in every column; `by` is the column that differs most.

    The one search for records that came twice, in whatever form they are.
    """
    count = len(next(iter(columns.values()), ()))
    found = np.zeros(count, np.bool_)
    if by not in columns:
        suspects = np.arange(count)
    else:
        order = np.argsort(columns[by], kind="stable")
        same = columns[by][order[1:]] == columns[by][order[:-1]]
        suspects = np.unique(np.concatenate([order[1:][same], order[:-1][same]]))
    if len(suspects) < 2:
        return found
    rows = [column[suspects] for column in columns.values()]
    ordered = np.sort(_mixed(rows))
    if not bool(np.any(ordered[1:] == ordered[:-1])):
        return found
    _, first = np.unique(
        np.stack([row.astype(np.int64) for row in rows]), axis=1, return_index=True
    )
    found[suspects] = True
    found[suspects[first]] = False
    return found


def concat(schema: Schema, tables: Sequence[Table]) -> Table:
    """The rows of several tables of one schema, one after another."""
    tables = [table for table in tables if len(table)]
    if not tables:
        return Table(schema)
    if len(tables) == 1:
        return tables[0]
    names = [name for name in schema if any(name in table for table in tables)]
    return Table(schema, {name: np.concatenate([t[name] for t in tables]) for name in names})


def known(values: Array) -> Mask:
    """Where a time, id or count is known."""
    return np.asarray(values != UNKNOWN)


def optional(value: Any) -> int | None:
    """An entry of a 64-bit column as a plain int, None where it is unknown."""
    return None if value == UNKNOWN else int(value)


def integers(values: Iterable[int | None]) -> Ints:
    """A 64-bit column of plain ints, None as unknown."""
    return np.array([UNKNOWN if value is None else value for value in values], np.int64)


def first_rows(keys: Array, wanted: Array) -> Ints:
    """The first row with each wanted key, -1 where no row has it."""
    order = np.argsort(keys, kind="stable")
    if not len(order):
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)
    return np.where(keys[order[place]] == wanted, order[place], -1)
