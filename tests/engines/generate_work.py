"""`generate` of a tiny random Llama, each call stamped: python generate_work.py TOLD

Batches of mixed length, a row that ends early, a streamer, a request of a scope, one that fails.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from rca_llm import request

LENGTHS = (5, 17, 40)


class Noted(BaseStreamer):
    """Keeps when each piece came."""

    def __init__(self) -> None:
        self.times: list[int] = []

    def put(self, value: Any) -> None:
        """The prompt first, then tokens."""
        self.times.append(time.monotonic_ns())

    def end(self) -> None:
        """Nothing."""


def load() -> LlamaForCausalLM:
    """Large enough that a step takes a while, small enough for a CPU."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=512,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).eval()


def main(told: Path) -> None:
    """Write what each call gave, and when."""
    model, rows = load(), []
    longest = max(LENGTHS)
    mask = torch.tensor([[0] * (longest - length) + [1] * length for length in LENGTHS])
    tokens = torch.randint(3, 500, mask.shape) * mask
    plain: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def stamped(**named: Any) -> Any:
        begun = time.monotonic_ns()
        found = model.generate(**(plain | named))
        rows.append({"begin": begun, "end": time.monotonic_ns(), "tokens": found.tolist()})
        return found

    whole = stamped(input_ids=tokens, attention_mask=mask, max_new_tokens=8)
    # What the first row says third ends every row that says it the next time.
    end = int(whole[0, longest + 2])
    stamped(input_ids=tokens, attention_mask=mask, max_new_tokens=8, eos_token_id=end)
    rows[-1]["end_token"] = end
    streamer = Noted()
    with request("scoped"):
        stamped(input_ids=tokens[2:], max_new_tokens=6, streamer=streamer)
    rows[-1]["pieces"] = streamer.times[1:]
    stamped(input_ids=tokens[2:], max_new_tokens=6, num_beams=2)
    try:
        model.generate(torch.tensor([[600]]), max_new_tokens=2, **plain)
    except IndexError:
        rows.append({"failed": True})
    told.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
