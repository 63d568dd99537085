"""vLLM's scheduler (V1): requests queued, preempted and resumed, engine steps, tokens, KV usage.

A step lasts from the call of ``schedule`` to the end of the ``update_from_output`` that belongs to
the same SchedulerOutput. Under asynchronous scheduling steps overlap, so they are found again by
that object and never by "the last one".
"""

from __future__ import annotations

from time import perf_counter_ns

from ..recorder import FAULTS
from . import emit
from .patch import package_version, spanned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# Steps whose output never came (a failed execution): more than this many are forgotten.
MAX_OPEN = 64
# Lengths of queues and KV usage are sampled at most once in this many ns.
SAMPLE_NS = 10_000_000

# Of an engine's steps, in the order of their scheduling; the attribute goes with the object to
# worker processes.
STEP = "_rca_llm_step"
_count = [0]
_sampled = [0]
# By identity of the SchedulerOutput, which is held so that no other takes its place.
_open: dict[int, tuple[Any, emit.Step]] = {}
# Tokens that a preempted request had computed and must compute again.
_lost: dict[str, int] = {}


def version(module: Any) -> str:
    """The engine and its version, for the header of the run."""
    return package_version("vllm")


def _schedule(schedule: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        output = schedule(self, *args, **kwargs)
        try:
            _scheduled(self, output, began)
        except FAULTS:
            pass
        return output

    return call


def _scheduled(scheduler: Any, output: Any, began: int) -> None:
    now = perf_counter_ns()
    emit.span("vllm schedule", "host", began, now)
    if now - _sampled[0] > SAMPLE_NS:
        _sampled[0] = now
        _samples(scheduler, now)
    if not output.num_scheduled_tokens:
        return
    _count[0] += 1
    setattr(output, STEP, _count[0])
    for new in output.scheduled_new_reqs:
        emit.event("scheduled", new.req_id, began)
    for request in _resumed(output.scheduled_cached_reqs):
        emit.event("resumed", request, began)
    if len(_open) >= MAX_OPEN:
        _open.clear()
    _open[id(output)] = (output, emit.Step(_count[0], began, _batch(scheduler, output)))


def _resumed(cached: Any) -> Any:
    """The ids of requests that were preempted and are scheduled again."""
    known = getattr(cached, "resumed_req_ids", None)
    if known is not None:
        return known
    flags = getattr(cached, "resumed_from_preemption", ())  # up to vLLM 0.11
    return [cached.req_ids[place] for place, resumed in enumerate(flags) if resumed]


def _batch(scheduler: Any, output: Any) -> Iterator[tuple[str, str, int]]:
    """Every request of a step with its phase and tokens."""
    tokens, requests = output.num_scheduled_tokens, scheduler.requests
    for new in output.scheduled_new_reqs:
        name = new.req_id
        yield name, "recompute" if name in _lost else "prefill", tokens[name]
    cached = output.scheduled_cached_reqs
    computed = cached.num_computed_tokens
    for place, name in enumerate(cached.req_ids):
        done = computed[place]
        if name in _lost and done < _lost[name]:
            phase = "recompute"
        elif done < requests[name].num_prompt_tokens:
            phase = "prefill"
        else:
            phase = "decode"
        yield name, phase, tokens[name]


def _samples(scheduler: Any, now: int) -> None:
    emit.sample("queue.waiting", len(scheduler.waiting), now)
    emit.sample("queue.running", len(scheduler.running), now)
    cache = scheduler.kv_cache_manager
    emit.sample("kv.usage", cache.usage, now)
    emit.sample("kv.free_blocks", cache.block_pool.get_num_free_blocks(), now)


def _update(update: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        outputs = update(self, scheduler_output, *args, **kwargs)
        try:
            _updated(scheduler_output, outputs, began)
        except FAULTS:
            pass
        return outputs

    return call


def _updated(scheduler_output: Any, outputs: Any, began: int) -> None:
    now = perf_counter_ns()
    emit.span("vllm update_from_output", "host", began, now)
    found = _open.pop(id(scheduler_output), None)
    if found is None:
        return
    each = [output for client in outputs.values() for output in client.outputs]
    found[1].end(now, [(o.request_id, len(o.new_token_ids)) for o in each])
    for output in each:
        if output.finish_reason is not None:
            _lost.pop(output.request_id, None)


def _add(add: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            name, now = request.request_id, perf_counter_ns()
            emit.event("queued", name, now)
            emit.event("prompt_tokens", name, now, request.num_prompt_tokens)
        except FAULTS:
            pass
        return add(self, request, *args, **kwargs)

    return call


def _preempt(preempt: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            name = request.request_id
            _lost[name] = max(request.num_computed_tokens, _lost.get(name, 0))
            emit.event("preempted", name, perf_counter_ns())
        except FAULTS:
            pass
        return preempt(self, request, *args, **kwargs)

    return call


def _finish(finish: Callable[..., Any]) -> Callable[..., Any]:
    """Aborted from outside; the frontend records that it was, here only memory is given back."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        ended = finish(self, *args, **kwargs)
        try:
            for name in list(_lost):
                if name not in self.requests:
                    del _lost[name]
        except FAULTS:
            pass
        return ended

    return call


TARGETS = {
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.schedule": _schedule,
        "Scheduler.update_from_output": _update,
        "Scheduler.add_request": _add,
        "Scheduler._preempt_request": _preempt,
        "Scheduler.finish_requests": _finish,
        "Scheduler.get_grammar_bitmask": spanned("vllm get_grammar_bitmask"),
    }
}
