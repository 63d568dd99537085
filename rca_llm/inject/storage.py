"""Causes on disk: files read in steps, pages that are not in memory, logs that are flushed."""

from __future__ import annotations

import logging
import mmap
import os
import random
from itertools import islice
from pathlib import Path

from rca_llm.inject.catalogue import Order
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Truth

PAGE = mmap.PAGESIZE
FILE_BYTES = 64 << 20


def run(order: Order) -> Truth:
    """Serve with reads, page faults or log flushes in every step."""
    ledger = Ledger()
    made = {"file_io": Reads, "page_faults": Faults, "log_flush": Flushes}[order.cause.name]
    fault = Fault(0, ledger) if order.without else made(order.magnitude, ledger, order.folder)
    Service(Load(first=order.first), fault, order.seed).run()
    return Truth(order, ledger)


class _OnDisk(Fault):
    """A cause with a folder for its file, which is removed afterwards."""

    name = "data.bin"

    def __init__(self, magnitude: float, ledger: Ledger, folder: str) -> None:
        super().__init__(magnitude, ledger)
        self.path = Path(folder) / f"inject-{os.getpid()}-{self.name}"

    def fill(self) -> int:
        """Write the file to disk and drop it from memory; its descriptor."""
        with self.path.open("wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        return os.open(self.path, os.O_RDONLY)

    def end(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


class Reads(_OnDisk):
    """`magnitude` MB of a file, read from disk in every step."""

    def begin(self) -> None:
        """Make the file, and the memory that is read into: making it is no part of a read."""
        self._descriptor = self.fill()
        self._buffer = bytearray(1 << 20)
        self._at = 0

    def in_step(self, number: int) -> None:
        """Read the next piece; the page cache has been told to forget it."""
        count = int(self.magnitude * 1e6)
        if self._at + count > FILE_BYTES:
            self._at = 0
        with self.ledger.delay(), memoryview(self._buffer) as whole:
            os.posix_fadvise(self._descriptor, self._at, count, os.POSIX_FADV_DONTNEED)
            at, end = self._at, self._at + count
            while at < end and (got := os.preadv(self._descriptor, [whole[: end - at]], at)):
                at += got
        self._at += count

    def end(self) -> None:
        """Close and remove the file."""
        os.close(self._descriptor)
        super().end()


class Faults(_OnDisk):
    """`magnitude` pages of a mapped file that are on disk, touched in every step."""

    def begin(self) -> None:
        """Map the file so that every page is read for itself, in random order."""
        self._descriptor = self.fill()
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._map = mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        pages = list(range(FILE_BYTES // PAGE))
        random.Random(0).shuffle(pages)
        self._pages = iter(pages)  # taking from the front of a list would take time of a step

    def in_step(self, number: int) -> None:
        """Touch the next pages."""
        count = max(round(self.magnitude), 1)
        mine = list(islice(self._pages, count))
        with self.ledger.delay():
            for page in mine:
                self._map[page * PAGE]

    def end(self) -> None:
        """Unmap and remove the file."""
        self._map.close()
        os.close(self._descriptor)
        super().end()


class _Flushing(logging.FileHandler):
    """A log file that is on disk after every line."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self.stream is not None:
            os.fsync(self.stream.fileno())


class Flushes(_OnDisk):
    """`magnitude` log lines in every step, each flushed to disk."""

    name = "engine.log"

    def begin(self) -> None:
        """Open the log."""
        self._handler = _Flushing(self.path)
        self._log = logging.Logger("rca_llm.inject")
        self._log.addHandler(self._handler)

    def in_step(self, number: int) -> None:
        """Write the lines."""
        with self.ledger.delay():
            for line in range(max(round(self.magnitude), 1)):
                self._log.warning("step %d line %d: %s", number, line, "x" * 200)

    def end(self) -> None:
        """Close and remove the log."""
        self._handler.close()
        super().end()
