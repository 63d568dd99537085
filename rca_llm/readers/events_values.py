"""Columns from the values of JSON records, whatever types those turn out to have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rca_llm.table import UNKNOWN, Array, Kind, Strings
from rca_llm.trace import Timeline

_SMALL = np.iinfo(np.int32)
_WRONG = "values of a wrong type; taken as unknown"
_IMPOSSIBLE = "times 146 years or more after the clock's zero; taken as unknown"
_LATEST_NS = 2**62
"""No clock shows it, monotonic or UTC, before 2116: what is later stands for something else."""
_ROUNDED = "numbers with a fraction where whole ones belong; rounded"


def as_list(value: Any) -> list[Any]:
    """A JSON array, empty for anything else."""
    return [*cast("Iterable[Any]", value)] if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    """A JSON object, empty for anything else."""
    return {**cast("Mapping[str, Any]", value)} if isinstance(value, dict) else {}


class Values:
    """Turns lists of JSON values into columns, and counts the values that it had to mend."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._mended: Counter[tuple[str, str]] = Counter()

    def column(self, kind: Kind, values: Sequence[Any], where: str) -> Array:
        """A column of a kind; None and values that do not fit are unknown."""
        if kind == "text":
            return self.texts(values, where)
        if kind == "float":
            return np.array([self._real(value, where) for value in values], np.float64)
        found = self.ints(values, where)
        if kind == "small":
            fits = (found >= _SMALL.min) & (found <= _SMALL.max)
            return np.where(fits, found, -1).astype(np.int32)
        return self._possible(found, where) if kind == "time" else found

    def _possible(self, times: Array, where: str) -> Array:
        """Times with those that no clock shows as unknown."""
        late = times >= _LATEST_NS
        if not late.any():
            return times
        self._mended[where, _IMPOSSIBLE] += int(late.sum())
        return np.where(late, UNKNOWN, times)

    def ints(self, values: Sequence[Any], where: str) -> Array:
        """Whole numbers as int64."""
        types = set(map(type, values))
        try:
            if types == {int}:
                return np.array(values, np.int64)
            if types <= {int, type(None)}:
                return np.array([UNKNOWN if v is None else v for v in values], np.int64)
        except OverflowError:
            pass
        return np.array([self._whole(value, where) for value in values], np.int64)

    def texts(self, values: Sequence[Any], where: str) -> Array:
        """Codes of texts; numbers stand for their digits, as ids are often written."""
        if set(map(type, values)) <= {str, type(None)}:
            return self._strings.codes(values)
        return self._strings.codes(self._text(value, where) for value in values)

    def note(self, timeline: Timeline) -> None:
        """Report what was mended."""
        for (where, detail), count in self._mended.items():
            timeline.note("repaired", count, where, detail)

    def _whole(self, value: Any, where: str) -> int:
        if type(value) is float and math.isfinite(value):
            if value != round(value):
                self._mended[where, _ROUNDED] += 1
            value = round(value)
        if type(value) is int and abs(value) < 2**63:
            return value
        self._count_wrong(value, where)
        return UNKNOWN

    def _real(self, value: Any, where: str) -> float:
        if type(value) in (int, float) and abs(value) < 1e300:
            return float(value)
        self._count_wrong(value, where)
        return math.nan

    def _text(self, value: Any, where: str) -> str | None:
        if type(value) is str or value is None:
            return value
        if type(value) is int:
            return str(value)
        self._count_wrong(value, where)
        return None

    def _count_wrong(self, value: Any, where: str) -> None:
        if value is not None:
            self._mended[where, _WRONG] += 1
