"""Parquet exports of Nsight Systems (`--type parquetdir`): a folder with a file for each table."""

from __future__ import annotations

from rca_llm.errors import UnreadableInput
from rca_llm.readers.files import Source
from rca_llm.trace import Trace


def matches(source: Source) -> bool:
    """Whether a directory holds the tables of an export."""
    return False


def read(source: Source) -> Trace:
    """The trace of an export."""
    raise UnreadableInput(source.path)
