"""vLLM's scheduler (V1): requests queued, preempted and resumed, engine steps, tokens, KV usage.

A step lasts from the call of ``schedule`` to the end of the ``update_from_output`` that belongs to
the same SchedulerOutput. Under asynchronous scheduling steps overlap, so they are found again by
that object and never by "the last one".
"""

from __future__ import annotations

from time import perf_counter_ns

from ..recorder import FAULTS, MAX_NAMES, current
from . import emit, vllm_connector
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
_out: set[str] = set()  # preempted and not yet resumed
# The cells of requests that decode one token a step, and the recorder whose numbers they hold.
_decoding: dict[str, bytes] = {}
_owner: list[Any] = [None]
_last: list[Any] = [[], b""]  # the requests and cells of the last step that only decoded


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
    for name in output.finished_req_ids:
        _forget(name)
    if not hasattr(scheduler, "_preempt_request"):
        _preempted_unsaid(scheduler, began)
    if not output.num_scheduled_tokens:
        return
    if not _count[0]:
        config = getattr(scheduler, "scheduler_config", None)
        emit.setting("async_scheduling", getattr(config, "async_scheduling", None))
    _count[0] += 1
    setattr(output, STEP, _count[0])
    for new in output.scheduled_new_reqs:
        emit.event("scheduled", new.req_id, began)
        vllm_connector.fetched(new.req_id, began)
    for request in _resumed(output.scheduled_cached_reqs):
        emit.event("resumed", request, began)
        _out.discard(request)
    if len(_open) >= MAX_OPEN:
        _open.clear()
    _open[id(output)] = (output, emit.Step(_count[0], began, *_batch(scheduler, output)))


def _preempted_unsaid(scheduler: Any, began: int) -> None:
    """Up to vLLM 0.11 no function preempts; whom it happened to waits in front of all others."""
    for request in scheduler.waiting:
        if request.status.name != "PREEMPTED":
            return
        if request.request_id not in _out:
            _lose(request.request_id, request.num_tokens - 1, began)


def _lose(name: str, computed: int, time: int) -> None:
    """A request is preempted: what it had computed it must compute again."""
    _out.add(name)
    _no_longer_decoding(name)
    _lost[name] = max(computed, _lost.get(name, 0))
    emit.event("preempted", name, time)


def _resumed(cached: Any) -> Any:
    """The ids of requests that were preempted and are scheduled again."""
    known = getattr(cached, "resumed_req_ids", None)
    if known is not None:
        return known
    flags = getattr(cached, "resumed_from_preemption", ())  # up to vLLM 0.11
    return [cached.req_ids[place] for place, resumed in enumerate(flags) if resumed]


def _batch(scheduler: Any, output: Any) -> tuple[list[str], bytes]:
    """The requests of a step and their cells; a batch that decodes as before has them ready."""
    _use_cells_of(current())
    cached, news = output.scheduled_cached_reqs, output.scheduled_new_reqs
    # One token each, so none of them is speculated.
    single = not news and output.total_num_scheduled_tokens == len(cached.req_ids)
    if single and cached.req_ids == _last[0]:
        return _last[0], _last[1]
    tokens = output.num_scheduled_tokens
    names: list[str] = [new.req_id for new in news]
    cells = [_cell(name, "recompute" if name in _lost else "prefill", tokens) for name in names]
    cells += _cached_cells(scheduler, cached, tokens)
    names += cached.req_ids
    joined = b"".join(cells)
    if single and all(name in _decoding for name in names):
        _last[:] = names, joined
    return names, joined


def _cached_cells(scheduler: Any, cached: Any, tokens: Any) -> Iterator[bytes]:
    """The cells of requests that were scheduled before."""
    requests, computed = scheduler.requests, cached.num_computed_tokens
    for place, name in enumerate(cached.req_ids):
        ready = _decoding.get(name)
        if ready is not None and tokens[name] == 1:
            yield ready
            continue
        phase = _phase(name, computed[place], requests[name].num_prompt_tokens)
        made = _cell(name, phase, tokens)
        if phase == "decode" and tokens[name] == 1:
            _decoding[name] = made
        yield made


def _phase(name: str, done: int, prompt: int) -> str:
    if name in _lost and done < _lost[name]:
        return "recompute"
    return "prefill" if done < prompt else "decode"


def _cell(name: str, phase: str, tokens: Any) -> bytes:
    return emit.batch_cell(name, phase, tokens[name])


def _use_cells_of(recorder: Any) -> None:
    """Cells hold numbers of one recorder's names; there are as many as requests that decode."""
    if _owner[0] is not recorder or len(_decoding) > MAX_NAMES // 2:
        _decoding.clear()
        _last[:] = [], b""
        _owner[0] = recorder


def _no_longer_decoding(name: str) -> None:
    _decoding.pop(name, None)
    _last[:] = [], b""


def _forget(name: str) -> None:
    _no_longer_decoding(name)
    _lost.pop(name, None)
    _out.discard(name)
    vllm_connector.forget(name)


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
    step = found[1]
    each = _each(outputs)
    if len(each) == len(step) and emit.all_single(each, "new_token_ids"):
        step.end_alike(now, 1)
    else:
        step.end(now, ((output.request_id, len(output.new_token_ids)) for output in each))


def _each(outputs: Any) -> Any:
    """The outputs of all frontends; most servers have one."""
    if len(outputs) == 1:
        (only,) = outputs.values()
        return only.outputs
    return [output for client in outputs.values() for output in client.outputs]


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
            _lose(request.request_id, request.num_computed_tokens, perf_counter_ns())
        except FAULTS:
            pass
        return preempt(self, request, *args, **kwargs)

    return call


TARGETS = {
    "vllm.v1.core.sched.scheduler": {
        "Scheduler.schedule": _schedule,
        "Scheduler.update_from_output": _update,
        "Scheduler.add_request": _add,
        "Scheduler._preempt_request": _preempt,
        "Scheduler.get_grammar_bitmask": spanned("vllm get_grammar_bitmask"),
    }
}
