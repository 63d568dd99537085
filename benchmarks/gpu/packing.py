"""Packs recordings into one archive: what was recorded, not what is made from it again."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

TABLES = "tables"
"""The folder of a run that `rca-llm trace` makes from the rest of it."""


def pack(target: Path, parts: Mapping[str, Path], largest: int | None = None) -> int | None:
    """Pack files and folders under their names; the bytes kept, None if they exceed `largest`.

    The suffix tells the compression: `.tar.gz`, or `.tar.zst`, which needs zstandard. Owners stay
    out: they are this machine's affair.
    """
    with _compressed(target) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for name, path in parts.items():
            archive.add(path, name, filter=_raw)
    size = target.stat().st_size
    if largest is None or size <= largest:
        return size
    target.unlink()
    return None


@contextmanager
def _compressed(target: Path) -> Iterator[IO[bytes]]:
    with target.open("wb") as file:
        if target.suffix == ".gz":
            import gzip

            with gzip.GzipFile(target.stem, "wb", 9, file) as packed:
                yield packed
            return
        from zstandard import ZstdCompressor

        with ZstdCompressor(level=9, threads=-1).stream_writer(file) as packed:
            yield packed


def _raw(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if TABLES in Path(member.name).parts:
        return None
    member.uname = member.gname = ""
    member.uid = member.gid = 0
    return member
