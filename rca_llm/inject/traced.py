"""Runs an injected cause under a trace: a run directory with its `truth.json`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from rca_llm import launch
from rca_llm.errors import RcaError
from rca_llm.inject.catalogue import CAUSES, Order, order, workload

TRUTH = "truth.json"


def inject(
    name: str,
    magnitude: float | None,
    seed: int,
    target: Path,
    *,
    force: bool = False,
    without: bool = False,
) -> int:
    """Run a cause traced into `target`; the exit status that the command ends with.

    Ranks write their own events; everything else is recorded by `rca-llm trace`.
    """
    wanted = order(name, magnitude, seed, str(target), without=without)
    if target.exists() and not force:
        raise RcaError(f"{target}: exists; will not overwrite without --force")
    if CAUSES[name].family == "ranks":
        return _by_ranks(wanted, target)
    return _traced(wanted, target, force=force)


def _traced(wanted: Order, target: Path, *, force: bool) -> int:
    call = [sys.executable, "-m", "rca_llm.inject", wanted.cause.name]
    call += ["--magnitude", repr(wanted.magnitude), "--seed", str(wanted.seed)]
    call += ["--without"] if wanted.without else []
    with tempfile.TemporaryDirectory(prefix="rca-llm-inject-") as folder:
        truth = Path(folder) / TRUTH
        gpu = "full" if wanted.cause.gpu else "kernels"  # launches and waits are causes themselves
        options = launch.Options(target, force=force, gpu=gpu)
        status = launch.trace([*call, "--truth", str(truth)], options)
        if truth.exists() and target.is_dir():
            shutil.copyfile(truth, target / TRUTH)
    return status


def _by_ranks(wanted: Order, target: Path) -> int:
    if target.is_dir():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    workload(wanted.cause)(wanted).write(target / TRUTH)
    return 0
