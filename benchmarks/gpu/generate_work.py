"""The program that `generate.py` traces: `generate` over batches of mixed length, eager and graph.

    python generate_work.py --device cuda --told told.json

A random-weight Llama; four prompts of different length a batch, padded on the left, greedy. "eager"
launches kernel by kernel; "graph" decodes on a static cache through `torch.compile`, which replays
one CUDA graph a step. The JSON file gets, for every batch, its begin and end on CLOCK_MONOTONIC and
a digest of its tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
}
LENGTHS = (16, 100, 300, 511)
NEW_TOKENS = 24
VOCABULARY = 32000


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--modes", default="eager,graph")
    parser.add_argument("--backend", default="cudagraphs", help="of torch.compile, for graph")
    parser.add_argument("--told", type=Path, required=True)
    return parser.parse_args()


def load(size: str, device: str) -> LlamaForCausalLM:
    """The model, its weights drawn on the device."""
    config = LlamaConfig(
        num_attention_heads=16, num_key_value_heads=8, vocab_size=VOCABULARY, **SIZES[size]
    )
    torch.manual_seed(0)
    # In float32: in bfloat16 random weights tie so often that two untraced runs differ.
    with torch.device(device):
        return LlamaForCausalLM(config).eval()


def prompts(device: str) -> dict[str, torch.Tensor]:
    """One batch: its tokens and its mask."""
    longest = max(LENGTHS)
    mask = torch.tensor([[0] * (longest - length) + [1] * length for length in LENGTHS])
    drawn = torch.randint(3, VOCABULARY, mask.shape, generator=torch.Generator().manual_seed(1))
    return {"input_ids": (drawn * mask).to(device), "attention_mask": mask.to(device)}


def named(arguments: argparse.Namespace, mode: str) -> dict[str, Any]:
    """What `generate` is told for a mode; no end token, so that every row has as many tokens."""
    told: dict[str, Any] = {
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    if mode == "graph":
        inductor = arguments.backend == "inductor"
        compiling = CompileConfig(
            backend=arguments.backend, mode="reduce-overhead" if inductor else None
        )
        compiling._compile_all_devices = arguments.device != "cuda"
        told |= {"cache_implementation": "static", "compile_config": compiling}
    return told


def main() -> None:
    """Warm up each mode, then time its batches."""
    arguments = options()
    model = load(arguments.size, arguments.device)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for mode in arguments.modes.split(","):
            told = named(arguments, mode)
            for number in range(-2, arguments.batches):
                given = prompts(arguments.device)
                begun = time.monotonic_ns()
                tokens = model.generate(**given, **told)
                ended = time.monotonic_ns()
                digest = hashlib.sha256(tokens.cpu().numpy().tobytes()).hexdigest()[:16]
                row = {"mode": mode, "batch": number, "begin": begun, "end": ended}
                rows.append(row | {"tokens": digest, "warm": number < 0})
                arguments.told.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
