"""Parquet files from and to NumPy columns, exactly: 64-bit integers never pass through a float."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from arro3.core import (
    Array,
    ChunkedArray,
    DataType,
    RecordBatchReader,
    Table,
    dictionary_dictionary,
    dictionary_indices,
)
from arro3.io import read_parquet, write_parquet
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_TEXT = DataType.string()
_CODED = DataType.dictionary(DataType.int32(), _TEXT)
_ROWS_A_BATCH = 1 << 20


def numbers(values: NDArray[Any], unknown: NDArray[np.bool_] | None = None) -> Array:
    """A column of numbers; the rows that `unknown` marks become null."""
    values = np.ascontiguousarray(values)  # fields of records lie apart in memory
    plain = Array.from_numpy(values) if len(values) else _no_numbers(values.dtype)
    if unknown is None or not unknown.any():
        return plain
    # Arrow arrays are built with nulls only from Python objects: append one null and select it.
    rows = np.where(unknown, len(values), np.arange(len(values)))
    joined = ChunkedArray([plain, Array([None], type=plain.type)]).combine_chunks()
    return joined.take(Array.from_numpy(rows))


def texts(vocabulary: Sequence[str], codes: NDArray[np.int32]) -> Array:
    """A column of texts, given as indices into a vocabulary; an index of -1 becomes null."""
    coded = Array([*vocabulary, None], type=_TEXT).cast(_CODED)
    rows = np.where(codes < 0, len(vocabulary), codes).astype(np.int32)
    return coded.take(Array.from_numpy(rows)) if len(rows) else coded.slice(0, 0)


def to_numbers(column: Array, unknown: float) -> NDArray[Any]:
    """The values of a column of numbers, with `unknown` in the place of null."""
    if len(column) == 0:
        return np.zeros(0, _dtype(column))
    if column.null_count == 0:
        return _values(column)
    known, values = _buffers(column)
    return np.where(known, values, values.dtype.type(unknown))


def to_integers(column: Array, unknown: int) -> NDArray[np.int64]:
    """The values of any column as int64, with `unknown` for null and for what is no number."""
    return to_numbers(column.cast(DataType.int64()), unknown)


def to_texts(column: Array) -> tuple[list[str], NDArray[np.int32]]:
    """The vocabulary of a column of texts and its indices, -1 for null."""
    coded = column.cast(_CODED)
    vocabulary = cast("list[str]", dictionary_dictionary(coded).to_pylist())
    return vocabulary, to_numbers(dictionary_indices(coded), -1).astype(np.int32)


def write(path: Path, columns: Mapping[str, Array], rising: Collection[str] = ()) -> None:
    """Write columns of one length; `rising` names those to store as differences (times, ids).

    Raises `OSError` where the file cannot be written.
    """
    with path.open("wb", buffering=0) as file:
        target = _Target(file)
        write_parquet(
            Table.from_arrays(list(columns.values()), names=list(columns)),
            cast("IO[bytes]", target),
            compression="zstd(1)",
            column_encoding=dict.fromkeys(rising, "delta_binary_packed"),
            column_dictionary_enabled=dict.fromkeys(rising, False),
        )
    if target.failed is not None:
        raise target.failed


class _Target(io.RawIOBase):
    """A file that keeps its first error to itself: the library would panic on it, and print."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.failed: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        rest = memoryview(data)
        size = len(rest)
        try:
            while len(rest) and self.failed is None:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.failed = error
        return size


def read(path: Path) -> dict[str, Array]:
    """Every column of a file, in one piece each; `ValueError` where the file is damaged."""
    _check_footer(path)
    try:
        table = _reader(path).read_all()
        return {name: _whole(table[name]) for name in table.column_names}
    except BaseException as error:
        # The library panics on damage that it does not expect, which is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{path.name}: damaged Parquet file: {error}") from None


def _check_footer(path: Path) -> None:
    """Refuse a file that was cut short, on which the library would panic and print."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        length, magic = file.read(4), file.read(4)
    if magic != b"PAR1" or int.from_bytes(length, "little") + 12 > size:
        raise ValueError(f"{path.name}: not a whole Parquet file: no footer at its end")


def _reader(path: Path) -> RecordBatchReader:
    try:
        return read_parquet(path, batch_size=_ROWS_A_BATCH)
    except TypeError:  # arro3 before 0.9, the last for Python 3.10: batches of 1,024 rows
        return read_parquet(path)


def _whole(column: ChunkedArray) -> Array:
    """A column in one piece; an empty one has no pieces to join."""
    if column.num_chunks:
        return column.combine_chunks()
    if DataType.is_dictionary(column.type):
        return texts([], np.zeros(0, np.int32))
    return Array([], type=column.type)


_ARROW_TYPES = {
    "int64": DataType.int64(),
    "int32": DataType.int32(),
    "float64": DataType.float64(),
    "bool": DataType.bool(),
}


def _no_numbers(dtype: np.dtype[Any]) -> Array:
    return Array([], type=_ARROW_TYPES[str(dtype)])


def _values(column: Array) -> NDArray[Any]:
    """The values of a column without nulls."""
    return np.asarray(cast("object", column))  # whose own hints leave the type open


def _dtype(column: Array) -> np.dtype[Any]:
    """The NumPy type of an Arrow column."""
    return _values(Array([0], type=column.type)).dtype


class _ArrowArray(ctypes.Structure):
    """The head of `struct ArrowArray` in the Arrow C data interface."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    )


def _buffers(column: Array) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Which rows of a column with nulls are known, and the values; arro3 hands out neither."""
    dtype = _dtype(column)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    _, capsule = column.__arrow_c_array__()
    head = _ArrowArray.from_address(pointer(capsule, b"arrow_array"))
    stop = head.offset + head.length
    bits = np.frombuffer(ctypes.string_at(head.buffers[0], (stop + 7) // 8), np.uint8)
    known = np.unpackbits(bits, count=stop, bitorder="little")[head.offset :].astype(np.bool_)
    values = np.frombuffer(ctypes.string_at(head.buffers[1], stop * dtype.itemsize), dtype)
    return known, values[head.offset :]
