"""Numbers of JSON text as exact 64-bit columns.

Values are what a decoder leaves: ints, None, texts, and numbers with a decimal point or an
exponent as the text they were written in, so that none passes through a float.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

from rca_llm.table import UNKNOWN, Ints

_LIMIT = 1 << 63

_INTEGER = re.compile(r"\s*(?:stream\s*)?([+-]?\d{1,25})(?:\.0*)?\s*", re.IGNORECASE)

_EXACT = Context(prec=60)

_LONGEST = 60
"""Characters of a number that is taken seriously."""

_SCALE = np.array([10 ** max(3 - places, 0) for places in range(19)], np.int64)
_CUT = np.array([10 ** max(places - 3, 0) for places in range(19)], np.int64)
"""What turns a fraction of so many decimal places of a microsecond into ns."""


def ints(values: Sequence[object]) -> Ints:
    """The values as int64; what is no integer of that range is unknown."""
    missing = values.count(None)
    if missing == len(values):
        return np.full(len(values), UNKNOWN, np.int64)
    if missing:
        values = [UNKNOWN if value is None else value for value in values]
    try:
        column = np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        column = np.fromiter(map(_integer, values), np.int64, len(values))
    if column.ndim == 1:
        return column
    return np.fromiter(map(_integer, values), np.int64, len(values))


def smalls(values: Sequence[object]) -> NDArray[np.int32]:
    """The values as int32; what is negative, too large or no integer is -1."""
    column = ints(values)
    return np.where((column < 0) | (column >= 1 << 31), -1, column).astype(np.int32)


def nanoseconds(values: Sequence[object]) -> Ints:
    """Decimal microseconds as ns, rounded down; what is no time within 64 bits is unknown."""
    try:
        whole = np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return _decimals(values)
    if whole.ndim == 1 and (not len(whole) or int(np.abs(whole).max()) < _LIMIT // 1000):
        return whole * 1000
    return _one_by_one(values)


def _decimals(values: Sequence[object]) -> Ints:
    """The same for numbers most of which have a decimal point."""
    texts = [value if type(value) is str else f"{value}.0" for value in values]
    text = ",".join(texts)
    try:
        raw = np.frombuffer(text.encode("ascii") + b",", np.uint8)
    except UnicodeEncodeError:
        return _one_by_one(values)
    dots, ends = np.flatnonzero(raw == ord(".")), np.flatnonzero(raw == ord(","))
    if not _plain(raw, dots, ends, len(values)):
        return _one_by_one(values)
    pairs = np.fromstring(text.replace(".", ","), np.int64, sep=",").reshape(-1, 2)
    places = ends - dots - 1
    return np.asarray(pairs[:, 0] * 1000 + pairs[:, 1] * _SCALE[places] // _CUT[places])


def _plain(raw: NDArray[np.uint8], dots: Ints, ends: Ints, count: int) -> bool:
    """Whether the text is `count` numbers, digits with one point each, that fit 64 bits in ns."""
    if not len(dots) == len(ends) == count:
        return False
    digits = (raw >= ord("0")) & (raw <= ord("9"))
    whole, places = dots - np.append(0, ends[:-1] + 1), ends - dots - 1
    return bool(
        int(np.count_nonzero(digits)) == len(raw) - 2 * count
        and whole.min() >= 1
        and whole.max() <= 15
        and places.min() >= 1
        and places.max() <= 18
    )


def _one_by_one(values: Sequence[object]) -> Ints:
    return np.fromiter(map(_time, values), np.int64, len(values))


def _time(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return UNKNOWN
    if isinstance(value, str):
        return _time_of_text(value)
    return _fitting(value * 1000)


def _time_of_text(text: str) -> int:
    if len(text) > _LONGEST:
        return UNKNOWN
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return UNKNOWN
    if not number.is_finite() or number.adjusted() > 18:
        return UNKNOWN
    if number.adjusted() < -_LONGEST:
        return 0
    return _fitting(int(number.scaleb(3, _EXACT).to_integral_value(ROUND_FLOOR, _EXACT)))


def _integer(value: object) -> int:
    if isinstance(value, bool):
        return UNKNOWN
    if isinstance(value, int):
        return _fitting(value)
    match = _INTEGER.fullmatch(value) if isinstance(value, str) else None
    return _fitting(int(match.group(1))) if match else UNKNOWN


def _fitting(value: int) -> int:
    return value if -_LIMIT <= value < _LIMIT else UNKNOWN
