"""Finishes a run: Parquet tables beside its segments, which are cut to what was used.

Segments stay: they are what was recorded, and a later version may read more out of them. Nothing is
done while a process still writes (a daemon that outlives its command).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from rca_llm.errors import UnreadableInput
from rca_llm.probes.recorder import process_start
from rca_llm.run import Run

LONG_BYTES = 50_000_000
"""Segments larger than this take seconds to read: show a progress bar."""


def finish(run: Run) -> None:
    """Write the tables of a run, unless one of its processes still writes."""
    if any(_is_written(path) for path in run.segment_files()):
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
        _trim(path)


@contextmanager
def _draft(folder: Path) -> Generator[Path]:
    """A folder that takes the place of ``folder`` once it is whole."""
    draft = folder.with_suffix(".tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_written(path: Path) -> bool:
    """Whether the process that writes a segment is alive (the launcher, which calls this, not)."""
    pid, start = path.name.split("-")[:2]
    return int(pid) != os.getpid() and str(process_start(pid)) == start


def _trim(path: Path) -> None:
    """Cut a segment behind its last record. Never while its writer lives: that would kill it."""
    with path.open("rb") as file:
        data = file.read()
    os.truncate(path, -(-len(data.rstrip(b"\0")) // 32) * 32)


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
