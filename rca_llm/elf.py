"""What a program's file says of itself: for which machine it is made, and which libraries it needs.

Read to know before a start what cannot be preloaded into it. A file that is no ELF, or not whole,
says nothing.
"""

from __future__ import annotations

import mmap
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

Data = bytes | mmap.mmap
"""A file's content."""

_MOST_ENTRIES = 10_000
"""Of the list of libraries; programs have some dozens."""
_FIRST = re.compile(r"^lib(clang_rt\.)?(a|t|l|m|hwa)san\b")
"""Libraries that refuse to work unless they are loaded before all others."""
_LOAD, _DYNAMIC, _NEEDED, _STRINGS = 1, 2, 1, 5


class Machine(NamedTuple):
    """What a file runs on: 32 or 64 bits, the order of bytes, and the processor's number."""

    bits: int
    order: int
    processor: int


def why_not(command: str, library: Path, env: Mapping[str, str]) -> str | None:
    """Why `library` should not be preloaded into a command; None where it may be."""
    program = _program(command, env)
    data, own = _start(program), machine(_start(library))
    found = machine(data)
    if program is None or found is None or own is None:
        return None
    if found != own:
        other = f"a {found.bits}-bit program" if found.bits != own.bits else "for another processor"
        return f"{program.name} is {other}"
    first = next((name for name in needed(data) if _FIRST.match(name)), None)
    return None if first is None else f"{program.name} needs {first} to be loaded first"


def _program(command: str, env: Mapping[str, str]) -> Path | None:
    """The file that is run: a script's interpreter, and what `env` starts for it."""
    found = shutil.which(command, path=env.get("PATH"))
    data = _start(Path(found)) if found is not None else b""
    if found is None or data[:2] != b"#!":
        return None if found is None else Path(found)
    words = data[2:200].partition(b"\n")[0].decode(errors="replace").split()
    if len(words) > 1 and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    found = shutil.which(words[0], path=env.get("PATH")) if words else None
    return None if found is None else Path(found)


def _start(path: Path | None) -> Data:
    """A file's content, mapped; nothing where it cannot be read."""
    with suppress(OSError, ValueError):
        if path is not None and path.is_file():
            with path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return b""


def machine(data: Data) -> Machine | None:
    """What an ELF file runs on, None of any other file."""
    if len(data) < 20 or data[:4] != b"\x7fELF" or data[4] not in (1, 2):
        return None
    order = "<" if data[5] == 1 else ">"
    return Machine(32 * data[4], data[5], struct.unpack_from(order + "H", data, 18)[0])


def needed(data: Data) -> list[str]:
    """The libraries that an ELF file of 64 bits names, in their order; none where it is damaged."""
    try:
        return list(_needed(data))
    except (struct.error, IndexError, OverflowError, ValueError):
        return []


def _needed(data: Data) -> Iterator[str]:
    order = "<" if data[5] == 1 else ">"
    (table,) = struct.unpack_from(order + "Q", data, 32)
    size, count = struct.unpack_from(order + "HH", data, 54)
    segments = [
        struct.unpack_from(order + "IIQQQQ", data, table + size * number) for number in range(count)
    ]
    entries = [
        pair for one in segments if one[0] == _DYNAMIC for pair in _entries(data, order, one)
    ]
    strings = [_offset(segments, value) for tag, value in entries if tag == _STRINGS]
    for tag, value in entries if strings else ():
        if tag == _NEEDED:
            at = strings[0] + value
            yield data[at : max(data.find(b"\0", at), at)].decode(errors="replace")


def _entries(data: Data, order: str, segment: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The tags and values of the dynamic section, to its end."""
    offset, length = segment[2], segment[5]
    for number in range(min(length // 16, _MOST_ENTRIES)):
        tag, value = struct.unpack_from(order + "qQ", data, offset + 16 * number)
        if tag == 0:
            return
        yield tag, value


def _offset(segments: list[tuple[int, ...]], address: int) -> int:
    """Where in the file an address lies."""
    for kind, _, offset, start, _, length in segments:
        if kind == _LOAD and start <= address < start + length:
            return address - start + offset
    raise ValueError("an address outside of the file")
