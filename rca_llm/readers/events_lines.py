"""The lines of an event file as records, whatever happened to some of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from rca_llm.readers.jsontext import UNDECODABLE
from rca_llm.trace import Timeline

_BLOCK = 1 << 22
"""Bytes of lines that are decoded at a time."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
_HALVES = re.compile("[\ud800-\udfff]")
"""Surrogates that have lost their other half: no encoding holds them."""

_DECODER = msgspec.json.Decoder()


class Lines:
    """The records of a file, block by block, and what was wrong with its lines."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = 0
        self._file = file
        self._problems: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], int] = {}

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """The records; the last line may lack its end."""
        rest = b""
        while block := self._file.read(_BLOCK):
            whole, newline, tail = block.rpartition(b"\n")
            if newline:
                yield self._records(rest + whole)
                rest = tail
            else:
                rest += block
        yield self._last(rest)

    def note(self, timeline: Timeline, cut: bool) -> None:
        """Report the damage; `cut` says that the compressed file broke off."""
        if cut and not any(code == "truncated" for code, _ in self._problems):
            self._problem(
                "truncated", "the compressed file breaks off or is damaged here", self.size
            )
        for (code, detail), count in self._problems.items():
            timeline.note(code, count, f"byte {self._first[code, detail]}", detail)

    @staticmethod
    def decoded(line: bytes) -> Any:
        """What a sound line holds, None for any other."""
        try:
            return _DECODER.decode(line)
        except UNDECODABLE:
            return None

    def _records(self, block: bytes) -> list[dict[str, Any]]:
        begin = self.size
        self.size += len(block) + 1
        try:
            found = _DECODER.decode_lines(block)
        except UNDECODABLE:
            found = None
        if found is not None and all(type(record) is dict for record in found):
            return found
        records: list[dict[str, Any]] = []
        for line in block.split(b"\n"):
            records += self._record(line, begin)
            begin += len(line) + 1
        return records

    def _last(self, line: bytes) -> list[dict[str, Any]]:
        """The line at the end of the file, which a dying writer may have left unfinished."""
        begin, self.size = self.size, self.size + len(line)
        found = self.decoded(line)
        if isinstance(found, dict):
            return [found]
        if line.strip(b" \t\r\n\0"):
            self._problem("truncated", "the last line breaks off", begin)
        return []

    def _record(self, line: bytes, begin: int) -> list[dict[str, Any]]:
        """The record of one line, mended where its text is damaged; none where that fails."""
        if not line.strip():
            return []
        found = self.decoded(line)
        if found is None:
            found = mended(line)
            detail = "lines with bytes that JSON does not allow; U+FFFD stands for them"
            if found is None:
                detail = "lines that are no JSON; left out"
            self._problem("bad_text", detail, begin)
        if isinstance(found, dict):
            return [found]
        if found is not None:
            self._problem("bad_text", "lines that are no JSON objects; left out", begin)
        return []

    def _problem(self, code: str, detail: str, at: int) -> None:
        self._problems[code, detail] += 1
        self._first.setdefault((code, detail), at)


def mended(line: bytes) -> Any:
    """What a line holds once bytes that may not stand in JSON are U+FFFD, None if it is none."""
    text = _CONTROL.sub("\ufffd", line.decode(errors="replace").strip("\ufeff\0 \t\r\n"))
    try:
        found = json.loads(text)
        return json.loads(_HALVES.sub("\ufffd", json.dumps(found, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
