"""Makes a small Llama with random weights and a tokenizer of single bytes, without any network.

Runs in the environment of the engine under test: python tiny_llama.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

CONTEXT = 2048


def make(folder: Path) -> None:
    """Write the model and its tokenizer into `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    save_tokenizer(folder, 259)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def save_tokenizer(folder: Path, size: int) -> None:
    """A tokenizer of the 256 bytes and three special tokens, padded to `size` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    vocabulary |= {name: len(vocabulary) + number for number, name in enumerate(special.values())}
    # Random weights produce any id: each must be a token.
    vocabulary |= {f"<{number}>": number for number in range(len(vocabulary), size)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
