"""One request as the engine sees it: its tokens, its progress, its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tokenizer import END


@dataclass(eq=False)
class Sequence:
    """A prompt and what has been generated from it.

    `computed` tokens have their keys and values in `blocks`; `lost` is how many had before the last
    preemption. Belongs to the engine's thread once submitted.
    """

    id: str
    prompt: list[int]
    max_tokens: int
    ignore_end: bool = False
    output: list[int] = field(default_factory=list[int])
    blocks: list[int] = field(default_factory=list[int])
    computed: int = 0
    lost: int = 0

    @property
    def length(self) -> int:
        """Prompt and output so far, in tokens."""
        return len(self.prompt) + len(self.output)

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 while decoding."""
        return self.length - self.computed

    @property
    def phase(self) -> str:
        """What its next chunk is: `prefill`, `decode`, or `recompute` after a preemption."""
        if self.computed < self.lost:
            return "recompute"
        return "prefill" if self.computed < len(self.prompt) else "decode"

    @property
    def finish_reason(self) -> str | None:
        """`stop` at the end token, `length` at the limit, None while there is more to come."""
        if self.output and self.output[-1] == END and not self.ignore_end:
            return "stop"
        return "length" if len(self.output) >= self.max_tokens else None

    def tokens(self, start: int, count: int) -> list[int]:
        """A piece of prompt and output."""
        return (self.prompt + self.output)[start : start + count]

    def forget(self) -> None:
        """Note that every cached key and value is gone."""
        self.lost = max(self.lost, self.computed)
        self.computed = 0
