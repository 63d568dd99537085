"""Llama-shaped models without weights for vLLM (`load_format="dummy"`), and what starts it there.

    python benchmarks/gpu/vllm_model.py FOLDER [small|large]

A folder holds `config.json` and a tokenizer of single bytes, so that no network is needed. `small`
is bound by the host on a large GPU (0.9 billion parameters), `large` has the shape of Llama 3 8B
and keeps the GPU busy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.engines.tiny_llama import save_tokenizer  # noqa: E402  # the path above

SIZES: dict[str, dict[str, int]] = {
    "small": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
    },
    "large": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
}
"""The shapes, in the terms of `LlamaConfig`."""

CONTEXT = 4096


def make(folder: Path, size: str = "small") -> Path:
    """Write the model of one of `SIZES` into a folder, made if need be; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = SIZES[size]
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        **shape,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_tokenizer(folder, shape["vocab_size"])
    return folder


def environment(bundle: Path) -> dict[str, str]:
    """What runs vLLM out of an unpacked folder, without network and without what was left out."""
    path = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": f"{bundle}:{path}" if path else str(bundle),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_DEEP_GEMM": "0",
        "VLLM_DEEP_GEMM_WARMUP": "skip",
        "TOKENIZERS_PARALLELISM": "false",
    }


def engine_options(model: Path, **more: Any) -> dict[str, Any]:
    """Arguments of `vllm.LLM` and `AsyncEngineArgs` for such a model; `more` adds or replaces.

    Full and piecewise CUDA graphs, no prefix cache (dummy prompts would all hit it).
    """
    return {
        "model": str(model),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "gpu_memory_utilization": 0.5,
        "enable_prefix_caching": False,
        "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"},
        "seed": 0,
    } | more


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:3])
