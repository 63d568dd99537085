"""Keeps what a wrapper of an engine does for itself from reaching the engine.

The engine's own calls stay outside: what they raise passes. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from ..recorder import FAULTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Also what an engine's objects raise when they are not as we know them. Not Exception: what a
# signal handler of the program raises in here (a timeout, say) belongs to the program.
ENGINE_FAULTS = (*FAULTS, ArithmeticError, AssertionError, LookupError, RuntimeError)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, giving None where it would raise."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ENGINE_FAULTS:
            return None

    return call


def around(before: Callable[..., Any], after: Callable[..., Any]) -> Callable[..., Any]:
    """Makes wrappers that run ``before(args, kwargs)``, the call, and ``after``.

    ``after`` is given what ``before`` returned, the call's result, and the exception where it
    raised, else None.
    """
    begin, end = quiet(before), quiet(after)

    def make(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            state = begin(args, kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                end(state, None, error)
                raise
            end(state, result, None)
            return result

        return call

    return make
