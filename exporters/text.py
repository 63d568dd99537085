"""Names from traces made safe to show: they are hostile text, wherever they came from.

HTML, rich markup and spreadsheet formulas are the outputs' own business; here is what all of them
need, since no escaping helps against it: control characters, bidirectional marks and sheer length.
"""

from __future__ import annotations

import re

LIMIT = 400
"""Characters of a name that are shown; C++ kernel names with their templates rarely need more."""

_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """The text with every character that hides, reorders or controls shown as its number.

    Terminal escapes, line breaks, right-to-left overrides and zero-width marks become ⟨U+202E⟩ and
    the like; joiners that scripts need stay. Lone surrogates, which no encoding can hold, become
    U+FFFD.
    """
    return _INVISIBLE.sub(_number, text)


def _number(match: re.Match[str]) -> str:
    code = ord(match.group())
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


def shown(text: object, limit: int = LIMIT) -> str:
    """A name as people see it: visible, and cut to `limit` characters with its length noted."""
    whole = str(text)
    if len(whole) <= limit:
        return visible(whole)
    return f"{visible(whole[:limit])}… ({len(whole):,} characters)"
