"""Weights on disk: made once from a seed, read at every start.

A folder holds `config.json` and one `.npy` shard a layer (and one each for the embedding and the
head), float16 and flat, its tensors back to back. Reading a shard is IO, widening it to float32 is
a cast: two spans, because a slow start-up has either cause.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rca_llm import span

from .config import ModelConfig

Array = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]
Weights = dict[str, dict[str, Array]]
"""Tensors by shard and name."""

FIRST_PRINTABLE, LAST_PRINTABLE = 32, 126


class WeightsError(Exception):
    """A weights folder that cannot be used; the message is one line."""


def layer_shard(layer: int) -> str:
    """The name of the shard that holds one layer."""
    return f"layer-{layer:02d}"


def shard_shapes(config: ModelConfig) -> dict[str, Shapes]:
    """The tensors of every shard in the order they are stored, as (rows in, columns out)."""
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer: Shapes = {
        "attention_norm": (config.dim,),
        "qkv": (config.dim, heads + 2 * kv_heads),
        "out": (heads, config.dim),
        "mlp_norm": (config.dim,),
        "gate_up": (config.dim, 2 * config.hidden),
        "down": (config.hidden, config.dim),
    }
    shards: dict[str, Shapes] = {"embedding": {"embedding": (config.vocab, config.dim)}}
    shards.update({layer_shard(index): layer for index in range(config.layers)})
    shards["head"] = {"norm": (config.dim,), "head": (config.dim, config.vocab)}
    return shards


def make_weights(folder: Path, config: ModelConfig) -> None:
    """Write random weights of a fixed seed; the folder appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        generator = np.random.default_rng(config.seed)
        for shard, shapes in shard_shapes(config).items():
            tensors = [_initial(generator, name, shape) for name, shape in shapes.items()]
            np.save(partial / f"{shard}.npy", np.concatenate(tensors).astype(np.float16))
        config.write(partial / "config.json")
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _initial(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    """One tensor before training, flat: norms are ones, the rest normal with variance 1/rows."""
    if len(shape) == 1:
        return np.ones(shape, dtype=np.float32)
    scale = 1.0 if name == "embedding" else shape[0] ** -0.5
    values = generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    if name == "head":
        # An untrained model emits every byte alike; damping all others keeps its text legible.
        values[:, :FIRST_PRINTABLE] *= 0.1
        values[:, LAST_PRINTABLE + 1 :] *= 0.1
    flat: Array = values.ravel()
    return flat


def load_weights(folder: Path) -> tuple[ModelConfig, Weights]:
    """Read a weights folder into float32 tensors; WeightsError where it is not one."""
    try:
        config = ModelConfig.read(folder / "config.json")
    except (OSError, ValueError) as error:
        raise WeightsError(f"{folder}: no usable config.json ({error})") from error
    with span("load_weights", kind="load", path=str(folder)):
        shards = shard_shapes(config)
        return config, {
            shard: _load_shard(folder / f"{shard}.npy", shapes) for shard, shapes in shards.items()
        }


def _load_shard(path: Path, shapes: Shapes) -> dict[str, Array]:
    """Read one shard, widen it, and cut it into its tensors."""
    flat = _read_shard(path)
    count = sum(map(prod, shapes.values()))
    if flat.dtype != np.float16 or flat.shape != (count,):
        raise WeightsError(
            f"{path}: {flat.shape} values of {flat.dtype}, expected ({count},) of float16"
        )
    with span("cast_weights", kind="cast", bytes=flat.nbytes):
        wide = flat.astype(np.float32)
    ends = np.cumsum([prod(shape) for shape in shapes.values()])[:-1]
    pieces = np.split(wide, ends)
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def _read_shard(path: Path) -> NDArray[np.float16]:
    try:
        with span("read_shard", kind="file", path=str(path), bytes=path.stat().st_size):
            flat: NDArray[np.float16] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise WeightsError(f"{path}: cannot be read ({error})") from error
    return flat
