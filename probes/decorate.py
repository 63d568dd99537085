"""The decorator ``probe``: a span around every call of a function.

Knows functions, methods, coroutines, generators and async generators, and other callable objects,
which stay what they are in every other respect. Outside a trace, and for what cannot be called or
is a class, it returns what it was given. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from . import recorder
from .plain import text
from .span import OFF, span, suspendable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import Any, TypeVar, overload

    F = TypeVar("F", bound=Callable[..., Any])

# Bits of co_flags; the module inspect takes milliseconds to import.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200
_VARARGS, _VARKEYWORDS = 0x04, 0x08

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
        chosen = ("" if target is None else text(target)) or text(name)

        def decorate(function):
            return _wrap(function, chosen, kind)

        return decorate


def _wrap(function: Any, name: str, kind: str) -> Any:
    if not recorder.run:
        return function
    try:
        return _wrapped(function, text(name), text(kind))
    except Exception:  # an object that resists being looked at: it stays as it is
        return function


_type: Any = type
_FUNCTION: Any = type(_wrap)
_METHOD: Any = type(OFF.__enter__)
_BOUND_LATER: Any = (staticmethod, classmethod)


def _wrapped(function: Any, name: str, kind: str) -> Any:
    made: Any = _type(function)
    if made in _BOUND_LATER:
        return made(_wrapped(function.__func__, name, kind))
    if made is _FUNCTION:
        return _function(function, name or text(function.__qualname__), kind)
    if made is _METHOD:
        return _METHOD(_wrapped(function.__func__, name, kind), function.__self__)
    if isinstance(function, type) or not callable(function):
        return function
    own = getattr(function, "__qualname__", "") or made.__qualname__
    return Called(function, name or text(own), kind)


class Called:
    """A callable object that is no Python function, with a span around every call of it."""

    def __init__(self, target: Any, name: str, kind: str) -> None:
        self.__dict__.update(_target=target, _name=name, _kind=kind, __wrapped__=target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what is wrapped."""
        with span(self._name, self._kind):
            return self._target(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_target":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        bind: Any = getattr(_type(self._target), "__get__", None)
        bound = self._target if bind is None else bind(self._target, owner, kind)
        return self if bound is self._target else Called(bound, self._name, self._kind)


def _function(function: Any, name: str, kind: str) -> Any:
    code = function.__code__
    if code.co_flags & _ASYNC_GENERATOR:
        return _like(_async_generator(function, name, kind), function)
    around: Any = span if not code.co_flags & (_COROUTINE | _GENERATOR) else suspendable
    wrapped = _maker(_form(code.co_flags), *_parameters(code))(around, function, name, kind)
    wrapped.__defaults__ = function.__defaults__
    wrapped.__kwdefaults__ = function.__kwdefaults__
    return _like(wrapped, function)


def _like(wrapped: Any, function: Any) -> Any:
    from functools import update_wrapper

    return update_wrapper(wrapped, function)


# A wrapper has the parameters of its function: packing arguments into a tuple and a dictionary, and
# out of them again, costs more than the span.
_SOURCE = """
def rca_llm_make(rca_llm_span, rca_llm_function, rca_llm_name, rca_llm_kind):
    {define} call({taken}):
        with rca_llm_span(rca_llm_name, rca_llm_kind):
            return ({wait} rca_llm_function({given}))
    return call
"""
_ANYTHING = ("*args, **kwargs", "*args, **kwargs")
_makers: dict[tuple[str, str, str], Any] = {}


def _form(flags: int) -> tuple[str, str]:
    if flags & _COROUTINE:
        return "async def", "await"
    return "def", "yield from" if flags & _GENERATOR else ""


def _maker(form: tuple[str, str], taken: str, given: str) -> Any:
    """What makes wrappers of a form that take some parameters and hand them on as given."""
    define, wait = form
    key = (define, wait, taken)
    found = _makers.get(key)
    if found is None:
        source = _SOURCE.format(define=define, taken=taken, wait=wait, given=given)
        scope: dict[str, Any] = {}
        exec(compile(source, "<rca_llm.probe>", "exec"), scope)
        found = _makers[key] = scope["rca_llm_make"]
    return found


def _parameters(code: Any) -> tuple[str, str]:
    """The parameters of a function with that code, as source, and how to hand them on."""
    positional, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    starred = bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    names = code.co_varnames[: named + starred]
    if not all(map(_is_plain, names)):
        return _ANYTHING
    taken = given = [*names[:positional]]
    stars = [*names[named:]]
    only = getattr(code, "co_posonlyargcount", 0)  # Python >= 3.8
    if only:
        taken = [*taken[:only], "/", *taken[only:]]
    if code.co_flags & _VARARGS:
        rest = ["*" + stars.pop(0)]
        taken, given = taken + rest, given + rest
    elif code.co_kwonlyargcount:
        taken = [*taken, "*"]
    rest = ["**" + name for name in stars]
    taken = [*taken, *names[positional:named], *rest]
    given = [*given, *("%s=%s" % (name, name) for name in names[positional:named]), *rest]
    return ", ".join(taken), ", ".join(given)


def _is_plain(name: str) -> bool:
    """Whether a compiler takes a parameter's name as it is; code that none made may have any."""
    from keyword import iskeyword

    reserved = iskeyword(name) or name.startswith("rca_llm_") or name == "__debug__"
    return name.isidentifier() and name.isascii() and not reserved


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
