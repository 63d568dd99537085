"""A Llama-like decoder split over the ranks of a job, in plain PyTorch, for the NCCL benchmark.

Column-parallel projections, row-parallel ones followed by an all-reduce, and a column-parallel
output layer followed by an all-gather, as vLLM and SGLang split a model. Weights are random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

Communicate = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes of the whole model; `ranks` divides heads, inner width and vocabulary."""

    ranks: int
    layers: int = 4
    width: int = 2048
    heads: int = 16
    inner: int = 5632
    vocabulary: int = 32000
    longest: int = 640


class Layer:
    """One decoder layer's share of a rank, with its own cache."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device, dtype=dtype) * columns**-0.5

        self.heads = shape.heads // shape.ranks
        self.size = shape.width // shape.heads
        mine = self.heads * self.size
        self.qkv = weight(3 * mine, shape.width)
        self.out = weight(shape.width, mine)
        self.up = weight(2 * shape.inner // shape.ranks, shape.width)
        self.down = weight(shape.width, shape.inner // shape.ranks)
        self.norm = torch.ones(shape.width, device=device, dtype=dtype)
        cache = (2, self.heads, shape.longest, self.size)
        self.cache = torch.zeros(cache, device=device, dtype=dtype)

    def attend(self, x: torch.Tensor, start: int, reduce: Communicate) -> torch.Tensor:
        """Attention over everything up to these tokens."""
        length = x.shape[0]
        query, key, value = functional.linear(x, self.qkv).chunk(3, dim=-1)
        split = (length, self.heads, self.size)
        end = start + length
        self.cache[0, :, start:end] = key.view(split).transpose(0, 1)
        self.cache[1, :, start:end] = value.view(split).transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(
            query.view(split).transpose(0, 1)[None],
            self.cache[0, :, :end][None],
            self.cache[1, :, :end][None],
            is_causal=length > 1,
        )
        return reduce(functional.linear(mixed[0].transpose(0, 1).reshape(length, -1), self.out))

    def feed(self, x: torch.Tensor, reduce: Communicate) -> torch.Tensor:
        """The gated feed-forward block."""
        gate, up = functional.linear(x, self.up).chunk(2, dim=-1)
        return reduce(functional.linear(functional.silu(gate) * up, self.down))

    def __call__(self, x: torch.Tensor, start: int, reduce: Communicate) -> torch.Tensor:
        """The layer's output for some tokens that follow `start` earlier ones."""
        width = (x.shape[-1],)
        x = x + self.attend(functional.rms_norm(x, width, self.norm), start, reduce)
        return x + self.feed(functional.rms_norm(x, width, self.norm), reduce)


class Model:
    """A rank's share of the model."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.embedding = torch.randn(shape.vocabulary, shape.width, device=device, dtype=dtype)
        self.layers = [Layer(shape, device, dtype) for _ in range(shape.layers)]
        rows = shape.vocabulary // shape.ranks
        self.head = torch.randn(rows, shape.width, device=device, dtype=dtype) * 0.02

    def forward(
        self, tokens: torch.Tensor, start: int, reduce: Communicate, gather: Communicate
    ) -> torch.Tensor:
        """The next token after some tokens that follow `start` earlier ones."""
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x, start, reduce)
        return gather(functional.linear(x[-1], self.head)).argmax().view(1)
