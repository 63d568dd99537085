"""Decoding of SQLite records: many at once, column by column, with NumPy.

A record is a header of serial types, one varint a column, and the values behind it (section 2.1 of
https://www.sqlite.org/fileformat2.html).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rca_llm.table import NO_TEXT, UNKNOWN, Array, Ints, Mask

PADDING = 16
"""Bytes behind the last record, so that 8 can be read at every place."""

_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
_SHIFTS = np.array([0, 56, 48, 40, 32, 16, 0, 0, 0, 0, 0, 0], np.int64)
"""By serial type: the bytes it takes, and the bits behind it in the 8 bytes from its place on."""

_NULL, _REAL, _ZERO, _ONE, _SIZED = 0, 7, 8, 9, 12
"""Serial types; from `_SIZED` on they are blobs (even) and texts (odd) and tell the length."""

Bytes = NDArray[np.uint8]


@dataclass
class Cells:
    """Records: their row ids, and where each begins and ends in `data`."""

    data: Bytes
    rowid: Ints
    at: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Array) -> Cells:
        """The records that a mask or an index array selects."""
        return Cells(self.data, self.rowid[rows], self.at[rows], self.end[rows])


@dataclass
class Field:
    """One column of some records: serial types, and where the values are in `data`."""

    data: Bytes
    kind: Ints
    at: Ints

    def ints(self) -> Ints:
        """Integers; `UNKNOWN` for NULL and whatever is no number, reals rounded."""
        words = _words(self.data, ">i8")[self.at].astype(np.int64)
        kind = self.kind
        if _within(kind, 1, _REAL - 1):
            return words >> _SHIFTS[kind]
        kind = np.where(kind < _SIZED, kind, _NULL)
        values = words >> _SHIFTS[kind]
        values[(kind == _NULL) | (kind > _ONE)] = UNKNOWN
        values[kind == _ZERO] = 0
        values[kind == _ONE] = 1
        for row in np.flatnonzero(kind == _REAL).tolist():
            values[row] = _rounded(float(_words(self.data, ">f8")[self.at[row]]))
        return values

    def texts(self) -> Texts:
        """Texts and blobs; whatever is neither counts as NULL."""
        length = np.where(self.kind >= _SIZED, (self.kind - _SIZED) // 2, -1)
        return Texts(self.data, self.at, length)


@dataclass
class Interning:
    """Gives texts their codes, and knows those that it has given by the hash of the text."""

    code_of: Callable[[bytes], int]
    _keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _codes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    def __call__(self, text: bytes) -> int:
        """The code of a text."""
        return self.code_of(text)

    def codes_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The codes of texts with these hashes, `NO_TEXT` for those that are new."""
        if not len(self._keys):
            return np.full(len(keys), NO_TEXT, np.int32)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._codes[place], NO_TEXT).astype(np.int32)

    def learn(self, keys: NDArray[np.uint64], codes: NDArray[np.int32]) -> None:
        """Remember the codes of texts with hashes that were new."""
        keys, codes = np.append(self._keys, keys), np.append(self._codes, codes)
        order = np.argsort(keys)
        self._keys, self._codes = keys[order], codes[order]


@dataclass
class Texts:
    """The texts of a column: where each begins in `data`, and its length in bytes, -1 for NULL."""

    data: Bytes
    at: Ints
    length: Ints

    def get(self, row: int) -> bytes | None:
        """The bytes of one text, None for NULL."""
        at, length = int(self.at[row]), int(self.length[row])
        return self.data[at : at + length].tobytes() if length >= 0 else None

    def codes(self, intern: Callable[[bytes], int]) -> NDArray[np.int32]:
        """A code for every text, `NO_TEXT` for NULL.

        `intern` gives it, and is asked once for equal texts, in their order; an `Interning` is not
        asked for those of earlier columns either. Texts are told apart by a 64-bit hash.
        """
        codes = np.full(len(self.at), NO_TEXT, np.int32)
        rows = np.flatnonzero(self.length >= 0)
        keys = _hashes(self.data, self.at[rows], self.length[rows])
        keys, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        seen = intern if isinstance(intern, Interning) else Interning(intern)
        distinct = seen.codes_of(keys)
        new = np.flatnonzero(distinct == NO_TEXT)
        new = new[np.argsort(first[new])]
        distinct[new] = [intern(self.get(row) or b"") for row in rows[first[new]].tolist()]
        seen.learn(keys[new], distinct[new])
        codes[rows] = distinct[inverse]
        return codes

    def take(self, rows: Array) -> Texts:
        """The texts of the rows that a mask or an index array selects."""
        return Texts(self.data, self.at[rows], self.length[rows])

    def cut_number(self, before: bytes) -> Mask:
        """Cut `before` and the decimal number behind it off the ends; where there was one."""
        digits = self._trailing_digits()
        tail = self.at + self.length - digits - len(before)
        found = (digits > 0) & (tail >= self.at)
        for place, byte in enumerate(before):
            found[found] = self.data[tail[found] + place] == byte
        self.length = np.where(found, tail - self.at, self.length)
        return found

    def _trailing_digits(self) -> Ints:
        digits = np.zeros(len(self.at), np.int64)
        rows = np.flatnonzero(self.length > 0)
        while len(rows):
            last = self.data[self.at[rows] + self.length[rows] - digits[rows] - 1]
            rows = rows[(last >= ord("0")) & (last <= ord("9"))]
            digits[rows] += 1
            rows = rows[digits[rows] < self.length[rows]]
        return digits


def fields(cells: Cells, wanted: Collection[int]) -> tuple[dict[int, Field], Mask]:
    """These columns, by number, and the records that are sound as far as the last of them.

    A record may be shorter than its table is wide: columns that were added later are NULL there.
    """
    size, taken = varints(cells.data, cells.at)
    place, header_end = cells.at + taken, cells.at + size
    sound = (size > 0) & (header_end <= cells.end)
    value = np.where(sound, header_end, cells.at)
    found: dict[int, Field] = {}
    for number in range(max(wanted, default=-1) + 1):
        kind, taken = varints(cells.data, np.minimum(place, cells.end))
        there = place < header_end
        kind = np.where(there & sound, kind, _NULL)
        if number in wanted:
            found[number] = Field(cells.data, kind, value)
        place = np.where(there, place + taken, place)
        value = value + _size(kind)
        sound &= value <= cells.end
        value = np.where(sound, value, cells.at)
    return found, sound


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The variable-length integers at these places, and the bytes each takes (section 1.6)."""
    first = data[at]
    value, taken = (first & 0x7F).astype(np.int64), np.ones(len(at), np.int64)
    rows = np.flatnonzero(first > 0x7F)
    for length in range(2, 10):
        if not len(rows):
            break
        byte = data[at[rows] + length - 1].astype(np.int64)
        last = length == 9
        value[rows] = (value[rows] << 8) | byte if last else (value[rows] << 7) | (byte & 0x7F)
        taken[rows] = length
        rows = rows[byte > 0x7F]
    return value, taken


def pairs(data: Bytes, at: Ints) -> Ints:
    """The 16-bit integers at these places."""
    return (data[at].astype(np.int64) << 8) | data[at + 1]


def _size(kind: Ints) -> Ints:
    """The bytes that values of these serial types take."""
    if _within(kind, _NULL, _SIZED - 1):
        return _SIZES[kind]
    sized = np.where(kind < _SIZED, 0, (kind - _SIZED) // 2)
    return sized + _SIZES[np.where(kind < _SIZED, np.maximum(kind, 0), 0)]


def _within(kind: Ints, least: int, most: int) -> bool:
    """Whether all serial types lie between two, as they mostly do."""
    return not len(kind) or (int(kind.min()) >= least and int(kind.max()) <= most)


def _words(data: Bytes, dtype: str) -> Array:
    """The 8 bytes from every place on."""
    words: Array = np.ndarray((len(data) - 7,), dtype, data, strides=(1,))
    return words


def _rounded(value: float) -> int:
    """A real number as an integer; `UNKNOWN` for one that is not finite or too large."""
    return round(value) if abs(value) < 2**63 else UNKNOWN


def _hashes(data: Bytes, at: Ints, length: Ints) -> NDArray[np.uint64]:
    """A 64-bit hash of every text, of 8 bytes at a time."""
    words = _words(data, "<u8")
    keys: NDArray[np.uint64] = length.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    rows, done = np.arange(len(at)), 0
    while len(rows := rows[length[rows] > done]):
        spare = np.maximum(done + 8 - length[rows], 0).astype(np.uint64) * np.uint64(8)
        word = (words[at[rows] + done] << spare) >> spare
        mixed = (keys[rows] ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        keys[rows] = mixed ^ (mixed >> np.uint64(32))
        done += 8
    return keys
