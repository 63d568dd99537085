"""Readers: one module an input format, recognised by content, each turning it into a `Trace`.

A reader is a module with two members:

- `matches(source) -> bool`: whether the content (`source.head`, or the entries of a directory)
  is this format; a name alone never decides.
- `read(source) -> Trace`: the trace; `UnreadableInput` where it is damaged beyond use or holds no
  events.
"""

from __future__ import annotations

import importlib
import os
from typing import Protocol, cast

from rca_llm.errors import UnreadableInput
from rca_llm.readers.files import Source, entries, source
from rca_llm.readers.foreign import described
from rca_llm.trace import Finding, Trace, merge

READERS = ("run", "nsys", "cupti", "kineto", "flight", "events")
"""The modules of this package that read a format, in the order in which they are asked."""

EXPECTED = (
    "expected a run directory, Nsight Systems, Kineto (Chrome JSON), Flight Recorder or RCA events"
)
"""What an input that no reader knows is told."""


class Reader(Protocol):
    """What a module of `READERS` offers."""

    def matches(self, source: Source, /) -> bool:
        """Whether the content is this reader's format."""
        ...

    def read(self, source: Source, /) -> Trace:
        """What was recorded."""
        ...


def load(*paths: str | os.PathLike[str]) -> Trace:
    """The trace of one job from all its inputs, for instance one file a rank.

    Of several, one that is damaged beyond use is a finding; the rest is read.
    """
    traces: list[Trace] = []
    errors: list[tuple[str, UnreadableInput]] = []
    for path in paths:
        try:
            traces.append(read(path))
        except UnreadableInput as error:
            errors.append((os.fspath(path), error))
    if errors and not traces:
        raise errors[0][1]
    trace = merge(traces)
    trace.findings += [Finding("truncated", 1, path, str(error)) for path, error in errors]
    return trace


def read(path: str | os.PathLike[str]) -> Trace:
    """The trace in a file, a run directory, or a directory of such files.

    Raises `RcaError` for a path that does not exist and `UnreadableInput` for content that no
    reader knows or that holds no events.
    """
    found = source(path)
    reader = reader_of(found)
    if reader is not None:
        return reader.read(found)
    if found.directory:
        return _read_entries(found)
    raise UnreadableInput(f"{found.path}: byte 0: {EXPECTED}; found {described(found)}")


def reader_of(found: Source) -> Reader | None:
    """The reader that knows this content, None where none does."""
    for name in READERS:
        reader = cast(Reader, importlib.import_module(f"{__name__}.{name}"))
        if reader.matches(found):
            return reader
    return None


OURS = (".json", ".jsonl", ".gz", ".zst", ".sqlite", ".nsys-rep")
"""How traces are called: such a file that is none is told of where a directory has no other."""


def _read_entries(directory: Source) -> Trace:
    """What the entries of a directory hold together.

    Entries of no known format are passed over; an unreadable or empty one among sound ones is a
    finding.
    """
    traces: list[Trace] = []
    refused: list[Finding] = []
    damaged: list[str] = []
    for path in entries(directory.path):
        found = source(path)
        reader = reader_of(found)
        strange = reader is None and path.lower().endswith(OURS)
        if not found.directory and (strange or not found.head):
            what = f"{path}: byte 0: found {described(found)}"
            damaged += [what] if strange else []
            refused += [] if found.head else [Finding("truncated", 1, path, what)]
        try:
            traces += [] if reader is None else [reader.read(found)]
        except UnreadableInput as error:
            damaged.append(str(error))
            refused.append(Finding("truncated", 1, path, damaged[-1]))
    if not traces:
        first = f"; found {damaged[0]}" if damaged else ""
        raise UnreadableInput(
            f"{directory.path}: byte 0: holds no trace; {EXPECTED} in this directory{first}"
        )
    trace = merge(traces)
    trace.findings += refused
    return trace
