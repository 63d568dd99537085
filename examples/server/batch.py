"""One forward pass as arrays: the pieces of several sequences laid end to end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Chunk:
    """A piece of one sequence: its tokens from position `start`, and its block table.

    The block table covers every position up to the chunk's last.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """The chunks of a step, ragged, without padding.

    `tokens`, `positions` and `slots` are (rows,): the token, its place in its sequence, and the
    place of its keys and values in the cache. `rows` and `contexts` are one a chunk: its rows, and
    the slots of everything it may attend to. `last` holds each chunk's last row.
    """

    tokens: Indices
    positions: Indices
    slots: Indices
    rows: list[slice]
    contexts: list[Indices]
    last: Indices

    @classmethod
    def of(cls, chunks: Iterable[Chunk], block_size: int) -> Batch:
        """Lay the chunks end to end."""
        chunks = list(chunks)
        contexts = [_context(chunk, block_size) for chunk in chunks]
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
        return cls(
            tokens=np.concatenate([np.asarray(chunk.tokens, dtype=np.intp) for chunk in chunks]),
            positions=np.concatenate([_positions(chunk) for chunk in chunks]),
            slots=np.concatenate(
                [slots[chunk.start :] for chunk, slots in zip(chunks, contexts, strict=True)]
            ),
            rows=[
                slice(int(end) - len(chunk.tokens), int(end))
                for chunk, end in zip(chunks, ends, strict=True)
            ],
            contexts=contexts,
            last=ends - 1,
        )


def _positions(chunk: Chunk) -> Indices:
    return np.arange(chunk.start, chunk.start + len(chunk.tokens), dtype=np.intp)


def _context(chunk: Chunk, block_size: int) -> Indices:
    """The cache slot of every position from 0 to the chunk's last."""
    firsts = np.asarray(chunk.blocks, dtype=np.intp)[:, None] * block_size
    slots = (firsts + np.arange(block_size, dtype=np.intp)).ravel()
    return slots[: chunk.start + len(chunk.tokens)]
