"""Pieces of a Kineto file as batches of columns, in this process and, for large files, a helper."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rca_llm.readers.files import Source, is_url
from rca_llm.readers.jsontext import UNDECODABLE, list_end, salvage
from rca_llm.readers.kineto_events import (
    Batch,
    Event,
    Texts,
    decode_events,
    extract,
    valid_event,
)
from rca_llm.readers.pieces import Piece, Pieces

TEXT_COLUMNS = ("name", "domain", "direction", "said", "own")
"""The columns that hold codes of `Texts`."""

HELPED_BYTES = {True: 3 << 20, False: 32 << 20}
"""From this size on, compressed or not, a second process is worth its start (0.15 s)."""

MOST_HELPERS = 3

_alone: list[bool] = []
"""Holds something in a process that reads without helpers."""

_HELPER = "rca_llm.readers.kineto_helper"

_TICKETS = 1 << 13
"""Pieces that are shared out at most; what lies beyond (8 GiB of text) this process reads."""

_TICKET = 4
"""Bytes of a ticket."""


@dataclass
class Share:
    """What one process read."""

    batches: list[Batch]
    texts: list[str]


@dataclass
class Content:
    """Everything that a file holds, batches in the order of the file."""

    head: bytes
    batches: list[Batch]
    texts: list[str]
    truncated: bool
    length: int
    """Bytes of text before the place where reading ended."""


def alone() -> None:
    """Read without helpers in this process, since others like it keep the cores busy."""
    _alone[:] = [True]


def read_pieces(source: Source) -> Content:
    """Read all events of a file."""
    with source.open() as stream:
        pieces = Pieces(stream)
        with _helpers(source) as (tickets, helpers):
            own = read_share(pieces, tickets)
            shares = [own, *(_received(helper) for helper in helpers)]
        batches, texts = _merged([share for share in shares if share is not None])
        if None in shares:
            return _again(source)
        return Content(pieces.head, _until_end(batches), texts, stream.truncated, pieces.length)


def _again(source: Source) -> Content:
    """Read all in this process, after a helper failed."""
    with source.open() as stream:
        pieces = Pieces(stream)
        share = read_share(pieces, itertools.count())
        return Content(
            pieces.head, _until_end(share.batches), share.texts, stream.truncated, pieces.length
        )


def read_share(pieces: Pieces, indices: Iterable[int]) -> Share:
    """Read the pieces of these indices."""
    texts = Texts()
    with collection_paused():
        batches = [read_piece(piece, texts) for piece in pieces.take(indices)]
    return Share(batches, list(texts))


@contextmanager
def collection_paused() -> Generator[None]:
    """No cyclic garbage collection: events form no cycles, and looking costs a tenth more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_piece(piece: Piece, texts: Texts) -> Batch:
    """The columns of a piece; event by event where it is damaged."""
    batch = Batch(piece.index)
    events = _whole(piece, batch)
    if events is None:
        events = _salvaged(piece, batch)
    extract(events, texts, batch)
    return batch


def _whole(piece: Piece, batch: Batch) -> list[Event] | None:
    """The events of an undamaged piece, None where anything is wrong with it."""
    text = piece.text
    if not text.isascii() and not _is_utf8(text):
        return None
    tail = None
    if piece.last:
        end = list_end(text[1:], valid_event)
        if end is None:
            return None
        text, tail = text[: end[0] + 1] + b"]", text[end[1] + 1 :]
    events = _decoded(text)
    if events is not None:
        batch.tail = tail
    return events


def _salvaged(piece: Piece, batch: Batch) -> list[Event]:
    """The events of a damaged piece that can be read; the batch is told of the rest."""
    text = piece.text[1:] if piece.last else piece.text[1:-1]
    found = salvage(text, valid_event, piece.last)
    batch.bad_text, batch.tail = found.bad_text, found.tail
    batch.dropped = [piece.offset + offset for offset in found.dropped]
    return _decoded(b"[" + b",".join(found.events) + b"]") or []


def _decoded(text: bytes) -> list[Event] | None:
    try:
        return decode_events(text)
    except UNDECODABLE:
        return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _until_end(batches: list[Batch]) -> list[Batch]:
    """The batches up to the one in which the list of events ends."""
    ends = [place for place, batch in enumerate(batches) if batch.tail is not None]
    return batches[: ends[0] + 1] if ends else batches


def _merged(shares: list[Share]) -> tuple[list[Batch], list[str]]:
    """The batches of several processes with common codes, in the order of the file.

    The texts are sorted, so that the result does not depend on which process read what.
    """
    if len(shares) == 1:
        return shares[0].batches, shares[0].texts
    texts = sorted({text for share in shares for text in share.texts})
    place = {text: code for code, text in enumerate(texts)}
    for share in shares:
        lookup = np.array([*(place[text] for text in share.texts), -1], np.int32)
        for batch in share.batches:
            for columns in batch.tables.values():
                for name in TEXT_COLUMNS:
                    if name in columns:
                        columns[name] = lookup[columns[name]]
    batches = [batch for share in shares for batch in share.batches]
    return sorted(batches, key=lambda batch: batch.index), texts


Helper = subprocess.Popen[bytes]


@contextmanager
def _helpers(source: Source) -> Generator[tuple[Iterable[int], list[Helper]]]:
    """The tickets of this process and the helpers that share them.

    A helper is a fresh interpreter, not a fork: a fork of a process that may have threads is not
    safe, and `multiprocessing`'s other start methods run the caller's main module again. Each
    helper decompresses the file itself, which costs less than sending it the text.
    """
    count = _helper_count(source)
    if not count:
        yield itertools.count(), []
        return
    tickets, shared = _ticket_pipe()
    try:
        helpers = list(_started(source, tickets, count))
        try:
            yield itertools.chain(drawn(tickets), itertools.count(shared)), helpers
        finally:
            for helper in helpers:
                with helper:
                    helper.kill()
    finally:
        os.close(tickets)


def _ticket_pipe() -> tuple[int, int]:
    """A pipe of consecutive numbers, each drawn by one process, and how many it holds."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    written = os.write(writer, b"".join(n.to_bytes(_TICKET, "little") for n in range(_TICKETS)))
    os.close(writer)
    return reader, written // _TICKET


def _helper_count(source: Source) -> int:
    """How many helpers are worth their start; none where this interpreter cannot be started."""
    if _alone or is_url(source.path) or "python" not in Path(sys.executable or "").name.lower():
        return 0
    with suppress(OSError, AttributeError):
        with Path(source.path).open("rb") as file:
            compressed = file.read(1).strip() not in (b"{", b"[", b"")
        if os.path.getsize(source.path) >= HELPED_BYTES[compressed]:
            return min(len(os.sched_getaffinity(0)) - 1, MOST_HELPERS)
    return 0


def _started(source: Source, tickets: int, count: int) -> Iterator[Helper]:
    """As many helpers as can be started."""
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    with suppress(OSError):
        for _ in range(count):
            yield subprocess.Popen(
                [sys.executable, "-m", _HELPER, os.path.abspath(source.path), str(tickets)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(tickets,),
                env=os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            )


def drawn(tickets: int) -> Iterator[int]:
    """The tickets that this process draws, until none is left."""
    while ticket := os.read(tickets, _TICKET):
        yield int.from_bytes(ticket, "little")


def _received(helper: Helper) -> Share | None:
    """What a helper read, None where it failed."""
    data = helper.communicate()[0]
    if helper.returncode != 0:
        return None
    share = pickle.loads(data)
    return share if isinstance(share, Share) else None
