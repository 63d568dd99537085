"""PyTorch's profiler: CUPTI is handed to it while it runs, since it takes it without a word."""

from __future__ import annotations

from .. import gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TARGETS = {gpu.PROFILER_MODULE: gpu.PROFILER_TARGETS}


def version(module: Any) -> str:
    """Nothing: PyTorch is not the engine."""
    return ""
