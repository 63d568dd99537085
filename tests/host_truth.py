"""Runs injected causes, alone or in pairs, and writes when each held the engine up.

    python tests/host_truth.py OUT FOLDER CAUSE=MAGNITUDE...

Run under a trace. OUT gets, for every cause, its delays on UTC: start, end, and how much of that
time was the cause, ns.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from time import perf_counter_ns

from rca_llm.inject import cpu, messages, python, storage
from rca_llm.inject.catalogue import CAUSES
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Turn

_FAULTS = {
    "gil": python.HeldLock,
    "gc": python.Collections,
    "cpu_quota": cpu.Quota,
    "cpu_hog": cpu.Neighbours,
    "serialisation": messages.Messages,
    "tokeniser": messages.Tokeniser,
}
_ON_DISK = {
    "file_io": storage.Reads,
    "page_faults": storage.Faults,
    "log_flush": storage.Flushes,
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
    importlib.import_module(f"rca_llm.inject.{CAUSES[name].family}")
    if name in _ON_DISK:
        return _ON_DISK[name](magnitude, Ledger(), folder)
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
