"""Pieces of JSON text that may be damaged: a long list of event objects, cut, mended and closed.

Works on bytes, so that a broken event costs itself and nothing around it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding hostile JSON raises; the last of lists in lists in lists, deeper than any trace."""

_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|dur|pid|tid|id|args|s|bp)"\s*:)')
"""Between two events. A quote inside a JSON string is escaped, so no string can look like it."""

_PHASE = b'"ph"'
"""The key that every event has, and nested objects do not."""

_EVENT_END = re.compile(rb"\}\s*,")
_LIST_END = re.compile(rb"\}\s*,?\s*\]")

_REPLACEMENT = "\ufffd".encode()
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BAD_INSIDE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a surrogate pair: kept
    rb'|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))'  # a right escape: kept
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\|[\x00-\x1f]"
)
_NOT_FINITE = re.compile(rb"([:\[,]\s*)[+-]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_OVERLONG = re.compile(rb"([:\[,]\s*)-?\d{25,}(?:\.\d*)?")
_AFTER_STRING = re.compile(rb'\s*(?:[:}\]]|,\s*["\-0-9\[{tfn]|\Z)')

Valid = Callable[[bytes], bool]
"""Tells whether a text is one well-formed event."""


@dataclass
class Salvage:
    """What could be read of a piece of text: whole events, and how the rest was damaged."""

    events: list[bytes] = field(default_factory=list[bytes])
    bad_text: int = 0
    """Events with broken text that was replaced."""
    dropped: list[int] = field(default_factory=list[int])
    """Offsets in the piece of events that could not be read."""
    tail: bytes | None = None
    """What follows the list's closing bracket, None where that was not found."""


def first_event(text: bytes) -> tuple[int, int] | None:
    """Where the event before the first boundary ends, and where the one after it begins.

    None where no event begins in the text after another one's end.
    """
    matches = _BOUNDARY.finditer(text)
    match = next(matches, None)
    while match is not None:
        after = next(matches, None)
        if text.find(_PHASE, match.end(), after.start() if after else len(text)) >= 0:
            return match.start() + 1, match.end()
        match = after
    return None


def split_events(text: bytes) -> list[tuple[int, bytes]]:
    """The events of a piece with their offsets, each with what follows it up to the next."""
    begins = [0, *_event_starts(text)]
    return [(begin, text[begin:stop]) for begin, stop in itertools.pairwise([*begins, len(text)])]


def _event_starts(text: bytes, start: int = 0) -> list[int]:
    """Where events begin that another one precedes."""
    begins = [match.end() for match in _BOUNDARY.finditer(text, start)]
    return [
        begin
        for begin, stop in itertools.pairwise([*begins, len(text)])
        if text.find(_PHASE, begin, stop) >= 0
    ]


def list_end(text: bytes, valid: Valid) -> tuple[int, int] | None:
    """Where the last event of the list ends, and where what follows the list begins."""
    stripped = text.lstrip()
    if stripped.startswith(b"]"):
        return 0, len(text) - len(stripped) + 1
    begin = _last_event(text)
    for match in _LIST_END.finditer(text, begin):
        if valid(text[begin : match.start() + 1]):
            return match.start() + 1, match.end()
    return None


def _last_event(text: bytes, near_end: int = 1 << 17) -> int:
    """Where the last event of a piece begins."""
    start = max(len(text) - near_end, 0)
    begins = _event_starts(text, start)
    if begins:
        return begins[-1]
    return _last_event(text, len(text)) if start else 0


def salvage(text: bytes, valid: Valid, last: bool) -> Salvage:
    """Read a piece event by event; `last` says that the text ends after it.

    An event that the end of the text cuts is left out; it counts as no damage of its own.
    """
    result = Salvage()
    chunks = split_events(text)
    for number, (offset, chunk) in enumerate(chunks):
        final = last and number == len(chunks) - 1
        _salvage_event(result, chunk, offset, valid, final)
        if result.tail is not None:
            break
    return result


def _salvage_event(result: Salvage, chunk: bytes, offset: int, valid: Valid, final: bool) -> None:
    """Read one event and what follows it up to the next."""
    readings = _readings(chunk)
    sound = [reading for reading in readings if valid(reading[0])]
    for event, tail in sound or readings:
        mended = mend(event, valid)
        if mended is not None:
            result.events.append(mended)
            result.bad_text += mended not in (event, _finite(event))
            result.tail = tail
            return
    if chunk.lstrip().startswith(b"]"):
        result.tail = chunk.lstrip()[1:]
    elif final:
        result.events += _before_cut(chunk, valid)
    else:
        result.dropped.append(offset)


def _readings(chunk: bytes) -> list[tuple[bytes, bytes | None]]:
    """The event that a chunk may be, or the one with which the list ends and what follows it."""
    whole: bytes = chunk.strip().removesuffix(b",").rstrip()
    ends = _LIST_END.finditer(chunk)
    return [(whole, None), *((chunk[: m.start() + 1].strip(), chunk[m.end() :]) for m in ends)]


def _before_cut(chunk: bytes, valid: Valid) -> list[bytes]:
    """The whole event, if there is one, before the beginning of the one that was cut off."""
    ends = [chunk[: match.start() + 1].strip() for match in _EVENT_END.finditer(chunk)]
    return [event for event in ends if valid(event)][:1]


def mend(event: bytes, valid: Valid) -> bytes | None:
    """An event with its broken text replaced, None where it cannot be read."""
    text = _clean(event)
    for step in (_same, _finite, _mended_strings, _escaped_quotes, _mended_strings):
        text = step(text)
        if valid(text):
            return text
    return None


def _same(text: bytes) -> bytes:
    return text


def _clean(text: bytes) -> bytes:
    """Valid UTF-8 without control characters; U+FFFD stands for what was not."""
    if not text.isascii():
        text = text.decode("utf-8", "replace").encode()
    return _CONTROL.sub(_REPLACEMENT, text)


def _finite(text: bytes) -> bytes:
    """`null` for NaN, infinities and numbers that no 64-bit value can hold."""
    return _OVERLONG.sub(rb"\1null", _NOT_FINITE.sub(rb"\1null", text))


def _mended_strings(text: bytes) -> bytes:
    """U+FFFD for wrong escapes and raw line breaks inside strings."""
    return _STRING.sub(lambda match: _BAD_INSIDE.sub(_kept_or_replaced, match.group()), text)


def _kept_or_replaced(match: re.Match[bytes]) -> bytes:
    return match.group(1) or _REPLACEMENT


def _escaped_quotes(text: bytes) -> bytes:
    """Escape the quotes inside strings: those after which no string can end."""
    parts: list[bytes] = []
    inside, begin = False, 0
    for place in _quotes(text):
        closing = inside and _AFTER_STRING.match(text, place + 1) is not None
        if inside and not closing:
            parts += [text[begin:place], b"\\"]
            begin = place
        else:
            inside = not inside
    return b"".join([*parts, text[begin:]])


def _quotes(text: bytes) -> list[int]:
    """Where the quotes stand that no backslash escapes."""
    return [match.end() - 1 for match in re.finditer(rb'(?<!\\)(?:\\\\)*"', text)]
