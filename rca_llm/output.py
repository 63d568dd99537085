"""Writing outputs so that nothing is lost and nothing half-written stays."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from rca_llm.errors import RcaError

STANDARD_OUTPUT = Path("-")

_EXPORTED = frozenset((".csv", ".parquet"))
"""What the files of an exported folder end in, beside the one of a saved timeline."""

_TIMELINE = "timeline.json"


def check_target(
    target: Path, *, force: bool, inputs: Iterable[str] = (), folder: bool | None = False
) -> None:
    """Refuse an output that cannot or must not be written.

    What exists is replaced with `force` only, an input and a folder that no export wrote never,
    and a folder by nothing but a folder: `folder` says whether the output is one, None that only
    its writing will tell. Devices and pipes are written to as they are.
    """
    if target == STANDARD_OUTPUT:
        raise RcaError("-: this output is a file, not standard output; give its path")
    if target.is_dir() and folder is False:
        raise RcaError(f"{target}: is a folder; this output is one file, give its path")
    if target.is_dir() and not _is_export(target):
        raise RcaError(f"{target}: is a folder that no export wrote; will not replace it")
    if is_special(target):
        return
    if is_input(target, inputs):
        raise RcaError(f"{target}: is an input; will not overwrite it")
    if target.exists() and not force:
        raise RcaError(f"{target}: exists; will not overwrite without --force")
    if target.exists() and folder and not target.is_dir():
        raise RcaError(f"{target}: is a file; this output is a folder, give another path")
    if not target.parent.is_dir():
        raise RcaError(f"{target}: cannot be written: no such folder as {target.parent}")


def check_targets(
    page: Path | None, document: Path | None, *, force: bool, inputs: Iterable[str] = ()
) -> None:
    """Refuse a command's page and JSON document as `check_target` does, or where they are one file.

    The document may be standard output.
    """
    inputs = list(inputs)
    if page is not None:
        check_target(page, force=force, inputs=inputs)
    if document is None or document == STANDARD_OUTPUT:
        return
    check_target(document, force=force, inputs=inputs)
    if page is not None and not is_special(page) and _real(page) == _real(document):
        raise RcaError(f"{page}: cannot hold both the page and the JSON document")


def is_input(target: Path, inputs: Iterable[str]) -> bool:
    """Whether writing there would change an input: it is one, in a run, or one of a folder."""
    real = _real(target)
    return any(_holds(_real(path), real) for path in inputs if "://" not in path)


def _holds(given: Path, target: Path) -> bool:
    """Whether `target` belongs to what is read at `given`; both without links."""
    if given == target:
        return True
    if given not in target.parents:
        return False
    from rca_llm.readers import reader_of
    from rca_llm.readers.files import source

    between = [path for path in (target, *target.parents) if path.is_relative_to(given)]
    return any(path.exists() and reader_of(source(path)) is not None for path in between)


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))


def _is_export(folder: Path) -> bool:
    """Whether a folder holds nothing but tables, so that replacing it loses nothing else."""
    return all(
        path.is_dir() or path.suffix in _EXPORTED or path.name == _TIMELINE
        for path in folder.rglob("*")
    )


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to a device, a pipe or a socket."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def write(
    target: Path,
    produce: Callable[[Path], None],
    *,
    force: bool,
    folder: bool | None = False,
) -> None:
    """Let `produce` write to a path beside the target, then put it in the target's place.

    `produce` may make a file or, with `folder` True or None, a folder. Where the target is a link,
    what it leads to is written. Raises `RcaError` where that cannot be done.
    """
    check_target(target, force=force, folder=folder)
    try:
        if is_special(target):
            _pass_on(target, produce)
        else:
            _replace(Path(os.path.realpath(target)), produce)
    except OSError as error:
        raise RcaError(f"{target}: cannot be written: {error.strerror or error}") from error


def write_bytes(target: Path, data: bytes, *, force: bool) -> None:
    """Write bytes that are at hand; otherwise as `write`."""

    def store(path: Path) -> None:
        path.write_bytes(data)

    write(target, store, force=force)


def write_json(target: Path, document: object, *, force: bool) -> None:
    """Write a JSON document, indented, also to standard output; otherwise as `write`."""
    text = json_text(document)
    if target == STANDARD_OUTPUT:
        print_from(io.BytesIO(text))
    else:
        write_bytes(target, text, force=force)


def json_text(document: object) -> bytes:
    """A JSON document in UTF-8, indented; identical ones give identical bytes."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def print_from(file: BinaryIO) -> None:
    """Copy what a file holds to standard output, as it is."""
    if not sys.stdout:  # closed before Python began
        raise RcaError("standard output: cannot be written: it is closed")
    shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()


def _replace(target: Path, produce: Callable[[Path], None]) -> None:
    with _beside(target) as written:
        produce(written)
        if target.exists():
            check_target(target, force=True, folder=written.is_dir())
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(written, target)


def _pass_on(target: Path, produce: Callable[[Path], None]) -> None:
    """Write into a device or a pipe, which cannot be put in place."""
    with draft() as path:
        produce(path)
        with path.open("rb") as written, target.open("wb") as file:
            shutil.copyfileobj(written, file)


@contextlib.contextmanager
def draft() -> Generator[Path]:
    """A path in a folder for temporary files, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "output"


@contextlib.contextmanager
def _beside(target: Path) -> Generator[Path]:
    """A path in a folder of its own next to the target, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:50]}.", dir=target.parent) as folder:
        yield Path(folder) / target.name
