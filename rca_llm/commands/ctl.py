"""`rca-llm ctl`: switches the recording of a running trace on and off, and marks instants in it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rca_llm import sampling
from rca_llm.commands.paths import PATH
from rca_llm.errors import RcaError
from rca_llm.probes import format as layout
from rca_llm.probes.recorder import put
from rca_llm.run import (
    FINISHED,
    RUNNING,
    Run,
    is_run,
    launcher_lives,
    lives,
    writer_kind,
    writer_of,
)


@click.command("ctl")
@click.argument("run", type=PATH)
@click.argument("action", type=click.Choice(["start", "stop", "mark", "status"]))
@click.argument("name", required=False)
def command(run: Path, action: str, name: str | None) -> None:
    """Steer the trace that writes into RUN.

    start and stop switch recording on and off in every process of the trace, mark records an
    instant called NAME, status prints what the run holds so far.
    """
    if action == "mark" and not (name or "").strip():
        raise RcaError(f"mark needs a name: rca-llm ctl {run} mark NAME")
    if name is not None and action != "mark":
        raise RcaError(f"{action} takes nothing behind it, and {name!r} was given")
    if not run.exists():
        raise RcaError(f"{run}: no such run directory")
    if not is_run(run):
        raise RcaError(f"{run}: not a run directory")
    found = Run(run)
    if action == "status":
        _show(found)
    elif _has_ended(found):
        raise RcaError(f"{run}: this run has ended")
    elif name is not None:
        _mark(found, name)
    else:
        found.set_gate(action == "start")


def _mark(run: Run, name: str) -> None:
    segment = sampling.open_segment(run)
    room = segment.reserve_always(1)
    if room is None:
        raise RcaError(f"{run.path}: the mark cannot be written")
    words, at = room
    put(words, at, layout.MARK, time.perf_counter_ns(), 0, 0, 0, segment.ids[name])
    segment.close()


_UNFINISHED = "not finished: its launcher is gone, and nothing records any more"


def _has_ended(run: Run) -> bool:
    return run.manifest().get("state") == FINISHED or _state(run) == _UNFINISHED


def _state(run: Run) -> str:
    """What the manifest tells, and of a run that nobody watches any more, what still records."""
    manifest = run.manifest()
    state = str(manifest.get("state", "unknown"))
    if state == FINISHED:
        alive = _alive(run, manifest)
        return f"{state}, but {_processes(alive)} of it not{_paused(run)}" if alive else state
    if state != RUNNING:
        return state
    if launcher_lives(manifest) is not False:
        return "recording" if run.is_open() else "paused"
    alive = _alive(run, manifest)
    if not alive:
        return _UNFINISHED
    return f"not finished: its launcher is gone, {_processes(alive)} of it not{_paused(run)}"


def _paused(run: Run) -> str:
    """That recording is switched off; what was copied without its control file is not recorded."""
    there = run.control.exists()
    return ", paused" if there and not run.is_open() else ""


def _alive(run: Run, manifest: Mapping[str, Any]) -> int:
    """How many processes that recorded live, beside the launcher; 0 on another machine."""
    if manifest.get("host") != os.uname().nodename:
        return 0
    return sum(lives(*writer) for writer in _writers(run))


def _writers(run: Run) -> set[tuple[int, int]]:
    """The processes of the command that recorded, each by its id and when it began.

    The launcher, and `rca-llm ctl` itself where it marked an instant, are none of them.
    """
    return {
        writer_of(path)
        for path in run.segment_files()
        if writer_kind(path) not in (None, layout.WRITER_LAUNCHER)
    }


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _show(run: Run) -> None:
    click.echo(f"state      {_state(run)}")
    click.echo(f"processes  {len(_writers(run))}")
    click.echo(f"segments   {len(run.segment_files())}")
    click.echo(f"bytes      {run.size()}")
