"""vLLM's frontend (V1): requests in, tokenised, handed to the engine, detokenised, out.

``AsyncLLM``, ``LLMEngine`` and every server on them go through the same OutputProcessor, so that is
where requests begin and end. Clients know a request by its external id, the engine by an internal
one: the first is recorded as the alias of the second.
"""

from __future__ import annotations

from _contextvars import ContextVar
from time import perf_counter_ns

from ..recorder import FAULTS, anchor
from . import asgi, emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# When this task tokenised. The request's id comes into being after that, often in another task, but
# the time of its arrival, taken before, goes with it.
_tokenised: ContextVar[tuple[int, int] | None] = ContextVar("rca_llm_tokenised", default=None)
_by_arrival: dict[float, tuple[int, int]] = {}
MAX_ARRIVALS = 4096
_live: set[str] = set()
_done: dict[str, int] = {}  # when each request that ended in these outputs did


def version(module: Any) -> str:
    """Nothing: the engine's process tells it."""
    return ""


# ------------------------------------------------------------------ requests in


def _tokenize(tokenize: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        try:
            return tokenize(*args, **kwargs)
        finally:
            _note_tokenised(began)

    return call


def _tokenize_async(tokenize: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        try:
            return await tokenize(*args, **kwargs)
        finally:
            _note_tokenised(began)

    return call


def _note_tokenised(began: int) -> None:
    _tokenised.set((began, perf_counter_ns()))


def _hand_over(process: Callable[..., Any]) -> Callable[..., Any]:
    """Plain or coroutine: only the call itself matters."""

    def call(self: Any, prompt: Any, arrival_time: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = _tokenised.get()
            if found is not None:
                if len(_by_arrival) >= MAX_ARRIVALS:
                    _by_arrival.clear()
                _by_arrival[arrival_time] = found
        except FAULTS:
            pass
        return process(self, prompt, arrival_time, *args, **kwargs)

    return call


def _process_inputs(process: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        request = process(*args, **kwargs)
        try:
            emit.span("vllm process_inputs", "host", began, perf_counter_ns())
        except FAULTS:
            pass
        return request

    return call


def _process_and_tokenize(process: Callable[..., Any]) -> Callable[..., Any]:
    """Up to vLLM 0.11 the same function tokenises."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        made = process(*args, **kwargs)
        try:
            name = made[1].request_id  # the prompt, and the request
            emit.span("vllm tokenize", "tokenize", began, perf_counter_ns(), name, overlaps=True)
        except FAULTS:
            pass
        return made

    return call


def _add(add: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _added(request)
        except FAULTS:
            pass
        return add(self, request, *args, **kwargs)

    return call


def _added(request: Any) -> None:
    name, now = request.request_id, perf_counter_ns()
    if name in _live:
        return  # one more piece of a streamed input
    _live.add(name)
    external = getattr(request, "external_req_id", None)
    if external and external != name:
        emit.alias(name, external, now)
    asgi.joined(name)
    emit.event("arrival", name, _monotonic(request.arrival_time))
    prompt = request.prompt_token_ids
    if prompt is not None:
        emit.event("prompt_tokens", name, now, len(prompt))
    found = _by_arrival.get(request.arrival_time)
    if found is not None:
        emit.span("vllm tokenize", "tokenize", found[0], found[1], name, overlaps=True)


def _monotonic(wall: float) -> int:
    """A time of the past, in seconds since 1970, on our clock."""
    monotonic, utc, _ = anchor()
    return monotonic - max(utc - int(wall * 1e9), 0)


# ------------------------------------------------------------------ tokens out


def _process_outputs(process: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        began, before = perf_counter_ns(), _states(self)
        result = process(self, outputs, *args, **kwargs)
        try:
            now = perf_counter_ns()
            if outputs:
                emit.span("vllm process_outputs", "detokenize", began, now)
            if _states(self) != before:  # most outputs end no request
                sent = args[0] if args else kwargs.get("engine_core_timestamp")
                _ended(self, outputs, sent, began, now)
            _done.clear()
        except FAULTS:
            pass
        return result

    return call


def _count(count: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM is done with a request's last output: it goes into the statistics."""

    def call(self: Any, req_state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _done[req_state.request_id] = perf_counter_ns()
        except FAULTS:
            pass
        return count(self, req_state, *args, **kwargs)

    return call


def _states(processor: Any) -> int:
    return len(getattr(processor, "request_states", ()))


def _ended(processor: Any, outputs: Any, sent: float | None, began: int, now: int) -> None:
    for output in outputs:
        name = output.request_id
        if name in _live and name not in processor.request_states:
            _finished(name, sent, began, now)


def _finished(name: str, sent: float | None, began: int, ended: int) -> None:
    """Its last output came here at ``began`` and was made ready for the client by ``ended``."""
    now = _done.get(name, ended)
    _live.discard(name)
    if sent is not None:
        left = min(int(sent * 1e9), began)
        emit.span("vllm output in flight", "serialize", left, began, name, overlaps=True)
    emit.span("vllm detokenize", "detokenize", began, now, name, overlaps=True)
    emit.event("finished", name, now)
    asgi.left(name, now)


def _abort(abort: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        ended = abort(self, *args, **kwargs)
        try:
            now = perf_counter_ns()
            for name in [name for name in _live if name not in self.request_states]:
                _live.discard(name)
                emit.event("aborted", name, now)
        except FAULTS:
            pass
        return ended

    return call


# ------------------------------------------------------------------ between the two processes


def _encode(encode: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        result = encode(self, message, *args, **kwargs)
        _carried("vllm encode", began, message)
        return result

    return call


def _decode(decode: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        message = decode(self, *args, **kwargs)
        _carried("vllm decode", began, message)
        return message

    return call


def _carried(name: str, began: int, message: Any) -> None:
    request = getattr(message, "request_id", None)
    known = request if isinstance(request, str) else None
    emit.span(name, "serialize", began, perf_counter_ns(), known)


TARGETS = {
    "vllm.renderers.base": {
        "BaseRenderer.tokenize_prompts": _tokenize,
        "BaseRenderer.tokenize_prompts_async": _tokenize_async,
        "BaseRenderer.process_for_engine": _hand_over,
        "BaseRenderer.process_for_engine_async": _hand_over,
    },
    "vllm.v1.engine.input_processor": {"InputProcessor.process_inputs": _process_inputs},
    "vllm.v1.engine.processor": {"Processor.process_inputs": _process_and_tokenize},
    "vllm.v1.engine.output_processor": {
        "OutputProcessor.add_request": _add,
        "OutputProcessor.process_outputs": _process_outputs,
        "OutputProcessor._update_stats_from_finished": _count,
        "OutputProcessor.abort_requests": _abort,
    },
    "vllm.v1.serial_utils": {
        "MsgpackEncoder.encode": _encode,
        "MsgpackEncoder.encode_into": _encode,
        "MsgpackDecoder.decode": _decode,
    },
}
