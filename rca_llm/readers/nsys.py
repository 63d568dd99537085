"""Reader of Nsight Systems: SQLite and Parquet exports, and reports through `nsys export`."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path

from rca_llm.errors import UnreadableInput
from rca_llm.readers import nsys_parquet, nsys_rep
from rca_llm.readers.files import Source
from rca_llm.readers.nsys_store import Chunk
from rca_llm.readers.nsys_trace import trace_of
from rca_llm.readers.sqlite_pages import MAGIC, DamagedDatabase, Database
from rca_llm.table import Ints
from rca_llm.trace import CUT, Trace

_OTHER = b"rocpd_"
"""What the tables of ROCm's profiler are called, which writes SQLite too."""


def matches(source: Source) -> bool:
    """Whether the content is an export or a report of Nsight Systems."""
    if source.directory:
        return nsys_parquet.matches(source)
    if source.head.startswith(MAGIC):
        return _OTHER not in source.head
    return nsys_rep.matches(source)


def read(source: Source) -> Trace:
    """The trace of an export or a report."""
    if source.directory:
        return nsys_parquet.read(source)
    if source.head.startswith(MAGIC):
        with source.local() as path:
            return read_sqlite(source.path, path)
    with source.local() as path, nsys_rep.exported(source.path, path) as export:
        return read_sqlite(source.path, export)


def read_sqlite(name: str, path: Path) -> Trace:
    """The trace of a SQLite export; `name` is what the user calls it."""
    try:
        with _settled(path) as settled, Database(settled) as database:
            return _read(name, database)
    except DamagedDatabase as error:
        raise UnreadableInput(f"{name}: {error}") from None


def _read(name: str, database: Database) -> Trace:
    try:
        trace = trace_of(name, _SqliteTables(database))
    except UnreadableInput:
        if damage := _damage(database):
            raise DamagedDatabase(
                f"byte {database.size}: expected tables of events; {damage}"
            ) from None
        raise
    lost = database.lost_pages + database.lost_rows
    first = trace.timelines[0]
    first.note("truncated", lost, f"byte {database.size}", _damage(database))
    if lost and (len(first["gpu"]) or len(first["api"])):  # which table they were of nobody knows
        first.header.extra[CUT] = True
    return trace


def _damage(database: Database) -> str:
    """What of the database could not be read, empty where nothing was missing."""
    counts = ((database.lost_pages, "pages"), (database.lost_rows, "rows"))
    lost = [f"{count} {what}" for count, what in counts if count]
    return f"{' and '.join(lost)} of the database are missing or damaged" if lost else ""


@contextlib.contextmanager
def _settled(path: Path) -> Generator[Path]:
    """The database with what still stands in its journal; the user's files stay as they are."""
    journals = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
    pending = [journal for journal in journals if _size(journal)]
    if not pending:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rca-llm-") as folder:
        for file in (path, *pending):
            shutil.copyfile(file, Path(folder, file.name))
        copy = Path(folder, path.name)
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(copy)) as base:
            base.execute("SELECT count(*) FROM sqlite_master").fetchall()  # rolls a journal back
            base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        yield copy


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _SqliteTables:
    """The tables of a SQLite export."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> Collection[str]:
        """The names of the tables."""
        return self._database.tables

    def columns(self, table: str) -> Collection[str]:
        """The names of a table's columns."""
        return self._database.columns(table)

    def chunks(self, table: str, ints: Sequence[str], texts: Sequence[str]) -> Iterator[Chunk]:
        """The rows of a table."""
        for rows in self._database.scan(table, ints, texts):
            yield Chunk(len(rows), rows.ints, dict(rows.texts))

    def strings(self, table: str, id: str, value: str, ids: Ints) -> dict[int, bytes]:
        """The texts with these ids; no others are decoded where the id is the row id."""
        rowids = ids if self._database.rowid(table) == id else None
        wanted = set(ids.tolist())
        return {
            key: rows.texts[value].get(row) or b""
            for rows in self._database.scan(table, [id], [value], rowids)
            for row, key in enumerate(rows.ints[id].tolist())
            if key in wanted
        }
