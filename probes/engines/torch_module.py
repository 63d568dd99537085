"""Plain PyTorch: forward passes of a model as steps, by ``instrument(model)`` or of every model.

``instrument(model)`` records each call of this one module; with ``RCA_LLM_TORCH=auto`` every call
of a module that is not within another module's is recorded. What torch.compile traces is left
alone: there the calls of the compiled module from outside are seen. Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
from _thread import _local  # pyright: ignore[reportPrivateUsage]  # needs no imports
from itertools import count
from time import perf_counter_ns

from .. import gpu, recorder
from ..plain import text
from ..span import request_id
from . import asgi, emit
from .guard import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    M = TypeVar("M")

MARK = "__rca_llm__"
_here = _local()
_steps = count(1)


def version(module: Any) -> str:
    """Nothing: PyTorch is not the engine."""
    return ""


class Pass:
    """One forward pass of an outermost module."""

    def __init__(self, module: Any) -> None:
        self.name = text(type(module).__name__)
        self.number = next(_steps)
        self.began = perf_counter_ns()
        request = request_id.get()
        if request is not None:
            asgi.claim()
            emit.event("scheduled", request, self.began)
        batch = [] if request is None else [(request, "unknown", -1)]
        gpu.push_step(self.number)
        self.step = emit.Step.of(self.number, self.began, batch)

    def end(self) -> None:
        """It has returned, or raised."""
        now = perf_counter_ns()
        gpu.pop_step()
        emit.span("forward " + self.name, "compute", self.began, now)
        self.step.end(now, ())


def _never() -> bool:
    return False


@quiet
def _begin(module: Any) -> Pass | None:
    return Pass(module) if recorder.run else None


@quiet
def _finish(made: Pass) -> None:
    made.end()


def _called(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, recorded where no other module's call is under way in this thread."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    # The compiler knows this function's answer, and so leaves out the rest.
    compiling: Callable[[], bool] = getattr(compiler, "is_compiling", _never)

    def outermost(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or getattr(_here, "inside", False):
            return call(self, *args, **kwargs)
        _here.inside = True
        made = _begin(self)
        try:
            return call(self, *args, **kwargs)
        finally:
            _here.inside = False
            if made is not None:
                _finish(made)

    return outermost


def instrument(model: M) -> M:
    """Record every forward pass of ``model`` as a step; the model itself, also outside a trace.

    Its class becomes a subclass of the same name with a ``__call__`` of its own, so that hooks,
    parameters and copies stay as they are. What is no module is returned as it is.
    """
    try:
        _instrument(model)
    except Exception:  # an object that resists: it stays as it is
        pass
    return model


def _instrument(model: Any) -> None:
    kind: Any = model.__class__
    if not recorder.run or hasattr(kind, MARK) or not callable(getattr(model, "forward", None)):
        return
    inherited: Callable[..., Any] = kind.__call__
    body = {
        "__call__": _called(inherited),
        MARK: True,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        # Copies and pickles are of the model's own class.
        "__reduce_ex__": _reduced(kind),
    }
    model.__class__ = type(kind.__name__, (kind,), body)


def _reduced(kind: Any) -> Callable[..., Any]:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        make, arguments, *rest = kind.__reduce_ex__(self, protocol)
        if arguments != (self.__class__,):
            return (make, arguments, *rest)
        return (object.__new__, (kind,), *rest)

    return reduce_ex


def _every(call: Callable[..., Any]) -> Callable[..., Any]:
    """`Module.__call__` of all modules."""
    return _called(call)


TARGETS: dict[str, dict[str, Any]] = {
    "torch.nn": {"Module.__call__": _every} if os.environ.get("RCA_LLM_TORCH") == "auto" else {}
}
