"""A byte-level tokenizer: one token a byte, and two special tokens."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

BEGIN, END = 256, 257
VOCABULARY = 258


def encode(text: str) -> list[int]:
    """The tokens of a prompt: a begin token, then its UTF-8 bytes."""
    return [BEGIN, *text.encode("utf-8", "surrogatepass")]


class Detokenizer:
    """Turns the tokens of one sequence into text, holding back unfinished UTF-8 characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, tokens: Iterable[int], final: bool = False) -> str:
        """The text that these tokens complete; `final` gives up on what is held back."""
        return self._decoder.decode(bytes(token for token in tokens if token < BEGIN), final)
