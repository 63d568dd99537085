"""SGLang's scheduler process: requests queued, retracted and resumed, steps, tokens, queue lengths.

A step lasts from the call of ``get_next_batch_to_run`` to the end of the ``process_batch_result``
that is given what ``run_batch`` returned. In the overlap loop the next batch is launched before
that, so steps overlap; they are found again by the result itself, which every version hands on as
it is. Every rank has its steps; requests and tokens are told by the first rank alone.
"""

from __future__ import annotations

from _thread import _local  # pyright: ignore[reportPrivateUsage]  # needs no imports
from collections import deque
from time import perf_counter_ns

from .. import gpu
from ..span import span
from . import emit
from .guard import around, quiet
from .patch import package_version, spanned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MAX_OPEN = 64
SAMPLE_NS = 10_000_000

_count = [0]
_sampled = [0]
# When the scheduling began that the next launch comes from.
_began = [0]
# By identity of a launch's result, which is held so that no other takes its place.
_open: dict[int, tuple[Any, emit.Step]] = {}
# Steps whose forward pass another thread will run (the overlap thread of 0.4).
_launching: deque[int] = deque(maxlen=8)
_running: set[str] = set()
_retracted: set[str] = set()
_here = _local()


def version(module: Any) -> str:
    """The engine and its version, told by the scheduler's process."""
    return package_version("sglang") if module.__name__.endswith("scheduler") else ""


def _first_rank(scheduler: Any) -> bool:
    """Whether this is the rank that speaks for all that work on the same batches."""
    where = getattr(scheduler, "ps", scheduler)
    return not getattr(where, "tp_rank", 0) and not getattr(where, "pp_rank", 0)


# ------------------------------------------------------------------ queued, retracted


def _queue(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    scheduler, request = args[0], args[1] if len(args) > 1 else kwargs["req"]
    if _first_rank(scheduler) and request.rid not in _retracted:
        now = perf_counter_ns()
        emit.event("queued", request.rid, now)
        emit.event("prompt_tokens", request.rid, now, len(request.origin_input_ids))


def _nothing(state: Any, result: Any, error: BaseException | None) -> None:
    pass


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return perf_counter_ns()


def _retract(began: Any, result: Any, error: BaseException | None) -> None:
    if error is None:
        for request in result[0]:
            _retracted.add(request.rid)
            _running.discard(request.rid)
            emit.event("preempted", request.rid, began)


# ------------------------------------------------------------------ steps


def _schedule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _began[0] = perf_counter_ns()
    return args[0]


def _scheduled(scheduler: Any, result: Any, error: BaseException | None) -> None:
    now = perf_counter_ns()
    emit.span("sglang schedule", "host", _began[0], now)
    if now - _sampled[0] > SAMPLE_NS and _first_rank(scheduler):
        _sampled[0] = now
        emit.sample("queue.waiting", len(scheduler.waiting_queue), now)
        emit.sample("queue.running", len(scheduler.running_batch.reqs), now)


def _run(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        step = _launch(self, batch)
        number = _count[0] if step is not None else None
        _here.step = number
        with span("sglang run_batch", "compute", step=number):
            try:
                result = run(self, batch, *args, **kwargs)
            finally:
                _here.step = None
                if number is not None:
                    gpu.pop_step()
        if step is not None:
            _launched(result, step)
        return result

    return call


@quiet
def _launch(scheduler: Any, batch: Any) -> emit.Step | None:
    requests = getattr(batch, "reqs", None)
    if not requests:  # an idle pass of data parallelism
        return None
    now = perf_counter_ns()
    start, _began[0] = _began[0] or now, 0
    rows = list(_batch(batch))
    if _first_rank(scheduler):
        _admitted([request.rid for request in requests], start)
    if not _count[0]:
        emit.setting("async_scheduling", getattr(scheduler, "enable_overlap", None))
    _count[0] += 1
    _launching.append(_count[0])
    gpu.push_step(_count[0])
    return emit.Step.of(_count[0], start, rows)


def _batch(batch: Any) -> Iterator[tuple[str, str, int]]:
    """Every request of a batch with its phase and tokens."""
    mode = batch.forward_mode
    if mode.is_decode() or not mode.is_extend():
        for request in batch.reqs:
            yield request.rid, "decode", 1
        return
    decoding = {request.rid for request in getattr(batch, "decoding_reqs", None) or ()}
    lengths = getattr(batch, "extend_lens", None) or [-1] * len(batch.reqs)
    for place, request in enumerate(batch.reqs):
        tokens = int(lengths[place]) if place < len(lengths) else -1
        if request.rid in decoding:
            yield request.rid, "decode", 1
        else:
            again = request.rid in _retracted
            yield request.rid, "recompute" if again else "prefill", tokens


def _admitted(names: list[str], start: int) -> None:
    for name in names:
        if name not in _running:
            _running.add(name)
            emit.event("resumed" if name in _retracted else "scheduled", name, start)


@quiet
def _launched(result: Any, step: emit.Step) -> None:
    if len(_open) >= MAX_OPEN:
        _open.clear()  # results that never came
    _open[id(result)] = (result, step)


def _process(process: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        before = _lengths(batch)
        with span("sglang process_batch_result"):
            done = process(self, batch, result, *args, **kwargs)
        _processed(self, batch, result, before)
        return done

    return call


@quiet
def _lengths(batch: Any) -> dict[str, int]:
    return {request.rid: len(request.output_ids) for request in batch.reqs or ()}


@quiet
def _processed(scheduler: Any, batch: Any, result: Any, before: dict[str, int] | None) -> None:
    found = _open.pop(id(result), None)
    if found is None or before is None:
        return
    now = perf_counter_ns()
    told: list[tuple[str, int]] = []
    for request in batch.reqs:
        name = request.rid
        if len(request.output_ids) > before.get(name, 0):
            told.append((name, len(request.output_ids) - before.get(name, 0)))
            _retracted.discard(name)
        if request.finished():
            _running.discard(name)
            _retracted.discard(name)
    found[1].end(now, told if _first_rank(scheduler) else [])


def _forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The worker's forward pass; in the overlap thread it learns its step here."""

    def call(*args: Any, **kwargs: Any) -> Any:
        number = _taken()
        if number is None:
            return forward(*args, **kwargs)
        gpu.push_step(number)
        try:
            with span("sglang forward", "compute", step=number):
                return forward(*args, **kwargs)
        finally:
            gpu.pop_step()

    return call


@quiet
def _taken() -> int | None:
    own = getattr(_here, "step", None)
    if own is not None:  # this very thread launched it, under its span
        if own in _launching:
            _launching.remove(own)
        return None
    return _launching.popleft() if _launching else None


TARGETS = {
    "sglang.srt.managers.scheduler": {
        "Scheduler._add_request_to_queue": around(_queue, _nothing),
        "Scheduler.get_next_batch_to_run": around(_schedule, _scheduled),
        "Scheduler.run_batch": _run,
        "Scheduler.process_batch_result": _process,
        "Scheduler.process_input_requests": spanned("sglang process_input_requests"),
        "Scheduler.recv_requests": spanned("sglang receive"),
        "Scheduler.ingest_requests": spanned("sglang receive"),
    },
    "sglang.srt.managers.schedule_batch": {
        "ScheduleBatch.retract_decode": around(_begin, _retract),
    },
    "sglang.srt.managers.tp_worker": {"TpModelWorker.forward_batch_generation": _forward},
}
