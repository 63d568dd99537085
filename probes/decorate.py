"""The decorator ``probe``: a span around every call of a function.

Knows plain functions, methods, coroutines, generators and async generators. Outside a trace it
returns the function itself. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from . import recorder
from .span import span, suspendable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any, TypeVar, overload

    F = TypeVar("F", bound=Callable[..., Any])

# Bits of co_flags; the module inspect takes milliseconds to import.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200

if TYPE_CHECKING:

    @overload
    def probe(target: F) -> F: ...
    @overload
    def probe(
        target: str | None = None, *, name: str = "", kind: str = "host"
    ) -> Callable[[F], F]: ...
    def probe(target: Any = None, *, name: str = "", kind: str = "host") -> Any:
        """What the two forms have in common."""

else:

    def probe(target=None, *, name="", kind="host"):
        """Record a span around every call: ``@probe``, ``@probe("name")``, ``@probe(kind=…)``.

        The default name is the function's qualified name. A coroutine or generator gets one span
        from its first to its last instant, marked as one that may overlap others of its thread.
        """
        if target is not None and not isinstance(target, str):
            return _wrap(target, name, kind)
        chosen = target or name

        def decorate(function):
            return _wrap(function, chosen, kind)

        return decorate


def _wrap(function: Any, name: str, kind: str) -> Any:
    if not recorder.run:
        return function
    for wrapper in (staticmethod, classmethod):
        if type(function) is wrapper:
            made: type[Any] = wrapper
            return made(_wrap(function.__func__, name, kind))
    name = name or getattr(function, "__qualname__", "") or type(function).__qualname__
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & _COROUTINE:
        wrapped = _coroutine(function, name, kind)
    elif flags & _ASYNC_GENERATOR:
        wrapped = _async_generator(function, name, kind)
    elif flags & _GENERATOR:
        wrapped = _generator(function, name, kind)
    else:
        wrapped = _plain(function, name, kind)
    return _like(wrapped, function)


def _like(wrapped: Any, function: Any) -> Any:
    from functools import update_wrapper

    return update_wrapper(wrapped, function)


def _plain(function: Callable[..., Any], name: str, kind: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with span(name, kind):
            return function(*args, **kwargs)

    return call


def _coroutine(function: Callable[..., Any], name: str, kind: str) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with suspendable(name, kind):
            return await function(*args, **kwargs)

    return call


def _generator(
    function: Callable[..., Generator[Any, Any, Any]], name: str, kind: str
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with suspendable(name, kind):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(function: Callable[..., Any], name: str, kind: str) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        resume = inner.__anext__()
        with suspendable(name, kind):
            while True:
                try:
                    item = await resume
                except StopAsyncIteration:
                    return
                try:
                    resume = inner.asend((yield item))
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:  # thrown in by the caller: it goes to the function
                    resume = inner.athrow(error)

    return call
