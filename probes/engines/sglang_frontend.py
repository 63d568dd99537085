"""SGLang's frontend: requests in, tokenised, out again; `rid` is their name in every process."""

from __future__ import annotations

from _contextvars import ContextVar
from time import perf_counter_ns

from . import asgi, emit
from .guard import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# When the request of this task came in.
_arrived: ContextVar[int] = ContextVar("rca_llm_arrived", default=0)
_live: set[str] = set()


def version(module: Any) -> str:
    """Nothing: the scheduler's process tells it."""
    return ""


def _generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    """An asynchronous generator: only the time of its call matters."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _arrived.set(perf_counter_ns())
        return generate(*args, **kwargs)

    return call


@quiet
def _arrival(name: Any) -> None:
    if isinstance(name, str) and name not in _live:
        _live.add(name)
        emit.event("arrival", name, _arrived.get() or perf_counter_ns())
        asgi.joined(name)


def _tokenize(tokenize: Callable[..., Any]) -> Callable[..., Any]:
    async def call(self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(obj, "rid", None)
        _arrival(name)
        began = perf_counter_ns()
        try:
            return await tokenize(self, obj, *args, **kwargs)
        finally:
            known = name if isinstance(name, str) else None
            emit.span("sglang tokenize", "tokenize", began, perf_counter_ns(), known, overlaps=True)

    return call


def _send(send: Callable[..., Any]) -> Callable[..., Any]:
    """Requests that were tokenised with others, or are one of several answers to one prompt."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            _arrival(getattr(argument, "rid", None))
        return send(self, *args, **kwargs)

    return call


def _handle(handle: Callable[..., Any]) -> Callable[..., Any]:
    """Plain up to 0.5.6, a coroutine later."""

    def call(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        result = handle(self, output, *args, **kwargs)
        if hasattr(result, "__await__"):
            return _later(result, output, began)
        _handled(output, began)
        return result

    return call


async def _later(result: Any, output: Any, began: int) -> Any:
    value = await result
    _handled(output, began)
    return value


@quiet
def _handled(output: Any, began: int) -> None:
    now = perf_counter_ns()
    emit.span("sglang outputs", "detokenize", began, now, overlaps=True)
    for name, reason in zip(output.rids, output.finished_reasons):  # noqa: B905  # Python 3.7
        if reason is None or name not in _live:
            continue
        _live.discard(name)
        cut: bool = hasattr(reason, "get") and reason.get("type") == "abort"
        emit.event("aborted" if cut else "finished", name, now)
        asgi.left(name, now)


TARGETS = {
    "sglang.srt.managers.tokenizer_manager": {
        "TokenizerManager.generate_request": _generate,
        "TokenizerManager._tokenize_one_request": _tokenize,
        "TokenizerManager._send_one_request": _send,
        "TokenizerManager._handle_batch_output": _handle,
    }
}
