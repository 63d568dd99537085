"""vLLM's engine loop and worker (V1): what the thread that drives the model does.

The worker's spans carry the number of their step, also in a process of its own, because the
scheduler leaves it on the SchedulerOutput that is sent there.
"""

from __future__ import annotations

from .. import gpu
from ..recorder import FAULTS
from ..span import span
from .patch import package_version, spanned
from .vllm_scheduler import STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def version(module: Any) -> str:
    """Nothing: the scheduler's file tells it, in the process that has one."""
    return package_version("vllm") if module.__name__.endswith("gpu_worker") else ""


def _execute(execute: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        step = getattr(scheduler_output, STEP, None)
        try:
            setattr(self, STEP, step)
        except FAULTS:
            pass
        with span("vllm execute_model", "compute", step=step):
            return _launching(step, execute, self, scheduler_output, *args, **kwargs)

    return call


def _launching(step: int | None, launch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call whose kernels are those of a step, if there is one: an empty batch has none."""
    if step is None:
        return launch(*args, **kwargs)
    gpu.push_step(step)
    try:
        return launch(*args, **kwargs)
    finally:
        gpu.pop_step()


def _sample(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Samples what this worker executed last: the two alternate, or vLLM refuses."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = getattr(self, STEP, None)
        with span("vllm sample_tokens", "compute", step=step):
            return _launching(step, sample, self, *args, **kwargs)

    return call


TARGETS = {
    "vllm.v1.engine.core": {
        "EngineCore.preprocess_add_request": spanned("vllm preprocess request"),
        "EngineCore.step": spanned("vllm step"),
        "EngineCore.step_with_batch_queue": spanned("vllm step"),
        "EngineCoreProc._handle_client_request": spanned("vllm handle request"),
    },
    "vllm.v1.worker.gpu_worker": {
        "Worker.execute_model": _execute,
        "Worker.sample_tokens": _sample,
        "Worker.load_model": spanned("vllm load_model", "load"),
        "Worker.compile_or_warm_up_model": spanned("vllm warm up", "jit"),
    },
    "vllm.v1.worker.cpu_worker": {
        # What it overrides; the rest it inherits from the worker above.
        "CPUWorker.compile_or_warm_up_model": spanned("vllm warm up", "jit"),
    },
}
