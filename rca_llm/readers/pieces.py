"""A long JSON list of events, read and cut into pieces of whole events.

Piece k holds the events that begin in block k of the text, so that several processes which each
read the same file agree on the pieces without a word, and each takes those that fall to it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rca_llm.readers.files import Stream
from rca_llm.readers.jsontext import first_event

BLOCK = 1 << 20
"""Bytes of a block: few beside the processor's caches, many beside what a piece costs by itself."""

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"\s*\[")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Piece:
    """Whole events as a JSON list; `last` where the text ends after them.

    The closing bracket of the last piece, and what follows it, is the file's own, if it is there.
    """

    index: int
    offset: int
    """Where in the decompressed text its first event begins."""
    text: bytes
    last: bool


class Pieces:
    """The events of a stream, piece by piece, and the text that precedes them."""

    def __init__(self, stream: Stream, block: int = BLOCK) -> None:
        self._stream = stream
        self._block = block
        self.length = 0
        """Bytes of text read so far."""
        self.head, rest = self._read_head()
        self._base = len(self.head)
        self._index = 0
        self._ended = False
        self._blocks: deque[bytes] = deque([rest + self._read(block - len(rest))])

    def take(self, indices: Iterable[int]) -> Iterator[Piece]:
        """The pieces of these ascending indices, as far as the text goes."""
        for index in indices:
            while self._index < index and self._advance():
                pass
            if self._index < index:
                return
            piece = self._piece()
            if piece is not None:
                yield piece

    def _read_head(self) -> tuple[bytes, bytes]:
        """What precedes the first event, and what was read after it."""
        text = b""
        while more := self._read(self._block):
            text += more
            match = _LIST.match(text.removeprefix(_BYTE_ORDER_MARK)) and _LIST.search(text)
            match = match or _EVENTS.search(text)
            if match:
                return text[: match.end()], text[match.end() :]
        return text, b""

    def _advance(self) -> bool:
        """Go to the next block; False where the text ends before it."""
        if len(self._blocks) == 1 and not self._grow():
            return False
        self._blocks.popleft()
        self._index += 1
        return True

    def _grow(self) -> bool:
        """Read one block more; False at the end of the text."""
        block = b"" if self._ended else self._read(self._block)
        self._ended = not block
        if block:
            self._blocks.append(block)
        return bool(block)

    def _piece(self) -> Piece | None:
        """The events that begin in the current block, None where none does."""
        begin = 0
        if self._index:
            boundary = first_event(self._blocks[0])
            if boundary is None:
                return None
            begin = boundary[1]
        parts, last = self._parts(begin)
        offset = self._base + self._index * self._block + begin
        return Piece(self._index, offset, b"".join([b"[", *parts, b"" if last else b"]"]), last)

    def _parts(self, begin: int) -> tuple[list[memoryview], bool]:
        """The text from a place in the current block to the first event of a later one."""
        parts, place = [memoryview(self._blocks[0])[begin:]], 1
        while place < len(self._blocks) or self._grow():
            boundary = first_event(self._blocks[place])
            parts.append(memoryview(self._blocks[place])[: boundary and boundary[0]])
            if boundary is not None:
                return parts, False
            place += 1
        return parts, True

    def _read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0 and (part := self._stream.read(size)):
            parts.append(part)
            size -= len(part)
            self.length += len(part)
        return b"".join(parts)
