"""Hugging Face transformers: `generate` as requests, prefill and decode steps; tokenisers.

One call of ``generate`` is one batch, and every row of it a request: transformers knows no ids, so
they are ``generate-PID-N`` or ``generate-PID-N/ROW``; a batch of one inside a ``request`` scope is
that request. A step lasts from one call of ``prepare_inputs_for_generation`` to the next, which
every decoding method and version has, outside of what torch.compile sees; the first begins with
``generate`` and the last ends with it. Nothing here reads a tensor that lies on a device: that
would make the program wait for it.
"""

from __future__ import annotations

import os
import sys
from _thread import _local  # pyright: ignore[reportPrivateUsage]  # needs no imports
from itertools import count
from time import perf_counter_ns

from .. import gpu
from ..span import request_id
from . import asgi, emit
from .guard import around, quiet
from .patch import package_version, spanned, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LENGTHS = "_rca_llm_lengths"
"""What an attention mask on a device is given: the number of tokens of each of its rows."""

NOT_KNOWN = -1
_batches, _steps = count(1), count(1)
_here = _local()

# Where a batch may be found among the arguments of generate, and the inputs of a forward pass.
_INPUTS = ("input_ids", "inputs_embeds", "input_features", "input_values", "pixel_values")
_FED = ("decoder_input_ids", "input_ids", "decoder_inputs_embeds", "inputs_embeds")


# Engines that use transformers' models and tokenisers, and tell of their requests themselves.
ENGINES = ("vllm", "sglang", "lmdeploy", "tensorrt_llm")


def version(module: Any) -> str:
    """The library and its version, where no engine around it serves."""
    alone = module.__name__.endswith("generation.utils") and not _within_engine()
    return package_version("transformers") if alone else ""


def _within_engine() -> bool:
    return any(name in sys.modules for name in ENGINES)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _on_cpu(value: Any) -> bool:
    return getattr(getattr(value, "device", None), "type", "") == "cpu"


class Batch:
    """One call of generate that is under way in this thread."""

    def __init__(self, model: Any, given: Any, kwargs: dict[str, Any]) -> None:
        self.began = perf_counter_ns()
        self.model = model
        self.scope = request_id.get()
        self.shape = _shape(given) or (1,)
        self.rows = self._names(self.shape[0])
        self.live: list[bool] | None = [True] * len(self.rows)
        self.next_live: list[bool] | None = self.live
        self.streamed = kwargs.get("streamer") is not None
        # Whether each step adds one token to each row; beams are seen by the width of the batch.
        self.plain = not (kwargs.get("assistant_model") or kwargs.get("prompt_lookup_num_tokens"))
        self.step: emit.Step | None = None
        self.prepared = self.sampled = self.tokens = self.passes = 0
        self.number = next(_steps)
        gpu.push_step(self.number)
        self._announce(_lengths(given, kwargs.get("attention_mask")))

    def _names(self, rows: int) -> list[str]:
        if self.scope is not None and rows == 1:
            asgi.claim()
            return [self.scope]
        number = next(_batches)
        # Ranks of one tensor-parallel model work on the same batches: they share the names.
        alone = (getattr(self.model, "_tp_size", None) or 1) < 2
        own = "generate-%d-%d" % (os.getpid(), number) if alone else "generate-%d" % number
        return [own] if rows == 1 else ["%s/%d" % (own, row) for row in range(rows)]

    def _announce(self, lengths: list[int] | None) -> None:
        for row, name in enumerate(self.rows):
            if name != self.scope:
                emit.event("arrival", name, self.began)
            emit.event("scheduled", name, self.began)
            if lengths is not None:
                emit.event("prompt_tokens", name, self.began, lengths[row])

    def next_step(self, began: int) -> None:
        """The inputs of a forward pass will be prepared: the step of the pass before is over."""
        if self.passes:
            self.close_step(began)
            self.number = next(_steps)
            gpu.push_step(self.number)

    def open_step(self, began: int, fed: Any) -> None:
        """The inputs of the pass are prepared since `began`."""
        now = perf_counter_ns()
        start = began if self.passes else self.began
        if not self.passes:
            emit.span("transformers generate", "host", start, began)
        self.passes += 1
        shape = next((_shape(fed[name]) for name in _FED if fed.get(name) is not None), ())
        self.plain = self.plain and shape[:1] == (len(self.rows),)
        width = shape[1] if len(shape) > 1 else NOT_KNOWN
        phase = "decode" if self.tokens else "prefill"
        self.step = emit.Step.of(self.number, start, [(name, phase, width) for name in self.rows])
        emit.span("transformers prepare inputs", "host", began, now)
        self.prepared, self.sampled = now, 0

    def sample(self, began: int) -> None:
        """The forward pass has returned; what follows chooses the next token."""
        emit.span("transformers forward", "compute", self.prepared, began)
        self.sampled = began
        self.tokens += 1

    def close_step(self, now: int) -> None:
        """End the step under way, and tell which rows got a token in it."""
        step, self.step = self.step, None
        gpu.pop_step()
        if step is None:  # it failed before its first pass
            return
        if self.sampled:
            emit.span("transformers sample", "compute", self.sampled, now)
        live: list[bool] = []
        if self.plain and self.sampled and not self.streamed:
            live = self.live or live
        step.end(now, [(self.rows[row], 1) for row, alive in enumerate(live) if alive])
        self.live = self.next_live

    def stopped(self, criteria: Any, done: Any) -> None:
        """The criteria have said which rows are done; on a device only the device knows."""
        if _on_cpu(done) and _shape(done) == (len(self.rows),):
            # They look at the last token alone: a row that is done stays so.
            flags = done.tolist()
            self.next_live = [alive and not flags[row] for row, alive in enumerate(self.live or ())]
        elif len(self.rows) > 1 and any(hasattr(each, "eos_token_id") for each in criteria):
            self.next_live = None

    def put(self, tokens: Any) -> None:
        """A streamer was given tokens; what it is given before the first pass is the prompt."""
        if self.tokens:
            emit.event("token", self.rows[0], perf_counter_ns(), (_shape(tokens) or (1,))[-1])

    def end(self, result: Any, error: BaseException | None) -> None:
        """The caller has the result, all rows at once, or an exception."""
        now = perf_counter_ns()
        self.close_step(now)
        for name in self.rows:
            if not self.plain or self.live is None:
                emit.event("output_tokens", name, now, self._generated(result))
            if error is not None:
                emit.event("aborted", name, now)
            elif name != self.scope:
                emit.event("finished", name, now)

    def _generated(self, result: Any) -> int:
        """Tokens of a batch of one that steps do not tell; of larger ones, rows differ."""
        shape = _shape(getattr(result, "sequences", result))
        encoder = getattr(self.model.config, "is_encoder_decoder", False)
        if encoder or len(self.rows) > 1 or len(shape) < 2 or len(self.shape) != 2:
            return NOT_KNOWN
        return shape[1] - self.shape[1]


def _lengths(given: Any, mask: Any) -> list[int] | None:
    """The tokens of every row of a prompt, where they are known without asking a device."""
    shape = _shape(given)
    if mask is None:
        return [shape[1]] * shape[0] if len(shape) > 1 else None
    if _on_cpu(mask):
        return mask.sum(dim=-1).tolist() if len(_shape(mask)) == 2 else None
    return getattr(mask, LENGTHS, None)


# ------------------------------------------------------------------ generate


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch | None:
    """A batch, where this is not the assistant of another one's."""
    if getattr(_here, "batch", None) is not None:
        return None
    model, streamer = args[0], kwargs.get("streamer")
    _wrap_own(model, "prepare_inputs_for_generation", _prepare)
    _wrap_own(model, "_update_model_kwargs_for_generation", _update)
    if streamer is not None:
        _wrap_own(streamer, "put", _put)
    given = args[1] if len(args) > 1 else kwargs.get("inputs")
    for name in _INPUTS:
        given = kwargs.get(name) if given is None else given
    _here.batch = made = Batch(model, given, kwargs)
    return made


def _wrap_own(owner: Any, name: str, make: Callable[..., Any]) -> None:
    """Wrap a method in the class that defines it, since many models have their own."""
    owner = next((each for each in owner.__class__.__mro__ if name in each.__dict__), None)
    if owner is not None:
        wrap(owner, name, make)


def _end(batch: Batch | None, result: Any, error: BaseException | None) -> None:
    if batch is not None:
        _here.batch = None
        batch.end(result, error)


def _of(model: Any) -> Batch | None:
    """The batch that this model generates in this thread."""
    found: Batch | None = getattr(_here, "batch", None)
    return found if found is not None and found.model is model else None


def _prepare(prepare: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        depth = getattr(_here, "depth", 0)
        _here.depth = depth + 1
        if not depth:
            _preparing(self, began)
        try:
            fed = prepare(self, *args, **kwargs)
        finally:
            _here.depth = depth
        if not depth:  # an overriding method that called its parent's
            _prepared(self, began, fed)
        return fed

    return call


@quiet
def _preparing(model: Any, began: int) -> None:
    batch = _of(model)
    if batch is not None:
        batch.next_step(began)


@quiet
def _prepared(model: Any, began: int, fed: Any) -> None:
    batch = _of(model)
    if batch is not None:
        batch.open_step(began, fed)


def _update(update: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _updating(self, perf_counter_ns())
        return update(self, *args, **kwargs)

    return call


@quiet
def _updating(model: Any, began: int) -> None:
    batch = _of(model)
    if batch is not None and not batch.sampled:
        batch.sample(began)


def _stop(judge: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = judge(self, *args, **kwargs)
        _judged(self, done)
        return done

    return call


@quiet
def _judged(criteria: Any, done: Any) -> None:
    batch: Batch | None = getattr(_here, "batch", None)
    if batch is not None:
        batch.stopped(criteria, done)


def _put(put: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        _putting(value)
        return put(self, value, *args, **kwargs)

    return call


@quiet
def _putting(value: Any) -> None:
    batch: Batch | None = getattr(_here, "batch", None)
    if batch is not None and batch.streamed:
        batch.put(value)


# ------------------------------------------------------------------ tokenisers


def _to_device(to: Callable[..., Any]) -> Callable[..., Any]:
    """`BatchEncoding.to`: the mask is still on the CPU, where its rows can be counted."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        lengths = _counted(self)
        moved = to(self, *args, **kwargs)
        if lengths:
            _leave(moved, lengths)
        return moved

    return call


@quiet
def _counted(encoding: Any) -> list[int] | None:
    mask = encoding.data.get("attention_mask")
    return _lengths(None, mask) if _on_cpu(mask) else getattr(mask, LENGTHS, None)


@quiet
def _leave(encoding: Any, lengths: list[int]) -> None:
    mask = encoding.data["attention_mask"]
    if not _on_cpu(mask):
        setattr(mask, LENGTHS, lengths)


def _told(name: str, kind: str) -> Callable[..., Any]:
    """A span around every call, where no engine tells of its own."""
    make = spanned(name, kind)

    def made(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call if _within_engine() else make(function)

    return made


_TOKENIZER = "PreTrainedTokenizerBase."
TARGETS = {
    "transformers.generation.utils": {
        "GenerationMixin.generate": around(_begin, _end),
        "GenerationMixin.prepare_inputs_for_generation": _prepare,
        "GenerationMixin._update_model_kwargs_for_generation": _update,
    },
    "transformers.generation.stopping_criteria": {"StoppingCriteriaList.__call__": _stop},
    "transformers.tokenization_utils_base": {
        "BatchEncoding.to": _to_device,
        _TOKENIZER + "__call__": _told("transformers tokenize", "tokenize"),
        _TOKENIZER + "decode": _told("transformers decode", "detokenize"),
        _TOKENIZER + "batch_decode": _told("transformers decode", "detokenize"),
    },
}
