"""The same model in torch, on a GPU where there is one: every `forward` is decorated."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rca_llm import probe, record, span

from .batch import Batch, Indices
from .config import ModelConfig
from .model import rotary_table
from .weights import Array, Weights, layer_shard


class Pass:
    """A batch on the device, with what every layer needs of it."""

    def __init__(self, batch: Batch, cos: Tensor, sin: Tensor) -> None:
        device = cos.device
        positions = to_device(batch.positions, device)
        self.tokens = to_device(batch.tokens, device)
        self.slots = to_device(batch.slots, device)
        self.last = to_device(batch.last, device)
        self.cos, self.sin = cos[positions], sin[positions]
        self.rows = batch.rows
        self.contexts = [to_device(context, device) for context in batch.contexts]


class RmsNorm(nn.Module):
    """Each row divided by its root mean square, then scaled."""

    def __init__(self, weight: Array, eps: float) -> None:
        super().__init__()
        self.weight = parameter(weight)
        self.eps = eps

    @probe(kind="compute")
    def forward(self, state: Tensor) -> Tensor:
        """The normed rows."""
        mean = state.square().mean(-1, keepdim=True)
        return state * torch.rsqrt(mean + self.eps) * self.weight


class Attention(nn.Module):
    """Grouped-query attention over a paged cache, (slots, kv_heads, head_dim) each."""

    def __init__(self, config: ModelConfig, weights: dict[str, Array], slots: int) -> None:
        super().__init__()
        self.config = config
        self.qkv, self.out = parameter(weights["qkv"]), parameter(weights["out"])
        self.keys: Tensor
        self.values: Tensor
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(slots, config.kv_heads, config.head_dim))

    @probe(kind="compute")
    def forward(self, state: Tensor, batch: Pass) -> Tensor:
        """What each row takes from its context."""
        config = self.config
        heads = (state @ self.qkv).reshape(len(state), -1, config.head_dim)
        turned = rotate(heads[:, : config.heads + config.kv_heads], batch)
        queries = turned[:, : config.heads]
        self.keys[batch.slots] = turned[:, config.heads :]
        self.values[batch.slots] = heads[:, config.heads + config.kv_heads :]
        mixed = [
            self._attend(queries[rows], context)
            for rows, context in zip(batch.rows, batch.contexts, strict=True)
        ]
        out: Tensor = torch.cat(mixed) @ self.out
        return out

    def _attend(self, queries: Tensor, context: Tensor) -> Tensor:
        """Causal attention of one chunk, (rows, heads, head_dim), over its context."""
        keys = self.keys[context].repeat_interleave(self.config.group, dim=1)
        values = self.values[context].repeat_interleave(self.config.group, dim=1)
        seen = torch.ones(len(queries), len(context), dtype=torch.bool, device=queries.device)
        mixed: Tensor = functional.scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            attn_mask=seen.tril(len(context) - len(queries)),
        )
        rows: Tensor = mixed.transpose(0, 1).flatten(1)
        return rows


class Mlp(nn.Module):
    """The SwiGLU feed-forward layer."""

    def __init__(self, weights: dict[str, Array]) -> None:
        super().__init__()
        self.gate_up, self.down = parameter(weights["gate_up"]), parameter(weights["down"])

    @probe(kind="compute")
    def forward(self, state: Tensor) -> Tensor:
        """The layer's output."""
        gate, up = (state @ self.gate_up).chunk(2, dim=-1)
        out: Tensor = (functional.silu(gate) * up) @ self.down
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each on normed input and added to its input."""

    def __init__(self, config: ModelConfig, weights: dict[str, Array], slots: int) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(weights["attention_norm"], config.norm_eps)
        self.attention = Attention(config, weights, slots)
        self.mlp_norm = RmsNorm(weights["mlp_norm"], config.norm_eps)
        self.mlp = Mlp(weights)

    @probe(kind="compute")
    def forward(self, state: Tensor, batch: Pass) -> Tensor:
        """The layer's output."""
        state = state + self.attention(self.attention_norm(state), batch)
        out: Tensor = state + self.mlp(self.mlp_norm(state))
        return out


class TorchTransformer(nn.Module):
    """The model of `server.model` as torch modules, with a KV cache of `slots` tokens."""

    def __init__(self, config: ModelConfig, weights: Weights, slots: int) -> None:
        super().__init__()
        self.config = config
        head = weights["head"]
        self.embedding = parameter(weights["embedding"]["embedding"])
        self.layers = nn.ModuleList(
            Block(config, weights[layer_shard(index)], slots) for index in range(config.layers)
        )
        self.norm = RmsNorm(head["norm"], config.norm_eps)
        self.head = parameter(head["head"])
        cos, sin = rotary_table(config)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", torch.from_numpy(cos))
        self.register_buffer("sin", torch.from_numpy(sin))

    @probe(kind="compute")
    @torch.inference_mode()
    def forward(self, batch: Batch) -> Array:
        """Logits after each chunk, (chunks, vocab), back on the host."""
        record("sched_start")
        on_device = Pass(batch, self.cos, self.sin)
        if self.cos.is_cuda:
            # Until the stream is free the model cannot start: that wait is scheduling.
            with span("wait_for_stream", kind="sync"):
                torch.cuda.current_stream().synchronize()
        record("compute_start")
        state = self.embedding[on_device.tokens]
        for layer in self.layers:
            state = layer(state, on_device)
        logits = self.norm(state[on_device.last]) @ self.head
        with span("logits_to_host", kind="sync"):
            on_host: Array = logits.cpu().numpy()
        record("compute_end")
        return on_host


def parameter(array: Array) -> nn.Parameter:
    """A weight that is not trained."""
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array)), requires_grad=False)


def to_device(indices: Indices, device: torch.device) -> Tensor:
    """Indices as a tensor on the device."""
    return torch.from_numpy(indices).to(device)


def rotate(heads: Tensor, batch: Pass) -> Tensor:
    """Rotary position embedding of (rows, heads, head_dim), halves paired as in Llama."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat(
        (first * batch.cos - second * batch.sin, second * batch.cos + first * batch.sin), dim=-1
    )


def load_torch_model(config: ModelConfig, weights: Weights, slots: int) -> TorchTransformer:
    """The model on the GPU where there is one, else on the CPU."""
    model = TorchTransformer(config, weights, slots)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = sum(parameter.nbytes for parameter in model.parameters())
    with span("weights_to_device", kind="load", bytes=count):
        return model.to(device)
