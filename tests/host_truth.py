"""Runs injected causes, alone or in pairs, and writes when each held the engine up.

    python tests/host_truth.py OUT FOLDER CAUSE=MAGNITUDE...

Run under a trace. OUT gets, for every cause, its delays on UTC: start, end, how much of that time
was the cause, and how much of it the thread was ready without a CPU, ns.

The causes are those of `rca-llm inject` and some that only these tests need. None of the latter
names itself by a span: the probes have to find them.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path
from time import perf_counter_ns

from rca_llm.inject import cpu, messages, python, storage
from rca_llm.inject.catalogue import CAUSES, order
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Turn

SELDOM = 12
"""Large delays come in every so many steps."""


class OnDisk(Fault):
    """A cause with a file."""

    def __init__(self, magnitude: float, ledger: Ledger, folder: str) -> None:
        super().__init__(magnitude, ledger)
        self.path = Path(folder) / f"truth-{os.getpid()}.bin"


class SyncedWrites(OnDisk):
    """`magnitude` MB that are written and flushed to disk in one step."""

    def begin(self) -> None:
        self._piece = os.urandom(1 << 20) * 4
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)

    def in_step(self, number: int) -> None:
        if number % SELDOM != SELDOM - 1:
            return
        left = int(self.magnitude * 1e6)
        os.lseek(self._file, 0, os.SEEK_SET)
        with self.ledger.delay():
            while left > 0:
                left -= os.write(self._file, self._piece[:left])
            os.fsync(self._file)

    def end(self) -> None:
        os.close(self._file)
        self.path.unlink()


class Pickles(Fault):
    """`magnitude` MB that are pickled in one step: a list of floats."""

    def begin(self) -> None:
        self._message = [0.5] * int(self.magnitude * 1e6 / 9)  # a float is pickled into 9 bytes

    def in_step(self, number: int) -> None:
        if number % SELDOM == SELDOM - 1:
            with self.ledger.delay():
                data = pickle.dumps(self._message)
            del data  # to give the memory back is not what was injected


class _Waiting(logging.Handler):
    """A log handler that waits for somebody else, as those that send lines away do."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(self._seconds)


class SlowHandler(Fault):
    """A log line in every step whose handler takes `magnitude` ms."""

    def begin(self) -> None:
        self._log = logging.Logger("rca_llm.tests")
        self._log.addHandler(_Waiting(self.magnitude / 1000))

    def in_step(self, number: int) -> None:
        with self.ledger.delay():
            self._log.warning("step %d", number)


_READER = """
import socket, sys, time
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
chunk = int(sys.argv[2])
while True:
    time.sleep(float(sys.argv[3]) / 1000)
    left = chunk
    while left:
        data = link.recv(left)
        if not data:
            sys.exit()
        left -= len(data)
"""


class SlowReader(Fault):
    """A stream whose client reads a chunk only every `magnitude` ms; the step sends it one."""

    CHUNK = 1 << 18

    def begin(self) -> None:
        with socket.socket() as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            door.bind(("127.0.0.1", 0))
            door.listen(1)
            words = str(door.getsockname()[1]), str(self.CHUNK), str(self.magnitude)
            self._client = subprocess.Popen([sys.executable, "-I", "-c", _READER, *words])
            self._link, _ = door.accept()
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self._chunk = bytes(self.CHUNK)

    def in_step(self, number: int) -> None:
        with self.ledger.delay():
            self._link.sendall(self._chunk)

    def end(self) -> None:
        self._link.close()
        self._client.wait()


_FAULTS = {
    "gil": python.HeldLock,
    "gc": python.Collections,
    "serialisation": messages.Messages,
    "tokeniser": messages.Tokeniser,
    "pickle": Pickles,
    "slow_handler": SlowHandler,
    "slow_reader": SlowReader,
}
_OFF_CPU = {"cpu_quota": cpu.Quota, "cpu_hog": cpu.Neighbours}
_ON_DISK = {
    "file_io": storage.Reads,
    "page_faults": storage.Faults,
    "log_flush": storage.Flushes,
    "synced_writes": SyncedWrites,
}


class Several(Fault):
    """Faults side by side; each has a ledger of its own."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(1.0, Ledger())
        self.faults = faults

    def begin(self) -> None:
        for fault in self.faults:
            fault.begin()

    def before(self, id: str) -> None:
        for fault in self.faults:
            fault.before(id)

    def in_step(self, number: int) -> None:
        for fault in self.faults:
            fault.in_step(number)

    def worked(self, turn: Turn) -> None:
        for fault in self.faults:
            fault.worked(turn)

    def end(self) -> None:
        for fault in self.faults:
            fault.end()


def made(name: str, magnitude: float, folder: str) -> Fault:
    """A fault by its cause."""
    if name in CAUSES:
        importlib.import_module(f"rca_llm.inject.{CAUSES[name].family}")
    if name in _ON_DISK:
        return _ON_DISK[name](magnitude, Ledger(), folder)
    if name in _OFF_CPU:
        return _OFF_CPU[name](order(name, magnitude, 1, folder), Ledger())
    return _FAULTS[name](magnitude, Ledger())


def main() -> None:
    """Serve with the faults that the command line names."""
    out, folder, *wanted = sys.argv[1:]
    pairs = [(name, float(size)) for name, size in (text.split("=") for text in wanted)]
    several = Several([made(name, size, folder) for name, size in pairs])
    Service(Load(requests=10), several, 1).run()
    ahead = time.time_ns() - perf_counter_ns()
    found = {
        name: [(d.start + ahead, d.end + ahead, d.ns, d.queued) for d in fault.ledger.delays]
        for (name, _), fault in zip(pairs, several.faults, strict=True)
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
