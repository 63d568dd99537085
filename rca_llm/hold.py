"""Holds a run directory for the launcher that records into it, so that no other one empties it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rca_llm.errors import RcaError

LOCK = ".lock"
"""The empty file in a run directory that is locked; it stays when the rest is emptied."""


class Held(RcaError):
    """A run directory that another launcher records into."""


def held(folder: Path) -> Held:
    """What is told of such a one."""
    return Held(f"{folder}: another trace records into it; end that first, or give another path")


class Hold:
    """The lock of a run directory: let go with this object, or with its process however it ends.

    Raises `Held` where another one has it, `OSError` where the folder cannot be written. On a file
    system that knows no locks nothing is held.
    """

    def __init__(self, folder: Path) -> None:
        self._file = -1
        while not self._is_at(folder / LOCK):  # who held it until now may have removed it
            self._let_go()
            self._file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            self._lock(folder)

    def _lock(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise held(folder) from None
        except OSError:
            pass  # no locks here: the manifest alone tells

    def _is_at(self, path: Path) -> bool:
        try:
            return self._file >= 0 and os.path.samestat(os.fstat(self._file), path.stat())
        except FileNotFoundError:
            return False

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._let_go()
