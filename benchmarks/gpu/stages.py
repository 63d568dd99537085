"""Runs the stages of a GPU benchmark: one that fails is kept as that, and the next may still tell.

Time on a GPU is short: a stage that does not exist is refused before the first begins, each has a
limit of its own, and none goes on past `RCA_GPU_DEADLINE` (seconds on CLOCK_MONOTONIC, set by
`all.py`). SIGTERM ends the stage at hand like a limit, and then the benchmark: what was found until
then is on disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

LONGEST_ERROR = 3000
LIMIT_S = 200.0
"""For a stage that has no limit of its own."""
AGAIN_S = 10.0
"""A stage whose clean-up does not end either is interrupted again after so long."""
DEADLINE = "RCA_GPU_DEADLINE"
MARGIN_S = 10.0
"""Left before the deadline for ending what was started and for writing."""
PATIENCE_S = 5.0
"""For killed processes to be gone."""
TERMINATED = 128 + signal.SIGTERM


class Keeps(Protocol):
    """What a stage works with: it keeps what was found, on disk at once."""

    def keep(self, stage: str, found: Any) -> None:
        """Add a result."""


class OutOfTime(Exception):
    """A stage has used up its time."""


class Ended(BaseException):
    """The benchmark was told to end; no stage may take it for a failure of its own."""


S = TypeVar("S", bound=Keeps)


@dataclass
class Session:
    """One run of a benchmark: where things lie and what was found so far."""

    out: Path
    work: Path
    arguments: argparse.Namespace
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    file: str = "results.json"
    shown: int = 2500
    """How many characters of a result are printed."""

    def keep(self, stage: str, found: Any) -> None:
        """Add a result, write all of them, and print its begin."""
        self.write(stage, found)
        print(f"== {stage}\n{json.dumps(self.short(found))[: self.shown]}", flush=True)

    def write(self, stage: str, found: Any) -> None:
        """Add a result, perhaps one of a stage that is not done, and write all of them."""
        self.results[stage] = found
        write(self.out / self.file, self.results)

    def short(self, found: Any) -> Any:
        """A result as it is printed."""
        return found


def folders(out: Path, name: str) -> tuple[Path, Path]:
    """Where results and where everything else of a benchmark lie, both made."""
    out.mkdir(parents=True, exist_ok=True)
    work = Path(os.environ.get("TMPDIR", "/tmp"), name)
    work.mkdir(exist_ok=True)
    return out.resolve(), work


def write(path: Path, document: Any) -> None:
    """Write JSON so that the file is whole whenever the benchmark is killed."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(document, indent=1))
    draft.replace(path)


def left(limit: float = float("inf")) -> float:
    """Seconds until the deadline's margin, at most `limit`; not below 0."""
    deadline = float(os.environ.get(DEADLINE) or "inf")
    return max(min(limit, deadline - MARGIN_S - time.monotonic()), 0.0)


def run_stages(
    session: S,
    stages: Mapping[str, Callable[[S], Any]],
    chosen: str,
    *,
    limits: Mapping[str, float] | None = None,
    budget: float | None = None,
    needed: str | None = None,
    after: Callable[[str, float], None] = lambda name, seconds: None,
) -> None:
    """Run the stages named in `chosen`, comma separated, and keep what they give back, if anything.

    Each may take the seconds that `limits` says, else `LIMIT_S`. No stage begins later than
    `budget` seconds after this, and none where `needed` has failed. `after` hears of each that has
    ended, and how long it took.
    """
    names = [name for name in chosen.split(",") if name]
    unknown = [name for name in names if name not in stages]
    if unknown:
        sys.exit(f"no such stage: {', '.join(unknown)}; there are {', '.join(stages)}")
    first = time.monotonic()
    before = signal.signal(signal.SIGTERM, _end)
    try:
        for name in names:
            begun = time.monotonic()
            limit = left((limits or {}).get(name, LIMIT_S))
            if not limit or (budget is not None and begun - first > budget):
                session.keep(f"{name} left out", "the time was used up")
                continue
            works = _attempt(session, name, stages[name], limit)
            seconds = time.monotonic() - begun
            print(f"-- {name}: {seconds:.1f} s", flush=True)
            after(name, seconds)
            if name == needed and not works:
                break
    except Ended:
        sys.exit(TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _attempt(session: S, name: str, stage: Callable[[S], Any], limit: float) -> bool:
    """Run one stage; whether it came to its end. What a failed one started is ended."""
    before = descendants(os.getpid())
    try:
        with within(limit):
            found = stage(session)
        if found is not None:
            session.keep(name, found)
    except (Exception, Ended) as error:
        end_descendants(but=before)
        said = f"{type(error).__name__}: {error}"[-LONGEST_ERROR:]
        session.keep(f"{name} failed", said)
        if isinstance(error, Ended) or os.environ.get("RCA_DEBUG"):
            raise
        return False
    return True


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise OutOfTime where the block takes longer; in the main thread alone."""

    def over(number: int, frame: FrameType | None) -> None:
        raise OutOfTime(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended("told to end")


def command(
    words: list[str], env: Mapping[str, str], limit: float, folder: Path
) -> tuple[int, str, float]:
    """Run a command with its whole process group within a limit: status, all it said, seconds.

    The group is ended where the limit, or that of the stage, is over. Its status is negative then.
    """
    begun = time.monotonic()
    with subprocess.Popen(
        words, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", cwd=folder, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end_group(process)  # what it started holds the pipe as well
            said, _ = process.communicate()
        except BaseException:
            end_group(process)
            raise
    return process.returncode, said, time.monotonic() - begun


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that began a session, and all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_descendants(but: Collection[int] = ()) -> None:
    """Kill everything that descends from this process, but some: it would disturb what follows."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        children = [pid for pid in descendants(os.getpid()) if pid not in but]
        if not children:
            break
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)


def descendants(root: int) -> list[int]:
    """Every process below another, from /proc."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, known = list[int](), {root}
    while new := [pid for pid, parent in parents.items() if parent in known and pid not in known]:
        found += new
        known.update(new)
    return found
