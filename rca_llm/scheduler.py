"""Where tasks run: on processes of this machine, or on the workers of an existing Dask cluster.

`concurrent.futures.Executor` is the seam: whoever has tasks sees nothing else of either.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, as_completed
from typing import Any, TextIO, TypeVar

from rca_llm.errors import RcaError

Task = TypeVar("Task")
Result = TypeVar("Result")

_CONNECT_S = 15


class Progress:
    """How many of some tasks are done, on one line that is written over; silent off a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = 0

    def tell(self, text: str) -> None:
        """Show a text in place of the last one."""
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._shown))
            self._stream.flush()
            self._shown = len(text)

    def clear(self) -> None:
        """Leave an empty line for what is printed next."""
        if self._shown:
            self.tell("")
            self._stream.write("\r")
            self._shown = 0


class Workers:
    """Runs tasks on an executor; one that breaks its worker costs no other."""

    def __init__(self, pool: Executor, fresh: Callable[[], Executor], progress: Progress) -> None:
        """`fresh` makes an executor of one worker, for tasks whose worker died."""
        self._pool = pool
        self._fresh = fresh
        self._progress = progress
        self._broken = False

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], what: str
    ) -> list[Result | Exception]:
        """The result of every task, or what it raised, in their order; `what` names what is done.

        Where a worker dies, nobody knows which task killed it: all that were not done are done
        again, each by a worker of its own.
        """
        found: dict[int, Result | Exception] = {}
        for number, result in self._first(function, tasks):
            found[number] = result
            self._progress.tell(f"rca-llm: {what}: {len(found)} of {len(tasks)} ranks")
        for number in range(len(tasks)):
            if isinstance(found[number], BrokenExecutor):
                with self._fresh() as pool:
                    found[number] = _outcome(pool.submit(function, tasks[number]).result)
        self._progress.clear()
        return [found[number] for number in range(len(tasks))]

    def _first(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterable[tuple[int, Result | Exception]]:
        """Every task's number and outcome as they come; a broken pool leaves the rest to others."""
        if self._broken:
            yield from ((n, BrokenExecutor()) for n in range(len(tasks)))
            return
        try:
            numbers = {self._pool.submit(function, task): n for n, task in enumerate(tasks)}
        except BrokenExecutor as error:
            self._broken = True
            yield from ((n, error) for n in range(len(tasks)))
            return
        for future in as_completed(numbers):
            outcome = _outcome(future.result)
            self._broken |= isinstance(outcome, BrokenExecutor)
            yield numbers[future], outcome


def _outcome(call: Callable[[], Result]) -> Result | Exception:
    try:
        return call()
    except Exception as error:  # whatever it is, it belongs to one task and is named with it
        return error


@contextlib.contextmanager
def workers(jobs: int | None = None, scheduler: str | None = None) -> Generator[Workers]:
    """Workers on `jobs` processes here (None: one a core), or on the Dask cluster at an address.

    Raises `RcaError` where the cluster cannot be reached or Dask is not installed.
    """
    progress = Progress()
    if scheduler is not None:
        with _client(scheduler) as client:
            pool = client.get_executor(pure=False)
            yield Workers(pool, lambda: client.get_executor(pure=False), progress)
        return
    with processes(jobs or cores()) as pool:
        yield Workers(pool, lambda: processes(1), progress)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def processes(jobs: int) -> ProcessPoolExecutor:
    """An executor on fresh processes: a fork of one that may have threads is not safe."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


@contextlib.contextmanager
def _client(address: str) -> Generator[Any]:
    try:
        import distributed
    except ImportError:
        raise RcaError("--scheduler needs Dask: pip install 'rca-llm[dask]'") from None
    try:
        connect: Any = distributed.Client  # not typed
        client = connect(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise RcaError(f"{address}: no Dask scheduler answers there: {reason:.200}") from None
    with client:
        yield client
