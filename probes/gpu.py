"""Steers the native GPU collector from Python, in the process that CUDA loaded it into.

The collector needs no help to record. What only Python can know is told to it here: that
torch.profiler, which takes CUPTI away without a word before CUDA 13.2, begins and ends, and which
calls belong to which engine step. Every function does nothing where no collector runs. Standard
library only, Python >= 3.7; ctypes is imported when it is first needed.
"""

from __future__ import annotations

import functools
import os
from time import perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROFILER_MODULE = "torch.autograd.profiler"
"""The module whose `profile` class every Python profiler of PyTorch goes through."""

LOOK_NS = 1_000_000_000
"""How long after a look in vain steps look for the collector again."""

_RTLD_NOLOAD = 4
_library: Any = None
_next_look = 0


def library() -> Any:
    """The collector as loaded into this process, None where CUDA did not load it.

    It is never loaded from here: that would not collect, and a later look may find it.
    """
    global _library
    path = os.environ.get("CUDA_INJECTION64_PATH")
    if _library is None and path and os.environ.get("RCA_LLM_RUN"):
        try:
            import ctypes

            found = ctypes.CDLL(path, mode=_RTLD_NOLOAD | os.RTLD_LAZY)
            found.rca_llm_gpu_push_step.argtypes = (ctypes.c_uint64,)
            _library = found
        except (OSError, AttributeError, ImportError):
            return None  # not loaded yet, or another tool's library
    return _library


def collecting() -> bool:
    """Whether GPU activity of this process is being recorded now."""
    found = library()
    return found is not None and found.rca_llm_gpu_status() == 1


def flush() -> None:
    """Write what CUPTI has completed; before a process is ended by force. At most two seconds."""
    found = library()
    if found is not None:
        found.rca_llm_gpu_flush()


def _at_hand() -> Any:
    """The collector, looked for seldom: an engine without one has as many steps as any other."""
    global _next_look
    if _library is not None:
        return _library
    now = perf_counter_ns()
    if now < _next_look:
        return None
    _next_look = now + LOOK_NS
    return library()


def push_step(step: int) -> None:
    """Mark what this thread launches from here on as the work of an engine step.

    Steps may nest. Nothing where the collector does not mark steps.
    """
    found = _at_hand()
    if found is not None:
        found.rca_llm_gpu_push_step(step)


def pop_step() -> None:
    """End what `push_step` began."""
    found = _at_hand()
    if found is not None:
        found.rca_llm_gpu_pop_step()


def released(prepare: Any) -> Any:
    """`profile._prepare_trace` of PyTorch, giving CUPTI up first.

    The collector writes what it has, switches off and marks a gap. The profiler's own results are
    untouched.
    """

    @functools.wraps(prepare)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        _call("rca_llm_gpu_release")
        return prepare(*arguments, **named)

    return wrapper


def reclaimed(leave: Any) -> Any:
    """`profile.__exit__` of PyTorch, taking CUPTI back last: buffers and kinds, not the clock."""

    @functools.wraps(leave)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        try:
            return leave(*arguments, **named)
        finally:
            _call("rca_llm_gpu_reclaim")

    return wrapper


PROFILER_TARGETS = {"profile._prepare_trace": released, "profile.__exit__": reclaimed}
"""What to wrap in `PROFILER_MODULE`, by dotted name."""


def wrap_profiler(module: Any) -> None:
    """Make PyTorch's profiler hand CUPTI over: call with `PROFILER_MODULE` once it is imported."""
    profile: Any = getattr(module, "profile", None)
    for target, make in PROFILER_TARGETS.items():
        name = target.rpartition(".")[2]
        found = getattr(profile, "__dict__", {}).get(name)
        if found is not None and not hasattr(found, "__wrapped__"):
            setattr(profile, name, make(found))


def _call(name: str) -> None:
    """Call a function of the collector, if there is one; other threads run meanwhile."""
    found = library()
    if found is not None:
        getattr(found, name)()
