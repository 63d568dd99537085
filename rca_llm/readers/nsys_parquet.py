"""Parquet exports of Nsight Systems (`--type parquetdir`): a directory, a file for each table."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rca_llm.readers import files
from rca_llm.readers.files import Source
from rca_llm.readers.nsys_store import Chunk
from rca_llm.readers.nsys_trace import trace_of
from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Mask
from rca_llm.trace import Trace

if TYPE_CHECKING:
    from arro3.core import Array as Column

_SUFFIX = ".parquet"
_MAGIC = b"PAR1"
_OWN = re.compile(r"(StringIds|NVTX_EVENTS|CUPTI_ACTIVITY_KIND_\w+|TARGET_INFO_\w+)\.parquet")


def matches(source: Source) -> bool:
    """Whether a directory holds the tables of an export."""
    own = (path for path in files.entries(source.path) if _OWN.fullmatch(_name(path)))
    first = next(own, None)
    return first is not None and files.source(first).head.startswith(_MAGIC)


def read(source: Source) -> Trace:
    """The trace of an export."""
    paths = [path for path in files.entries(source.path) if path.endswith(_SUFFIX)]
    tables = _ParquetTables({_name(path).removesuffix(_SUFFIX): path for path in paths})
    trace = trace_of(source.path, tables)
    for table, problem in tables.unreadable.items():
        trace.timelines[0].note("truncated", 1, f"table {table}", f"cannot be read: {problem}")
    return trace


def _name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


@dataclass
class _Texts:
    """The texts of some rows: codes of a vocabulary, -1 for null."""

    vocabulary: list[str]
    code: NDArray[np.int32]

    def get(self, row: int) -> bytes | None:
        """The bytes of one text, None for null."""
        code = int(self.code[row])
        return self.vocabulary[code].encode() if code >= 0 else None

    def take(self, rows: Array) -> _Texts:
        """The texts of some of the rows."""
        return _Texts(self.vocabulary, self.code[rows])

    def cut_number(self, before: bytes) -> Mask:
        """Cut `before` and the number behind it off the ends; where there was one."""
        pattern = re.compile(re.escape(before.decode()) + r"[0-9]+\Z")
        cut = [pattern.sub("", text) for text in self.vocabulary]
        changed = [one != other for one, other in zip(cut, self.vocabulary, strict=True)]
        self.vocabulary = cut
        return np.array([*changed, False])[self.code]

    def codes(self, intern: Callable[[bytes], int]) -> NDArray[np.int32]:
        """A code for every text, `NO_TEXT` for null."""
        found = np.full(len(self.vocabulary) + 1, NO_TEXT, np.int32)
        used: list[int] = np.unique(self.code[self.code >= 0]).tolist()
        for code in used:
            found[code] = intern(self.vocabulary[code].encode())
        return found[self.code]


class _ParquetTables:
    """The tables of a directory; one is held at a time, and each is read only when asked for."""

    def __init__(self, paths: dict[str, str]) -> None:
        self.unreadable: dict[str, str] = {}
        self._paths = paths
        self._held: tuple[str, dict[str, Column]] = ("", {})

    def names(self) -> Collection[str]:
        """The names of the tables."""
        return self._paths

    def columns(self, table: str) -> Collection[str]:
        """The names of a table's columns; none where it cannot be read."""
        return self._table(table)

    def chunks(self, table: str, ints: Sequence[str], texts: Sequence[str]) -> Iterator[Chunk]:
        """The rows of a table, all at once."""
        from rca_llm import columns

        found = self._table(table)
        length = max((len(column) for column in found.values()), default=0)
        numbers = {name: columns.to_integers(found[name], UNKNOWN) for name in ints}
        values = {name: _Texts(*columns.to_texts(found[name])) for name in texts}
        yield Chunk(length, numbers, dict(values))

    def strings(self, table: str, id: str, value: str, ids: Ints) -> dict[int, bytes]:
        """The texts with these ids."""
        (chunk,) = self.chunks(table, [id], [value])
        rows = np.flatnonzero(np.isin(chunk[id], ids)).tolist()
        return {int(chunk[id][row]): chunk.texts[value].get(row) or b"" for row in rows}

    def _table(self, name: str) -> dict[str, Column]:
        if self._held[0] == name:
            return self._held[1]
        with files.source(self._paths[name]).local() as path:
            found, problem = _read(path)
        if problem:
            self.unreadable[name] = problem
        self._held = (name, found)
        return found


def _read(path: Path) -> tuple[dict[str, Column], str]:
    """The columns of a file, or none and why."""
    from rca_llm import columns

    try:
        return columns.read(path), ""
    except Exception as error:  # one damaged table does not cost the others
        return {}, str(error).split("\n")[0][:200]
