"""A decoder-only transformer in NumPy: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rca_llm import probe, span

from .batch import Batch, Indices
from .config import ModelConfig
from .weights import Array, Weights, layer_shard


class Model(Protocol):
    """What the engine needs of a model; it keeps its own KV cache."""

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        ...

    def forward(self, batch: Batch) -> Array:
        """Logits after each chunk, (chunks, vocab); the batch's keys and values are now cached."""
        ...


class Transformer:
    """The model with a KV cache of `slots` tokens.

    The cache is (layers, slots, kv_heads, head_dim) for keys and as much for values; which slot
    belongs to whom is decided by whoever builds the batch.
    """

    def __init__(self, config: ModelConfig, weights: Weights, slots: int) -> None:
        self.config = config
        self._embedding = weights["embedding"]["embedding"]
        self._layers = [weights[layer_shard(index)] for index in range(config.layers)]
        self._head = weights["head"]
        cache = (config.layers, slots, config.kv_heads, config.head_dim)
        self._keys = np.zeros(cache, dtype=np.float32)
        self._values = np.zeros(cache, dtype=np.float32)
        self._cos, self._sin = rotary_table(config)

    @probe(kind="compute")
    def forward(self, batch: Batch) -> Array:
        """Logits after each chunk, (chunks, vocab)."""
        state = self._embedding[batch.tokens]
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        for index, layer in enumerate(self._layers):
            with span("attention", kind="compute"):
                normed = rms_norm(state, layer["attention_norm"], self.config.norm_eps)
                state += self._attention(index, normed @ layer["qkv"], batch, cos, sin)
            with span("mlp", kind="compute"):
                normed = rms_norm(state, layer["mlp_norm"], self.config.norm_eps)
                state += swiglu(normed @ layer["gate_up"]) @ layer["down"]
        with span("head", kind="compute"):
            last = rms_norm(state[batch.last], self._head["norm"], self.config.norm_eps)
            logits: Array = last @ self._head["head"]
        return logits

    def _attention(self, index: int, qkv: Array, batch: Batch, cos: Array, sin: Array) -> Array:
        """Cache the new keys and values of a layer, then attend chunk by chunk."""
        config = self.config
        heads = qkv.reshape(len(qkv), -1, config.head_dim)
        turned = rotate(heads[:, : config.heads + config.kv_heads], cos, sin)
        queries, keys = turned[:, : config.heads], turned[:, config.heads :]
        self._keys[index, batch.slots] = keys
        self._values[index, batch.slots] = heads[:, config.heads + config.kv_heads :]
        mixed = np.empty((len(qkv), config.dim), dtype=np.float32)
        for rows, context in zip(batch.rows, batch.contexts, strict=True):
            mixed[rows] = self._attend(index, queries[rows], context)
        out: Array = mixed @ self._layers[index]["out"]
        return out

    def _attend(self, index: int, queries: Array, context: Indices) -> Array:
        """Causal attention of a chunk's queries (rows, heads, head_dim) over its whole context."""
        config, rows = self.config, len(queries)
        keys = self._keys[index, context].transpose(1, 2, 0)
        values = self._values[index, context].transpose(1, 0, 2)
        grouped = queries.reshape(rows, config.kv_heads, config.group, config.head_dim)
        grouped = grouped.transpose(1, 2, 0, 3).reshape(config.kv_heads, -1, config.head_dim)
        scores = (grouped @ keys) * np.float32(config.head_dim**-0.5)
        if rows > 1:
            scores = scores.reshape(config.heads, rows, len(context)) + causal(rows, len(context))
            scores = scores.reshape(config.kv_heads, -1, len(context))
        mixed: Array = softmax(scores) @ values
        mixed = mixed.reshape(config.heads, rows, config.head_dim).transpose(1, 0, 2)
        return mixed.reshape(rows, config.dim)


def rms_norm(state: Array, weight: Array, eps: float) -> Array:
    """Each row divided by its root mean square, then scaled."""
    mean: Array = np.mean(np.square(state), axis=-1, keepdims=True)
    normed: Array = np.multiply(state / np.sqrt(mean + np.float32(eps)), weight)
    return normed


def swiglu(gate_up: Array) -> Array:
    """SiLU of the first half of the columns times the second half."""
    half = gate_up.shape[-1] // 2
    gate: Array = gate_up[:, :half]
    # exp of a clipped argument: beyond it the sigmoid is 0 in float32 anyway, without a warning.
    sigmoid = np.reciprocal(1 + np.exp(-np.maximum(gate, np.float32(-80))))
    product: Array = np.multiply(gate * sigmoid, gate_up[:, half:])
    return product


def softmax(scores: Array) -> Array:
    """Weights over the last axis that add up to one; computed in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def causal(rows: int, context: int) -> Array:
    """What to add to scores (rows, context) so that no row sees a later position."""
    seen = np.arange(context - rows, context)[:, None]
    mask: Array = np.where(np.arange(context) > seen, np.float32(-np.inf), np.float32(0))
    return mask


def rotary_table(config: ModelConfig) -> tuple[Array, Array]:
    """Cosines and sines of every position, each (max_positions, 1, head_dim / 2)."""
    frequencies = config.rope_base ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = np.outer(np.arange(config.max_positions), frequencies)[:, None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(heads: Array, cos: Array, sin: Array) -> Array:
    """Rotary position embedding of (rows, heads, head_dim), halves paired as in Llama."""
    half = heads.shape[-1] // 2
    first: Array = heads[..., :half]
    second: Array = heads[..., half:]
    turned = np.empty_like(heads)
    turned[..., :half] = first * cos - second * sin
    turned[..., half:] = second * cos + first * sin
    return turned
