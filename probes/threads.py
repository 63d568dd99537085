"""Carries the request of a scope into threads and thread pools that are started inside it.

What such a thread does until it is done with the request is a span of kind ``work``: it explains
nothing by itself, but tells whose the thread's time is, whatever the program names or does not.
"""

from __future__ import annotations

import sys

from .looks import look
from .recorder import FAULTS
from .span import OFF, request_id, span, suspendable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Any

_EXECUTOR = "concurrent.futures.thread"
_INTERPRETERS = "concurrent.futures.interpreter"
_POOLS = (
    _EXECUTOR,
    "anyio._backends._asyncio",
    "multiprocessing.pool",
    "trio._core._thread_cache",
)
"""Modules whose threads take work from a queue for as long as they live, each piece of it given
its request by the wrappers below: the request in whose scope such a thread is started only came
first."""

_wrapped: set[str] = set()


def follow() -> None:
    """Wrap what starts threads and gives work to pools, each once it is imported.

    Imports nothing that a program which never uses threads would pay for. Pools that asyncio uses
    (``to_thread``, ``run_in_executor``) are those of ``concurrent.futures``.
    """
    if len(_wrapped) == len(_TARGETS):
        return
    for module, wrap in _TARGETS:
        loaded = None if module in _wrapped else _loaded(module)
        if loaded is not None:
            _wrapped.add(module)
            wrap(loaded)


def _loaded(module: str) -> Any:
    """A module where it is imported, or where it is about to be.

    ``concurrent.futures`` imports its threads as late as with the first work for a pool, which is
    too late to follow that work. At the end of an interpreter they refuse to be imported.
    """
    if module == _EXECUTOR and "concurrent.futures" in sys.modules:
        try:
            __import__(module)
        except (ImportError, OSError, RuntimeError, *FAULTS):
            return None
    return sys.modules.get(module)


def _wrap_start(threading: Any) -> None:
    thread: type[Any] = threading.Thread
    start = thread.start

    def start_in_scope(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = request_id.get()
        if request is not None and not _is_worker(self):
            self.run = _inside(request, self.run)
        return start(self, *args, **kwargs)

    _replace(thread, "start", start, start_in_scope)


def _is_worker(thread: Any) -> bool:
    """Whether a thread is a pool's, by its class or by what it runs."""
    target: Any = getattr(thread, "_target", None)
    return type(thread).__module__ in _POOLS or getattr(target, "__module__", None) in _POOLS


def _wrap_submit(pools: Any) -> None:
    pool: type[Any] = pools.ThreadPoolExecutor
    submit = pool.submit

    def submit_in_scope(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        request = request_id.get()
        if request is None or _pickles(self):
            return submit(self, function, *args, **kwargs)
        wait = _Wait(request)
        try:
            future = submit(self, _queued(request, function, wait), *args, **kwargs)
        except BaseException as error:
            wait.end()
            error.__traceback__ = beneath(error)
            raise
        future.add_done_callback(wait.end_if_cancelled)
        return future

    _replace(pool, "submit", submit, submit_in_scope)


def _pickles(pool: Any) -> bool:
    """Whether an executor's threads run other interpreters (3.14), which no wrapper reaches."""
    return any(kind.__module__ == _INTERPRETERS for kind in type(pool).__mro__)


def _wrap_run_sync(to_thread: Any) -> None:
    """anyio's own pool, in which Starlette and FastAPI run endpoints that are no coroutines."""
    run_sync = to_thread.run_sync

    async def run_sync_in_scope(
        request: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        wait = _Wait(request)
        try:
            return await run_sync(_queued(request, func, wait), *args, **kwargs)
        except BaseException as error:
            wait.end()  # cancelled before a worker was free
            error.__traceback__ = beneath(error)
            raise

    def run_sync_or_in_scope(func: Any, *args: Any, **kwargs: Any) -> Any:
        request = request_id.get()
        if request is None:
            return run_sync(func, *args, **kwargs)
        if "cancellable" in kwargs:
            # anyio warns whoever awaits its coroutine of this old name: that must not be ours.
            return run_sync(_inside(request, func), *args, **kwargs)
        return run_sync_in_scope(request, func, args, kwargs)

    _name_as(run_sync, run_sync_in_scope)
    _replace(to_thread, "run_sync", run_sync, run_sync_or_in_scope)


def _wrap_thread_pool(pools: Any) -> None:
    """``multiprocessing.pool.ThreadPool``: what it is given at once, and what it takes in chunks.

    Pools of processes are left alone: what they are given must be pickled.
    """
    pool: type[Any] = pools.ThreadPool
    apply_async, tasks_of = pool.apply_async, pool._guarded_task_generation

    def apply_in_scope(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        request = request_id.get()
        if request is None:
            return apply_async(self, func, *args, **kwargs)
        wait = _Wait(request)
        try:
            return apply_async(self, _queued(request, func, wait), *args, **kwargs)
        except BaseException as error:
            wait.end()
            error.__traceback__ = beneath(error)
            raise

    def tasks_in_scope(self: Any, *args: Any, **kwargs: Any) -> Any:
        request, tasks = request_id.get(), tasks_of(self, *args, **kwargs)
        return tasks if request is None else _queued_tasks(request, tasks)

    _replace(pool, "apply_async", apply_async, apply_in_scope)
    _replace(pool, "_guarded_task_generation", tasks_of, tasks_in_scope)


def _queued_tasks(request: str, tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """A pool's tasks in the scope of a request; each waits from when the pool asks for it."""
    for job, number, function, *arguments in tasks:
        yield (job, number, _queued(request, function, _Wait(request)), *arguments)


class _Wait:
    """The wait of one piece of work for a worker: from now on until it begins or never will.

    It ends with its last reference too: a pool that is torn down drops what nobody did.
    """

    _span = OFF

    def __init__(self, request: str) -> None:
        self._span = suspendable("wait for a worker", "queue", request)
        self._span.__enter__()

    def end(self) -> None:
        waiting, self._span = self._span, OFF
        waiting.__exit__(None, None, None)

    __del__ = end

    def end_if_cancelled(self, future: Any) -> None:
        """Called when a future is done: work that was cancelled never began."""
        if future.cancelled():
            self.end()


def _queued(request: str, function: Callable[..., Any], wait: _Wait) -> Callable[..., Any]:
    """The same function in the scope of a request, which waits for a worker until it is called."""
    inside = _inside(request, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        wait.end()
        try:
            return inside(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = beneath(error)
            raise

    return call


def _inside(request: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        token = request_id.set(request)
        look(False)
        try:
            with span("work of a request", "work"):
                return function(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = beneath(error)
            raise
        finally:
            look(False)
            request_id.reset(token)

    return call


def beneath(error: BaseException) -> TracebackType | None:
    """The traceback of an exception without its outermost frame: that of a wrapper of ours.

    A wrapper that sets it and then raises anew (``raise`` alone) leaves no line in what the program
    prints.
    """
    trace = error.__traceback__
    return None if trace is None else trace.tb_next


def _replace(owner: Any, name: str, old: Any, new: Any) -> None:
    _name_as(old, new)
    new.__wrapped__ = old
    setattr(owner, name, new)


def _name_as(old: Any, new: Any) -> None:
    new.__name__, new.__qualname__, new.__doc__ = old.__name__, old.__qualname__, old.__doc__


_TARGETS = (
    ("threading", _wrap_start),
    (_EXECUTOR, _wrap_submit),
    ("anyio.to_thread", _wrap_run_sync),
    ("multiprocessing.pool", _wrap_thread_pool),
)
