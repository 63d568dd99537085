"""Finishes a run: Parquet tables beside its segments, which are cut to what was used.

Segments stay: they are what was recorded, and a later version may read more out of them. Nothing is
done while a process still writes (a daemon that outlives its command). A run may be finished again:
its tables are then made anew. Whoever is killed while finishing leaves a run that can be read, and
at most a draft that the next one removes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rca_llm.errors import UnreadableInput
from rca_llm.probes import format as layout
from rca_llm.run import Run, lives, writer_of

LAST_WORKERS_S = 1.0
LONG_BYTES = 50_000_000
"""Segments larger than this take seconds to read: show a progress bar."""


def finish(run: Run, seen: Mapping[int, int]) -> None:
    """Write the tables of a run, unless one of its processes still writes.

    ``seen`` holds the processes that the launcher saw, by pid, with their start times. A run whose
    segments are gone keeps the tables that it has.
    """
    segments = run.segment_files()
    writers = set(seen.items()) | {writer_of(path) for path in segments}
    if not segments or not _ended(writers):
        return
    from rca_llm import saved
    from rca_llm.readers.files import source
    from rca_llm.readers.run import read_segments

    with _progress(run) as step:
        step("reading")
        try:
            timeline = read_segments(source(run.path))
        except UnreadableInput:
            return
        with _draft(run.tables) as draft:
            saved.save(timeline, draft, step)
    for path in run.segment_files():
        pid, start = writer_of(path)
        if pid == os.getpid() or seen.get(pid) == start:
            trim(path)


@contextmanager
def _draft(folder: Path) -> Generator[Path]:
    """A folder that takes the place of ``folder`` once it is whole."""
    draft, former = folder.with_suffix(".tmp"), folder.with_suffix(".old")
    _remove(draft, former)
    draft.mkdir()
    try:
        yield draft
        if folder.exists():  # a folder cannot be put in the place of one that holds something
            folder.replace(former)
        draft.replace(folder)
    finally:
        _remove(draft, former)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _ended(writers: set[tuple[int, int]]) -> bool:
    """Whether all processes end within a moment: workers often outlive their server by a little."""
    deadline = time.monotonic() + LAST_WORKERS_S
    while any(_is_alive(pid, start) for pid, start in writers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_alive(pid: int, start: int) -> bool:
    """Whether a process other than this one lives."""
    return pid != os.getpid() and lives(pid, start)


def trim(path: Path) -> None:
    """Cut a segment behind its last record.

    Only once its writer was seen to be gone: cutting a file that is mapped kills who writes to it.
    (A process of another pid namespace is alive under a number that means nothing here.)
    """
    with path.open("r+b") as file:
        data = file.read()
        if len(data) < layout.HEADER_BYTES or not data.startswith(layout.MAGIC):
            return  # never written to
        length = max(len(data.rstrip(b"\0")), layout.HEADER_BYTES, _end_of_payloads(data))
        length = -(-length // layout.CELL_BYTES) * layout.CELL_BYTES
        file.seek(layout.LENGTH_OFFSET)
        file.write(length.to_bytes(8, "little"))
        file.truncate(length)


def _end_of_payloads(data: bytes) -> int:
    """Where the last payload ends, whose own end may be zeros; at the most, since payloads may hold
    what looks like the cell of one.
    """
    import numpy as np

    body = memoryview(data)[layout.HEADER_BYTES :]
    count = len(body) // layout.CELL_BYTES
    cells = np.frombuffer(body, np.dtype(list(layout.CELL_FIELDS)), count)
    kinds = [cells["tag"] == layout.tag(kind) for kind in (layout.NAME, layout.BUFFER)]
    places = np.flatnonzero(kinds[0] | kinds[1])
    sizes = cells["b"][places]
    inside = (sizes > 0) & (sizes <= (count - 1 - places) * layout.CELL_BYTES)
    ends = (places[inside] + 1) * layout.CELL_BYTES + sizes[inside]
    return layout.HEADER_BYTES + int(ends.max(initial=0))


@contextmanager
def _progress(run: Run) -> Generator[Callable[[str], None]]:
    """A progress bar on a terminal where this takes long; gives a function that names each step."""
    if run.size() < LONG_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from rca_llm.trace import TABLES

    console = Console(stderr=True)
    parts = (TextColumn("rca-llm: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True) as bar:
        task = bar.add_task("finishing the run", total=len(TABLES) + 1)
        yield lambda what: bar.update(task, advance=1, description=f"finishing the run: {what}")
