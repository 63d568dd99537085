"""Compiling, autotuning and loading of code at run time: torch.compile, Triton, C++ extensions.

What CUDA itself compiles and loads is recorded by the collector.
"""

from __future__ import annotations

from .timing import long_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def version(module: Any) -> str:
    """Nothing: these are not engines."""
    return ""


TARGETS: dict[str, dict[str, Any]] = {
    "torch._dynamo.convert_frame": {"_compile": long_calls("torch.compile", "jit")},
    "torch._inductor.compile_fx": {"compile_fx_inner": long_calls("inductor", "jit")},
    "torch.utils.cpp_extension": {"_jit_compile": long_calls("build extension", "jit")},
    "triton.compiler.compiler": {"compile": long_calls("triton compile", "jit")},
    "triton.runtime.jit": {"JITFunction._do_compile": long_calls("triton compile", "jit")},
    "triton.runtime.autotuner": {"Autotuner._bench": long_calls("triton autotune", "jit")},
}
