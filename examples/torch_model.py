"""A plain PyTorch model whose every forward pass is recorded: `instrument(model)`, and no more.

    rca-llm trace -o torch.rca -- python examples/torch_model.py
    rca-llm report torch.rca -o torch.html

A small decoder answers a few requests of mixed length one after the other, greedily and without a
KV cache, on the CPU, in seconds. Each pass is a step of the request around it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rca_llm.probes import instrument, request, span

if TYPE_CHECKING:
    from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 256, 128, 4, 2, 128
REQUESTS = (("short", 8, 4), ("long prompt", 96, 4), ("long answer", 8, 16))
"""Name, tokens of the prompt, tokens of the answer."""


def make_model() -> nn.Module:
    """A decoder of two layers with random weights."""
    import torch
    from torch import nn

    class Decoder(nn.Module):
        """Tokens of one sequence to the scores of the token that comes next."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Embedding(LONGEST, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Tensor) -> Tensor:
            length = tokens.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            inside = self.tokens(tokens) + self.places(torch.arange(length))
            scores: Tensor = self.head(self.layers(inside, mask=mask, is_causal=True)[:, -1])
            return scores

    torch.manual_seed(0)
    return Decoder().eval()


def answer(model: nn.Module, prompt: int, count: int) -> list[int]:
    """The `count` tokens that follow a prompt of so many tokens."""
    import torch

    with span("tokenize", kind="tokenize"):
        tokens = torch.arange(prompt).remainder(VOCABULARY).unsqueeze(0)
    with torch.inference_mode():
        for _ in range(count):
            token = model(tokens).argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], 1)
    return [int(token) for token in tokens[0, prompt:]]


def main() -> int:
    """Answer every request, and print the answers."""
    model = instrument(make_model())
    for name, prompt, count in REQUESTS:
        with request(name, prompt_tokens=prompt, output_tokens=count):
            print(name, answer(model, prompt, count))
    return 0


if __name__ == "__main__":
    if find_spec("torch") is None:
        sys.exit("torch_model.py: torch is not installed; `pip install torch`")
    sys.exit(main())
