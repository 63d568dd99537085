"""The run directory: its layout, its manifest, its gate.

RUN/manifest.json   what was run and how it ended
RUN/control         the gate that every process of the run looks at
RUN/segments/       raw records, one file a thread (docs/format.md)
RUN/tables/         Parquet tables, once the run is finished
RUN/.lock           locked while a launcher records
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rca_llm.errors import RcaError
from rca_llm.hold import LOCK, Hold, held
from rca_llm.probes import format as layout
from rca_llm.probes.recorder import process_start

SCHEMA = "rca-llm/run/1"
MANIFEST = "manifest.json"
TABLES = "tables"
RUNNING, FINISHED = "running", "finished"
"""The states that a manifest tells; who is killed leaves the first."""


@dataclass(frozen=True)
class Run:
    """A run directory and the paths in it."""

    path: Path
    hold: Hold | None = field(default=None, compare=False, repr=False)
    """Kept by the launcher that records into it."""

    @property
    def manifest_path(self) -> Path:
        """The manifest."""
        return self.path / MANIFEST

    @property
    def control(self) -> Path:
        """The control file."""
        return self.path / layout.CONTROL_NAME

    @property
    def segments(self) -> Path:
        """The folder of segment files."""
        return self.path / layout.SEGMENTS_NAME

    @property
    def tables(self) -> Path:
        """The folder of Parquet tables."""
        return self.path / TABLES

    def segment_files(self) -> list[Path]:
        """All segment files, by name."""
        return sorted(self.segments.glob("*" + layout.SEGMENT_SUFFIX))

    def size(self) -> int:
        """Bytes that the segments take on disk."""
        return sum(_disk_bytes(path) for path in self.segment_files())

    def manifest(self) -> dict[str, Any]:
        """The manifest's content; empty where it cannot be read."""
        try:
            content = json.loads(self.manifest_path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return cast("dict[str, Any]", content) if isinstance(content, dict) else {}

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Replace the manifest in one piece."""
        draft = self.manifest_path.with_suffix(".tmp")
        draft.write_text(json.dumps({"schema": SCHEMA, **content}, indent=1) + "\n", "utf-8")
        draft.replace(self.manifest_path)

    def is_open(self) -> bool:
        """Whether the gate lets records through."""
        return self.control.read_bytes()[layout.CONTROL_GATE_OFFSET] == 1

    def gate(self) -> mmap.mmap:
        """The control file, mapped: looking at it costs no system call."""
        with self.control.open("rb") as file:
            return mmap.mmap(file.fileno(), layout.CONTROL_BYTES, access=mmap.ACCESS_READ)

    def set_gate(self, is_open: bool) -> None:
        """Start or stop recording in every process of the run.

        When comes first: who finds the gate changed must not find the time of an earlier change.
        """
        with self.control.open("r+b", buffering=0) as file:
            before = file.read(16)
            changes = int.from_bytes(before[layout.CONTROL_CHANGES_OFFSET :], "little")
            now = time.perf_counter_ns().to_bytes(8, "little")
            if before[layout.CONTROL_GATE_OFFSET] != is_open:
                os.pwrite(file.fileno(), now, layout.CONTROL_CHANGED_OFFSET)
            os.pwrite(file.fileno(), bytes([is_open]), layout.CONTROL_GATE_OFFSET)
            counted = (changes + 1).to_bytes(8, "little")
            os.pwrite(file.fileno(), counted, layout.CONTROL_CHANGES_OFFSET)


def _disk_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def lives(pid: int, start: int) -> bool:
    """Whether the process that began at a clock tick lives; not one that waits to be reaped."""
    if process_start(pid) != start or start == 0:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (OSError, IndexError):
        return False


def writer_of(path: Path) -> tuple[int, int]:
    """The process that writes a segment, by the name of its file: pid and start time; else 0, 0."""
    pid, _, rest = path.name.partition("-")
    start = rest.partition("-")[0]
    return (int(pid), int(start)) if pid.isdecimal() and start.isdecimal() else (0, 0)


def writer_kind(path: Path) -> int | None:
    """Which recorder writes a segment, one of `WRITER_*`; None where it has no header yet."""
    try:
        with path.open("rb") as file:
            data = file.read(layout.HEADER_BYTES)
    except OSError:
        return None
    if len(data) < layout.HEADER_BYTES or not data.startswith(layout.MAGIC):
        return None
    values = layout.HEADER.unpack_from(data, len(layout.MAGIC))
    return int(values[layout.HEADER_FIELDS.index("writer")])


def launcher_lives(manifest: Mapping[str, Any]) -> bool | None:
    """Whether the launcher that wrote a manifest still runs; None on another machine than its own.

    Where the manifest does not tell when it began, any process with its number counts as it.
    """
    if manifest.get("host") != os.uname().nodename:
        return None
    pid = manifest.get("launcher_pid")
    start = manifest.get("launcher_start", process_start(pid))
    return isinstance(pid, int) and isinstance(start, int) and lives(pid, start)


def is_run(path: Path) -> bool:
    """Whether a directory is a run directory, by its content."""
    return (path / layout.SEGMENTS_NAME).is_dir() or (
        (path / TABLES).is_dir() and Run(path).manifest().get("schema") == SCHEMA
    )


def create(path: Path, *, paused: bool = False, force: bool = False) -> Run:
    """Make an empty run directory at ``path``, held until the run that is returned is gone.

    Raises `RcaError` where something is there already (unless an empty folder, or, with ``force``,
    an earlier run), `Held` where that is recorded now, and `OSError` where it cannot be written.
    """
    run = Run(path, claim(path, force=force))
    run.segments.mkdir(parents=True, exist_ok=True)
    control = bytearray(layout.CONTROL_BYTES)
    control[layout.CONTROL_GATE_OFFSET] = not paused
    run.control.write_bytes(control)
    return run


def claim(path: Path, *, force: bool, ours: Callable[[Path], bool] = is_run) -> Hold:
    """Make an empty folder at ``path`` and hold it; raises as `create`.

    With ``force``, what is ``ours`` is emptied.
    """
    check_free(path, force=force, ours=ours)
    path.mkdir(parents=True, exist_ok=True)
    hold = Hold(path)
    check_free(path, force=force, ours=ours)  # it may have been made since
    for entry in _content(path):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return hold


def check_free(path: Path, *, force: bool, ours: Callable[[Path], bool] = is_run) -> None:
    """Refuse a path at which there is something that must stay, as `create` does."""
    if not path.exists() or (path.is_dir() and not _content(path)):
        return
    if not (force and path.is_dir() and ours(path)):
        hint = "it is not a run directory" if force else "will not overwrite without --force"
        raise RcaError(f"{path} exists: {hint}")
    manifest = Run(path).manifest()
    if manifest.get("state") == RUNNING and launcher_lives(manifest):
        raise held(path)


def _content(folder: Path) -> list[Path]:
    """What is in a folder, beside the lock of a run."""
    return [entry for entry in folder.iterdir() if entry.name != LOCK]


def default_path(command: Sequence[str]) -> Path:
    """``rca-<cmd>-<UTC time>.rca``, with a number where that exists."""
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "_", os.path.basename(command[0]))[:60] or "cmd"
    stem = f"rca-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    return free_path(Path(f"{stem}.rca"))


def free_path(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3`` … that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate
