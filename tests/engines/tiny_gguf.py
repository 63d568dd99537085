"""Writes a tiny random Llama as GGUF, with a vocabulary of bytes: python tiny_gguf.py FILE."""

from __future__ import annotations

import sys

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, FEED, CONTEXT = 2, 64, 4, 128, 512
# <unk>, <s>, </s>, 256 bytes, and a word that tokenising needs.
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
TYPES = [2, 3, 3, *([6] * 256), 1]


def main(path: str) -> None:
    """Write the model."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types(TYPES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    draw = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, draw.normal(0, 0.3, shape).astype(np.float32))

    tensor("token_embd.weight", len(TOKENS), WIDTH)
    tensor("output.weight", len(TOKENS), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        tensor(f"blk.{layer}.ffn_gate.weight", FEED, WIDTH)
        tensor(f"blk.{layer}.ffn_up.weight", FEED, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, FEED)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
