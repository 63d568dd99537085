"""Writing outputs so that nothing is lost and nothing half-written stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from rca_llm.errors import RcaError


def check_target(target: Path, *, force: bool) -> None:
    """Refuse an output that exists, unless it may be replaced, or whose folder does not exist."""
    if target.exists() and not force:
        raise RcaError(f"{target}: exists; will not overwrite without --force")
    if not target.parent.is_dir():
        raise RcaError(f"{target}: cannot be written: no such folder as {target.parent}")


def write(target: Path, produce: Callable[[Path], None], *, force: bool) -> None:
    """Let `produce` write to a path beside the target, then put it in the target's place.

    `produce` may make a file or a folder. Raises `RcaError` where that cannot be done.
    """
    check_target(target, force=force)
    try:
        with _beside(target) as draft:
            produce(draft)
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            os.replace(draft, target)
    except OSError as error:
        raise RcaError(f"{target}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _beside(target: Path) -> Generator[Path]:
    """A path in a folder of its own next to the target, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:50]}.", dir=target.parent) as folder:
        yield Path(folder) / target.name
