"""`rca-llm ctl`: switches the recording of a running trace on and off, and marks instants in it."""

from __future__ import annotations

import time
from pathlib import Path

import click

from rca_llm import sampling
from rca_llm.commands.paths import PATH
from rca_llm.errors import RcaError
from rca_llm.probes import format as layout
from rca_llm.probes.recorder import put
from rca_llm.run import FINISHED, RUNNING, Run, is_run, launcher_lives, lives, writer_of


@click.command("ctl")
@click.argument("run", type=PATH)
@click.argument("action", type=click.Choice(["start", "stop", "mark", "status"]))
@click.argument("name", required=False)
def command(run: Path, action: str, name: str | None) -> None:
    """Steer the trace that writes into RUN.

    start and stop switch recording on and off in every process of the trace, mark records an
    instant called NAME, status prints what the run holds so far.
    """
    if name is None and action == "mark":
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
    elif _state(found) in (FINISHED, _UNFINISHED):
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


def _state(run: Run) -> str:
    """What the manifest tells, and of a run that it calls running, what still records."""
    manifest = run.manifest()
    state = manifest.get("state", "unknown")
    if state != RUNNING:
        return str(state)
    if launcher_lives(manifest) is not False:
        return "recording" if run.is_open() else "paused"
    writers = {writer_of(path) for path in run.segment_files()}
    alive = sum(lives(*writer) for writer in writers)
    if not alive:
        return _UNFINISHED
    processes = "1 process" if alive == 1 else f"{alive} processes"
    paused = "" if run.is_open() else ", paused"
    return f"not finished: its launcher is gone, {processes} of it not{paused}"


def _show(run: Run) -> None:
    files = run.segment_files()
    pids = {path.name.split("-")[0] for path in files}
    click.echo(f"state      {_state(run)}")
    click.echo(f"processes  {len(pids)}")
    click.echo(f"segments   {len(files)}")
    click.echo(f"bytes      {run.size()}")
