"""Who owns which block of the paged KV cache."""

from __future__ import annotations


class BlockPool:
    """The blocks of a KV cache of fixed size; a block holds `block_size` tokens of one sequence."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total = blocks
        self.block_size = block_size
        # Popped from the end, so that block 0 is handed out first and placement is deterministic.
        self._free = list(range(blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many blocks nobody owns."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """The owned fraction of the pool."""
        return 1.0 - len(self._free) / self.total

    def needed(self, tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-tokens // self.block_size)

    def grow(self, owned: list[int], tokens: int) -> bool:
        """Extend a block table to hold `tokens`; False, and nothing changed, where it cannot."""
        missing = self.needed(tokens) - len(owned)
        if missing > len(self._free):
            return False
        owned.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, owned: list[int]) -> None:
        """Take back every block of a table and empty it."""
        self._free.extend(reversed(owned))
        owned.clear()
