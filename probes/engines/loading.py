"""Loading weights, converting them, and giving device memory back: the phases of a start-up."""

from __future__ import annotations

from .timing import long_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def version(module: Any) -> str:
    """Nothing: these are not engines."""
    return ""


_CAST = long_calls("convert weights", "cast")

TARGETS: dict[str, dict[str, Any]] = {
    "torch.serialization": {"load": long_calls("torch.load", "load")},
    "safetensors.torch": {"load_file": long_calls("safetensors load_file", "load")},
    "torch.nn.modules.module": {
        "Module.half": _CAST,
        "Module.bfloat16": _CAST,
        "Module.float": _CAST,
        "Module.double": _CAST,
        "Module.type": _CAST,
    },
    "torch.cuda.memory": {"empty_cache": long_calls("empty_cache", "alloc")},
}
