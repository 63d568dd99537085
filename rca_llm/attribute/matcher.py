"""Ordered regular expressions, of which only those that can match are tried.

A table of kernel names has a hundred rows and a trace up to a hundred thousand names. Trying every
row on every name costs about 0.3 ms a name; here each row is filed under three letters that any
match must contain, and only the rows filed under letters that occur in the text are tried.
A pattern is compiled when it is first tried: most traces need only some.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_WIDTH = 3
_CLASS_OR_ESCAPE = re.compile(r"\\.|\[[^\]]*\]")
_INNERMOST_GROUP = re.compile(r"\([^()]*\)")
_OPTIONAL = re.compile(r".[?*{]")
_LETTERS = re.compile(rf"[a-z0-9_:]{{{_WIDTH},}}")
_GAP = " "


class OrderedPatterns:
    """Finds the first of several patterns that occurs in a text.

    Patterns are written in lower case and searched for in lower-case text. `samples` are typical
    texts: of the letters that a pattern needs, those that are rarest in them are used.
    """

    def __init__(self, patterns: Sequence[str], samples: Sequence[str]) -> None:
        self._patterns: list[str | re.Pattern[str]] = list(patterns)
        self._rows: defaultdict[str, set[int]] = defaultdict(set)
        self._always: set[int] = set()
        rarity = Counter(trigram for sample in samples for trigram in _trigrams(sample))
        for row, pattern in enumerate(patterns):
            for alternative in required_letters(pattern):
                if alternative:
                    self._rows[min(sorted(alternative), key=rarity.__getitem__)].add(row)
                else:
                    self._always.add(row)

    def first(self, text: str) -> int | None:
        """The index of the first pattern that occurs in the text, None where none does."""
        candidates = set(self._always)
        occurring = {text[at : at + _WIDTH] for at in range(len(text) - _WIDTH + 1)}
        for trigram in self._rows.keys() & occurring:
            candidates |= self._rows[trigram]
        for row in sorted(candidates):
            if self._compiled(row).search(text):
                return row
        return None

    def _compiled(self, row: int) -> re.Pattern[str]:
        pattern = self._patterns[row]
        if isinstance(pattern, str):
            pattern = self._patterns[row] = re.compile(pattern)
        return pattern


def required_letters(pattern: str) -> list[set[str]]:
    """For each top-level alternative, three-letter runs of which a match contains every one.

    Only plain letters outside groups, classes and optional parts count; an empty set means that
    nothing can be said.
    """
    text = _CLASS_OR_ESCAPE.sub(_GAP, pattern)
    while (shorter := _INNERMOST_GROUP.sub(_GAP, text)) != text:
        text = shorter
    return [_trigrams(_OPTIONAL.sub(_GAP, part)) for part in text.split("|")]


def _trigrams(text: str) -> set[str]:
    return {
        run[at : at + _WIDTH]
        for run in _LETTERS.findall(text)
        for at in range(len(run) - _WIDTH + 1)
    }
