"""A stand-in for tokenizers: what is made of it writes no file."""

from types import SimpleNamespace

from torch import Anything

Tokenizer = Anything
decoders = models = Anything()


class ByteLevel(Anything):
    """Bytes as letters."""

    @staticmethod
    def alphabet() -> list[str]:
        """Few of them."""
        return ["a", "b"]


pre_tokenizers = SimpleNamespace(ByteLevel=ByteLevel)
