"""Runs the stages of a GPU benchmark: one that fails is kept as that, and the next may still tell.

Time on a GPU is short: a stage that does not exist is refused before the first begins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

LONGEST_ERROR = 3000


class Keeps(Protocol):
    """What a stage works with: it keeps what was found, on disk at once."""

    def keep(self, stage: str, found: Any) -> None:
        """Add a result."""


S = TypeVar("S", bound=Keeps)


def folders(out: Path, name: str) -> tuple[Path, Path]:
    """Where results and where everything else of a benchmark lie, both made."""
    out.mkdir(parents=True, exist_ok=True)
    work = Path(os.environ.get("TMPDIR", "/tmp"), name)
    work.mkdir(exist_ok=True)
    return out.resolve(), work


def run_stages(
    session: S,
    stages: Mapping[str, Callable[[S], Any]],
    chosen: str,
    *,
    budget: float | None = None,
    needed: str | None = None,
    after: Callable[[str, float], None] = lambda name, seconds: None,
) -> None:
    """Run the stages named in `chosen`, comma separated, and keep what they give back, if anything.

    No stage begins later than `budget` seconds after this, and none where `needed` has failed.
    `after` hears of each that has ended, and how long it took.
    """
    names = [name for name in chosen.split(",") if name]
    unknown = [name for name in names if name not in stages]
    if unknown:
        sys.exit(f"no such stage: {', '.join(unknown)}; there are {', '.join(stages)}")
    first = time.monotonic()
    for name in names:
        begun = time.monotonic()
        if budget is not None and begun - first > budget:
            session.keep(f"{name} left out", "the time was used up")
            continue
        works = _attempt(session, name, stages[name])
        seconds = time.monotonic() - begun
        print(f"-- {name}: {seconds:.1f} s", flush=True)
        after(name, seconds)
        if name == needed and not works:
            break


def _attempt(session: S, name: str, stage: Callable[[S], Any]) -> bool:
    """Run one stage; whether it came to its end."""
    try:
        found = stage(session)
        if found is not None:
            session.keep(name, found)
    except Exception as error:
        session.keep(f"{name} failed", f"{type(error).__name__}: {error}"[-LONGEST_ERROR:])
        if os.environ.get("RCA_DEBUG"):
            raise
        return False
    return True
