"""A stand-in for transformers: a "Llama" that launches so many kernels a forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Anything, device_of

KERNELS = 20


class LlamaConfig(Anything):
    """Sizes of no meaning."""


class StaticCache(Anything):
    """A cache without layers."""


class PreTrainedTokenizerFast(Anything):
    """A tokenizer that writes no file."""


class LlamaForCausalLM:
    """The model."""

    def __init__(self, config: Any) -> None: ...

    def eval(self) -> LlamaForCausalLM:
        """The model."""
        return self

    def __call__(self, **named: Any) -> Any:
        device_of().launch("stand_in_forward", KERNELS)
        return SimpleNamespace(logits=Anything())

    def generate(self, *arguments: Any, **named: Any) -> Any:
        """A prefill and eight steps."""
        for _ in range(9):
            self()
        return Anything()
