"""Carries the request of a scope into threads and thread pools that are started inside it."""

from __future__ import annotations

import sys

from .span import request_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_wrapped: set[str] = set()


def follow() -> None:
    """Wrap ``Thread.start`` and ``ThreadPoolExecutor.submit``, each once it is imported.

    Imports neither: a program that never uses threads should not pay for them.
    """
    if len(_wrapped) == 2:
        return
    for module, name, wrap in _TARGETS:
        loaded = sys.modules.get(module)
        if loaded is not None and module not in _wrapped:
            _wrapped.add(module)
            wrap(getattr(loaded, name))


def _wrap_start(thread: type[Any]) -> None:
    start = thread.start

    def start_in_scope(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = request_id.get()
        if request is not None:
            self.run = _inside(request, self.run)
        return start(self, *args, **kwargs)

    _replace(thread, "start", start, start_in_scope)


def _wrap_submit(pool: type[Any]) -> None:
    submit = pool.submit

    def submit_in_scope(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        request = request_id.get()
        if request is not None:
            function = _inside(request, function)
        return submit(self, function, *args, **kwargs)

    _replace(pool, "submit", submit, submit_in_scope)


def _inside(request: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        token = request_id.set(request)
        try:
            return function(*args, **kwargs)
        finally:
            request_id.reset(token)

    return call


def _replace(owner: type[Any], name: str, old: Any, new: Any) -> None:
    new.__name__, new.__qualname__, new.__doc__ = old.__name__, old.__qualname__, old.__doc__
    new.__wrapped__ = old
    setattr(owner, name, new)


_TARGETS = (
    ("threading", "Thread", _wrap_start),
    ("concurrent.futures.thread", "ThreadPoolExecutor", _wrap_submit),
)
