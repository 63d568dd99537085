"""What is wrapped in inference engines and libraries, one file each.

Nothing is imported and nothing is wrapped until the program itself imports one of the modules in
``WATCHED``; then the file named there attaches to it. What attached and what did not is recorded.
"""

from __future__ import annotations

from . import hook
from .patch import attach

# Module of a library: the file here that wraps what is in it.
WATCHED = {
    "vllm.v1.core.sched.scheduler": "vllm_scheduler",
    "vllm.v1.engine.core": "vllm_core",
    "vllm.v1.worker.gpu_worker": "vllm_core",
    "vllm.v1.worker.cpu_worker": "vllm_core",
    "vllm.v1.engine.output_processor": "vllm_frontend",
    "vllm.v1.engine.input_processor": "vllm_frontend",
    "vllm.v1.engine.processor": "vllm_frontend",
    "vllm.v1.serial_utils": "vllm_frontend",
    "vllm.renderers.base": "vllm_frontend",
    "vllm.distributed.kv_transfer.kv_connector.factory": "vllm_connector",
    "vllm.v1.kv_offload.worker.worker": "vllm_connector",
    "vllm.v1.kv_offload.cpu.gpu_worker": "vllm_connector",
    "transformers.generation.utils": "transformers",
    "transformers.generation.stopping_criteria": "transformers",
    "transformers.tokenization_utils_base": "transformers",
    "uvicorn.protocols.http.h11_impl": "asgi",
    "uvicorn.protocols.http.httptools_impl": "asgi",
    "uvicorn.protocols.http.zttp_impl": "asgi",
    "uvicorn.protocols.http.zttp_h2_impl": "asgi",
    "starlette.applications": "asgi",
    "llama_cpp.llama": "llama_cpp",
    "lmdeploy.pytorch.engine.engine_instance": "lmdeploy",
    "lmdeploy.pytorch.engine.model_agent": "lmdeploy",
    "lmdeploy.pytorch.engine.model_agent.agent": "lmdeploy",
    "lmdeploy.pytorch.paging.scheduler": "lmdeploy",
    "lmdeploy.turbomind.turbomind": "lmdeploy",
    "sglang.srt.managers.schedule_batch": "sglang_scheduler",
    "sglang.srt.managers.scheduler": "sglang_scheduler",
    "sglang.srt.managers.tokenizer_manager": "sglang_frontend",
    "sglang.srt.managers.tp_worker": "sglang_scheduler",
    "tensorrt_llm._torch.pyexecutor.py_executor": "tensorrt_llm",
    "torch.nn": "torch_module",
    "torch.autograd.profiler": "torch_profiler",
    "torch.cuda": "torch_cuda",
    "torch.cuda.memory": "loading",
    "torch.nn.modules.module": "loading",
    "torch.serialization": "loading",
    "safetensors.torch": "loading",
    "torch._dynamo.convert_frame": "compiling",
    "torch._inductor.compile_fx": "compiling",
    "torch.utils.cpp_extension": "compiling",
    "triton.compiler.compiler": "compiling",
    "triton.runtime.autotuner": "compiling",
    "triton.runtime.jit": "compiling",
    "asyncio.streams": "streams",
    "logging": "python_logging",
    "msgpack": "messages",
    "msgspec.json": "messages",
    "msgspec.msgpack": "messages",
    "multiprocessing.reduction": "messages",
    "pickle": "messages",
    "vllm.distributed.device_communicators.shm_broadcast": "messages",
    "zmq.sugar.socket": "messages",
    "torch.distributed.distributed_c10d": "torch_distributed",
}


def watch() -> None:
    """Attach to every module of ``WATCHED``, now where it is loaded, else when it is imported."""
    hook.watch(WATCHED, attach)
