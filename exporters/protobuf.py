"""The little of protobuf's wire format that writing a trace needs.

The generated classes cost a dependency at run time and several times the time; what is written
here is read back with them in the tests. Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """An unsigned number, or a negative one as its 64-bit complement."""
    if 0 <= value < len(_SHORT):
        return _SHORT[value]
    return _long(value)


def _long(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = [bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 12)]
"""The short numbers, tags and lengths among them: most of what is written."""


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of fixed 64 bits."""
    return varint(field << 3 | _FIXED64) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    """A field with a double."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def message(field: int, content: bytes) -> bytes:
    """A field that holds a message, or bytes."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field that holds a text; lone surrogates, which UTF-8 cannot hold, become U+FFFD."""
    return message(
        field, value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    )
