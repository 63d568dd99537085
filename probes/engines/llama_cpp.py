"""llama-cpp-python: a completion is a request, an ``eval`` and the sampling after it a step.

``Llama`` serves one request at a time. A step lasts from one ``eval`` to the next: several tokens
are a prefill, one is a decode step. Requests are called ``llama-PID-N``, or what the ``request``
scope around them is called.
"""

from __future__ import annotations

import os
from itertools import count
from time import perf_counter_ns

from .. import gpu
from ..span import request_id
from . import asgi, emit
from .guard import around, quiet
from .patch import package_version, spanned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

HERE = "_rca_llm_completion"
_requests, _steps = count(1), count(1)


def version(module: Any) -> str:
    """The library and its version."""
    return package_version("llama_cpp")


class Completion:
    """One completion of a model that is under way."""

    def __init__(self) -> None:
        now = perf_counter_ns()
        self.scope = request_id.get()
        self.id = self.scope or "llama-%d-%d" % (os.getpid(), next(_requests))
        self.step: emit.Step | None = None
        self.tokens = 0
        if self.scope is None:
            emit.event("arrival", self.id, now)
        else:
            asgi.claim()
        emit.event("scheduled", self.id, now)

    def open_step(self, tokens: int, now: int) -> None:
        """Tokens go through the model; the step before is over."""
        self.close_step(now)
        number = next(_steps)
        gpu.push_step(number)
        phase = "prefill" if tokens > 1 or not self.tokens else "decode"
        self.step = emit.Step.of(number, now, [(self.id, phase, tokens)])

    def close_step(self, now: int) -> None:
        """The step under way is over."""
        step, self.step = self.step, None
        if step is not None:
            gpu.pop_step()
            step.end(now, ())

    def sampled(self, token: Any, end_token: int) -> None:
        """A token was chosen; the one that ends the text is not part of it."""
        if token != end_token:
            self.tokens += 1
            emit.event("token", self.id, perf_counter_ns(), 1)

    def end(self, broken_off: bool) -> None:
        """Its text is complete, or nobody wants the rest."""
        now = perf_counter_ns()
        self.close_step(now)
        if self.scope is None or broken_off:
            emit.event("aborted" if broken_off else "finished", self.id, now)


def _whole(make: Callable[..., Any]) -> Callable[..., Any]:
    """A generator function of `Llama` whose run is a completion, unless it is within one."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _run(self, make(self, *args, **kwargs), _prompt(args, kwargs))

    return call


def _prompt(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many tokens a prompt has that is given as tokens, -1 for text."""
    given = args[0] if args else kwargs.get("tokens")
    return len(given) if given is not None and not isinstance(given, (str, bytes)) else -1


@quiet
def _begin(model: Any, prompt: int) -> Completion | None:
    found: Completion | None = model.__dict__.get(HERE)
    made = None
    if found is None:
        found = made = Completion()
        model.__dict__[HERE] = made
    if prompt >= 0:
        emit.event("prompt_tokens", found.id, perf_counter_ns(), prompt)
    return made


@quiet
def _end(model: Any, made: Completion | None, broken_off: bool) -> None:
    if made is not None:
        model.__dict__.pop(HERE, None)
        made.end(broken_off)


def _run(model: Any, inner: Generator[Any, Any, Any], prompt: int) -> Generator[Any, Any, Any]:
    """The same generator; what it is sent and what it returns pass through."""
    made = _begin(model, prompt)
    # One that is left before its end (the client has gone, max_tokens is reached) is closed.
    broken_off = True
    try:
        result: Any = yield from inner
        broken_off = False
        return result
    except GeneratorExit:
        broken_off = not getattr(made, "tokens", 0)
        raise
    finally:
        _end(model, made, broken_off)


def _of(model: Any) -> Completion | None:
    return model.__dict__.get(HERE)  # type: ignore[no-any-return]


def _eval_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Completion | None]:
    began, found = perf_counter_ns(), _of(args[0])
    if found is not None:
        found.open_step(len(args[1] if len(args) > 1 else kwargs["tokens"]), began)
    return began, found


def _eval_ends(state: Any, result: Any, error: BaseException | None) -> None:
    if state is not None:
        emit.span("llama eval", "compute", state[0], perf_counter_ns())


def _sample_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Any]:
    return perf_counter_ns(), args[0]


def _sample_ends(state: Any, token: Any, error: BaseException | None) -> None:
    began, model = state
    emit.span("llama sample", "compute", began, perf_counter_ns())
    found = _of(model)
    if found is not None and error is None:
        found.sampled(token, model.token_eos())


TARGETS = {
    "llama_cpp.llama": {
        "Llama._create_completion": _whole,
        "Llama.generate": _whole,
        "Llama.eval": around(_eval_begins, _eval_ends),
        "Llama.sample": around(_sample_begins, _sample_ends),
        "Llama.tokenize": spanned("llama tokenize", "tokenize"),
        "Llama.detokenize": spanned("llama detokenize", "detokenize"),
        "Llama.load_state": spanned("llama load_state", "load"),
    }
}
