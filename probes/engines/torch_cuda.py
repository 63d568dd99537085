"""PyTorch's start of CUDA: the moment to begin the fallback collector, where one is needed."""

from __future__ import annotations

from .. import gpu_fallback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def starting(initialise: Any) -> Any:
    """`torch.cuda._lazy_init`, with the fallback started before CUDA is."""

    def wrapper(*arguments: Any, **named: Any) -> Any:
        gpu_fallback.start()
        return initialise(*arguments, **named)

    return wrapper


TARGETS = {"torch.cuda": {"_lazy_init": starting} if gpu_fallback.needed() else {}}


def version(module: Any) -> str:
    """Nothing: PyTorch is not the engine."""
    return ""
