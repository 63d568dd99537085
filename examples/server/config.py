"""The shape of the model, as stored in `config.json` beside its weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a decoder-only transformer; the defaults make 4.4 million parameters.

    They are chosen for a CPU core: a decode step of a few sequences takes a few milliseconds and
    the prefill of a long prompt several times that.
    """

    dim: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    hidden: int = 704
    vocab: int = 258
    max_positions: int = 1024
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    seed: int = 20261129

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.dim // self.heads

    @property
    def group(self) -> int:
        """How many query heads share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def kv_bytes_per_token(self) -> int:
        """What one token occupies in the KV cache over all layers, in bytes (float32)."""
        return 2 * 4 * self.layers * self.kv_heads * self.head_dim

    def write(self, path: Path) -> None:
        """Write the configuration as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> ModelConfig:
        """Read what `write` wrote; ValueError where it is anything else."""
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict):
            raise ValueError("not a JSON object")
        values = cast("dict[str, Any]", stored)
        if [(name, type(value)) for name, value in values.items()] != _field_types(cls()):
            raise ValueError("not the fields of a model configuration")
        return cls(**values)


def _field_types(config: ModelConfig) -> list[tuple[str, type]]:
    """The names and types of the fields, in the order they are written."""
    return [(name, type(value)) for name, value in asdict(config).items()]
