"""Runs an injected cause under a trace: a run directory with its `truth.json`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from rca_llm import launch
from rca_llm import run as runs
from rca_llm.errors import RcaError
from rca_llm.inject.catalogue import CAUSES, Order, order, workload
from rca_llm.run import Run

TRUTH = "truth.json"


def inject(
    name: str,
    magnitude: float | None,
    seed: int,
    target: Path,
    *,
    force: bool = False,
    without: bool = False,
    last: bool = False,
) -> int:
    """Run a cause traced into `target`; the exit status that the command ends with.

    Ranks write their own events; everything else is recorded by `rca-llm trace`. `last` as there.
    """
    wanted = order(name, magnitude, seed, str(target), without=without)
    if CAUSES[name].family == "ranks":
        return _by_ranks(wanted, target, force=force)
    runs.check_free(target, force=force)
    return _traced(wanted, target, force=force, last=last)


def _traced(wanted: Order, target: Path, *, force: bool, last: bool) -> int:
    call = [sys.executable, "-m", "rca_llm.inject", wanted.cause.name]
    call += ["--magnitude", repr(wanted.magnitude), "--seed", str(wanted.seed)]
    call += ["--without"] if wanted.without else []
    with tempfile.TemporaryDirectory(prefix="rca-llm-inject-") as folder:
        truth = Path(folder) / TRUTH
        gpu = "full" if wanted.cause.gpu else "kernels"  # launches and waits are causes themselves
        options = launch.Options(target, force=force, gpu=gpu)
        status = launch.trace([*call, "--truth", str(truth)], options, last=last)
        if truth.exists() and Run(target).manifest().get("launcher_pid") == os.getpid():
            shutil.copyfile(truth, target / TRUTH)
    return status


def _by_ranks(wanted: Order, target: Path, *, force: bool) -> int:
    try:
        hold = runs.claim(target, force=force, ours=_is_ours)
    except OSError as error:
        raise RcaError(f"{target}: cannot be made: {error.strerror or error}") from error
    workload(wanted.cause)(wanted).write(target / TRUTH)
    del hold
    return 0


def _is_ours(folder: Path) -> bool:
    """Whether a folder is what an earlier call left there."""
    return runs.is_run(folder) or (folder / TRUTH).is_file()
