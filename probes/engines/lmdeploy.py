"""LMDeploy: streams of both of its engines as requests, forward passes of the PyTorch engine.

Clients name sessions, which may hold several requests; a request is ``lmdeploy-SESSION-N``. What
is in a batch is not known where the forward pass runs: such steps count as everybody's.
"""

from __future__ import annotations

from itertools import count
from time import perf_counter_ns, time_ns

from ..plain import text
from . import asgi, emit
from .guard import quiet
from .patch import package_version, spanned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import Any

SCHEDULED = 2
"""`lmdeploy.messages.EventType.SCHEDULED`."""
_requests, _steps = count(1), count(1)


def version(module: Any) -> str:
    """The engine and its version."""
    return package_version("lmdeploy")


class Stream:
    """One request that is being answered."""

    def __init__(self, session: object, prompt: Any) -> None:
        now = perf_counter_ns()
        self.id = "lmdeploy-%s-%d" % (text(session), next(_requests))
        self.scheduled = self.done = False
        emit.event("arrival", self.id, now)
        asgi.joined(self.id)
        if prompt is not None:
            emit.event("prompt_tokens", self.id, now, len(prompt))

    def piece(self, output: Any) -> None:
        """The engine has handed out tokens, and told when it first scheduled the request."""
        now = perf_counter_ns()
        metrics = getattr(output, "req_metrics", None) or getattr(output, "metrics_info", None)
        for event in getattr(metrics, "engine_events", None) or ():
            if not self.scheduled and int(event.type) == SCHEDULED:
                self.scheduled = True
                ago = time_ns() - int(event.timestamp * 1e9)  # a wall clock
                emit.event("scheduled", self.id, now - max(ago, 0))
        # Up to 0.10 a piece may repeat earlier tokens: how many are new is not known.
        new = 0 if hasattr(output, "num_token") else len(output.token_ids or ())
        if new or hasattr(output, "num_token"):
            emit.event("token", self.id, now, new)
        self.done = getattr(output.status, "name", "") == "FINISH"

    def end(self) -> None:
        """The stream is over."""
        now = perf_counter_ns()
        emit.event("finished" if self.done else "aborted", self.id, now)
        asgi.left(self.id, now)


def _infer(infer: Callable[..., Any]) -> Callable[..., Any]:
    async def call(
        self: Any, session_id: Any, input_ids: Any = None, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        stream = _opened(session_id, input_ids)
        inner = infer(self, session_id, input_ids, *args, **kwargs)
        try:
            async for output in inner:
                _piece(stream, output)
                yield output
        finally:
            await inner.aclose()
            _ended(stream)

    return call


_opened = quiet(Stream)
_piece = quiet(Stream.piece)
_ended = quiet(Stream.end)


def _step(forward: Callable[..., Any]) -> Callable[..., Any]:
    async def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        began, step = perf_counter_ns(), _begun()
        try:
            return await forward(self, inputs, *args, **kwargs)
        finally:
            _over(step, began)

    return call


@quiet
def _begun() -> emit.Step:
    return emit.Step.of(next(_steps), perf_counter_ns(), [])


@quiet
def _over(step: emit.Step | None, began: int) -> None:
    now = perf_counter_ns()
    emit.span("lmdeploy forward", "compute", began, now, overlaps=True)
    if step is not None:
        step.end(now, ())


_AGENT = {"BaseModelAgent._async_step": _step, "BaseModelAgent._async_step_background": _step}
TARGETS = {
    "lmdeploy.pytorch.engine.engine_instance": {"EngineInstance.async_stream_infer": _infer},
    "lmdeploy.turbomind.turbomind": {"TurboMindInstance.async_stream_infer": _infer},
    "lmdeploy.pytorch.engine.model_agent.agent": _AGENT,
    "lmdeploy.pytorch.engine.model_agent": _AGENT,
    "lmdeploy.pytorch.paging.scheduler": {
        "Scheduler.schedule": spanned("lmdeploy schedule"),
        "Scheduler.schedule_running": spanned("lmdeploy schedule"),
    },
}
