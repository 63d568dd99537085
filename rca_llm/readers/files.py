"""Opening of inputs: local or remote, plain, gzip or zstd, damaged ones as far as they go."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from rca_llm.errors import RcaError
from rca_llm.output import is_special

HEAD = 1 << 16
"""Bytes of an input, decompressed, that a reader sees to recognise it."""

_FEED = 1 << 15
"""Compressed bytes decoded at a time: what a damaged spot can cost, so it is small."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Source:
    """An input that exists: its path or URL and how it begins."""

    path: str
    head: bytes = b""
    """The first `HEAD` bytes after decompression; empty for a directory."""
    directory: bool = False
    compression: str = ""
    """What the bytes of the file are compressed with; the name of the format, or nothing."""
    damaged: bool = False
    """Whether decompression broke off within the head."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    def open(self) -> Stream:
        """The content, decompressed, from the start."""
        return Stream(_open(self.path))

    @contextlib.contextmanager
    def local(self) -> Generator[Path]:
        """A local, uncompressed file of the content; a temporary one only where that is needed."""
        if not is_url(self.path) and not _compressed(self.path):
            yield Path(self.path)
            return
        with tempfile.TemporaryDirectory(prefix="rca-llm-") as folder:
            copy = Path(folder, "input")
            with self.open() as stream, copy.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
            yield copy


def is_url(path: str) -> bool:
    """Whether a path goes through fsspec rather than the local file system."""
    return "://" in path


def source(path: str | os.PathLike[str]) -> Source:
    """The input at a path or URL; `RcaError` where there is none or it cannot be opened."""
    name = os.fspath(path)
    if not name:
        raise RcaError("an input's path is empty")
    try:
        if _is_directory(name):
            return Source(name, directory=True)
        if is_special(name):
            raise RcaError(
                f"{name}: is a pipe, a socket or a device; give a file, which is read twice"
            )
        with Stream(_open(name)) as stream:
            head = _fill(stream, HEAD)
            return Source(name, head, False, stream.compression, stream.truncated)
    except FileNotFoundError:
        raise RcaError(f"{name}: no such file or directory") from None
    except (OSError, ValueError, ImportError) as error:
        raise RcaError(f"{name}: cannot be opened: {error}") from None


def entries(directory: str) -> list[str]:
    """The paths in a directory, hidden ones left out, in the order of their names."""
    try:
        found = _listed(directory)
    except OSError as error:
        raise RcaError(f"{directory}: cannot be listed: {error}") from None
    shown = (path for path in found if not path.rstrip("/").rsplit("/", 1)[-1].startswith("."))
    return sorted(path for path in shown if not is_special(path))


def _listed(directory: str) -> list[str]:
    if not is_url(directory):
        return [os.path.join(directory, name) for name in os.listdir(directory)]
    system, root = _filesystem(directory)
    return [str(system.unstrip_protocol(name)) for name in system.ls(root, detail=False)]


class _Decoder(Protocol):
    """What decompresses a stream: `zlib`'s and `isal`'s objects alike."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Stream(io.RawIOBase):
    """The decompressed bytes of a file.

    A compressed stream that breaks off, or is damaged, ends where it can be decoded no further;
    `truncated` is then set.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self.truncated = False
        self._raw = raw
        start = _fill(raw, 4)
        raw.seek(0)
        self._gzip = start.startswith(_GZIP)
        self.compression = "gzip" if self._gzip else "zstd" if start.startswith(_ZSTD) else ""
        self._decoder: _Decoder | None = _gzip_decoder() if self._gzip else None
        self._plain: Any = _zstd_reader(raw) if start.startswith(_ZSTD) else raw
        self._pending = b""

    def readable(self) -> bool:
        """True: the stream can be read."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes as they come, empty only at the end; everything where it is -1."""
        if size < 0:
            return self.readall()
        return self._inflate(size) if self._gzip else self._pass(size)

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer as far as one step gets; 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _pass(self, size: int) -> bytes:
        """Up to `size` bytes of a plain file or a zstd stream."""
        try:
            return bytes(self._plain.read(size))
        except _damage():
            self.truncated = True
            return b""

    def _inflate(self, size: int) -> bytes:
        """Up to `size` decompressed bytes, none only at the end."""
        while self._decoder is not None:
            fresh = self._pending or self._raw.read(_FEED)
            try:
                data = self._decoder.decompress(fresh, size)
            except _damage():
                data, self._decoder, self.truncated = b"", None, True
                return data
            self._pending = self._decoder.unconsumed_tail
            if self._decoder.eof:
                self._next_member(self._decoder.unused_data)
            elif not fresh and not data:
                self._decoder, self.truncated = None, True
            if data:
                return data
        return b""

    def _next_member(self, rest: bytes) -> None:
        """Go on to the gzip member that follows, if one does; padding is passed over."""
        rest = rest or self._raw.read(_FEED)
        self._decoder = _gzip_decoder() if rest.startswith(_GZIP) else None
        self._pending = rest

    def close(self) -> None:
        """Close the file too."""
        if not self.closed:
            self._raw.close()
        super().close()


def _gzip_decoder() -> _Decoder:
    """A gzip decoder; ISA-L's where it is there, which is about three times as fast as zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return zlib.decompressobj(31)
    return cast(_Decoder, isal_zlib.decompressobj(31))


def _zstd_reader(raw: BinaryIO) -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def _damage() -> tuple[type[Exception], ...]:
    """What decoders raise on damaged data."""
    import zlib

    import zstandard

    try:
        from isal import isal_zlib
    except ImportError:
        return (zlib.error, zstandard.ZstdError)
    return (zlib.error, cast(type[Exception], isal_zlib.error), zstandard.ZstdError)


def _fill(stream: Any, size: int) -> bytes:
    """The first `size` bytes, or all where there are fewer."""
    parts: list[bytes] = []
    while size > 0 and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _compressed(path: str) -> bool:
    with _open(path) as raw:
        return _fill(raw, 4).startswith((_GZIP, _ZSTD))


def _filesystem(path: str) -> tuple[Any, str]:
    import fsspec

    return cast(tuple[Any, str], fsspec.core.url_to_fs(path))


def _is_directory(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    system, root = _filesystem(path)
    return bool(system.isdir(root))


def _open(path: str) -> BinaryIO:
    if not is_url(path):
        return Path(path).open("rb", buffering=1 << 18)
    system, root = _filesystem(path)
    return cast(BinaryIO, system.open(root, "rb"))
