"""TensorRT-LLM's PyTorch executor: batches as steps, and the requests in them. Unverified.

Written from the source of one commit, never run: no wheel could be opened. What does not exist in
another version is left out, as everywhere. The C++ executor shows nothing to Python.
"""

from __future__ import annotations

from itertools import count
from time import perf_counter_ns

from .. import gpu
from ..plain import text
from ..span import span
from . import emit
from .guard import quiet
from .patch import package_version, spanned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MAX_OPEN = 64
_steps = count(1)
_open: dict[int, tuple[Any, emit.Step]] = {}
_running: set[str] = set()


def version(module: Any) -> str:
    """The engine and its version."""
    return package_version("tensorrt_llm")


def _forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, scheduled_batch: Any, *args: Any, **kwargs: Any) -> Any:
        number = _begun(scheduled_batch)
        try:
            with span("tensorrt_llm forward", "compute", step=number):
                return forward(self, scheduled_batch, *args, **kwargs)
        finally:
            if number is not None:
                gpu.pop_step()

    return call


@quiet
def _begun(scheduled: Any) -> int | None:
    rows = list(_batch(scheduled))
    if not rows:
        return None
    now, number = perf_counter_ns(), next(_steps)
    for name, _, _ in rows:
        if name not in _running:
            _running.add(name)
            emit.event("scheduled", name, now)
    if len(_open) >= MAX_OPEN:
        _open.clear()
    _open[id(scheduled)] = (scheduled, emit.Step.of(number, now, rows))
    gpu.push_step(number)
    return number


def _batch(scheduled: Any) -> Iterator[tuple[str, str, int]]:
    for request in scheduled.context_requests:
        yield text(request.py_request_id), "prefill", -1
    for request in scheduled.generation_requests:
        yield text(request.py_request_id), "decode", 1


def _update(update: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, sample_state: Any, *args: Any, **kwargs: Any) -> Any:
        with span("tensorrt_llm update_requests"):
            result = update(self, sample_state, *args, **kwargs)
        _updated(sample_state)
        return result

    return call


@quiet
def _updated(state: Any) -> None:
    found = _open.pop(id(getattr(state, "scheduled_requests", None)), None)
    if found is not None:
        # How many tokens each request got is not told here.
        found[1].end(perf_counter_ns(), ())


def _respond(respond: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        finished = respond(*args, **kwargs)
        _responded(finished)
        return finished

    return call


@quiet
def _responded(finished: Any) -> None:
    now = perf_counter_ns()
    for request in finished or ():
        name = text(request.py_request_id)
        _running.discard(name)
        emit.event("finished", name, now)


TARGETS = {
    "tensorrt_llm._torch.pyexecutor.py_executor": {
        "PyExecutor._prepare_and_schedule_batch": spanned("tensorrt_llm schedule"),
        "PyExecutor._forward_step": _forward,
        "PyExecutor._update_requests": _update,
        "PyExecutor._handle_responses": _respond,
    }
}
