"""When the processes of a run end: the kernel wakes a thread of the launcher at that instant.

What a process leaves open, as one that is killed in a deadlock does, lasted until then, and nobody
else can say so: its own last record is from before.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from rca_llm.probes import format as layout
from rca_llm.probes.recorder import Recorder, process_start

Process = tuple[int, int]
"""A process id, and when that process began in clock ticks: ids come back."""


class Endings:
    """Waits for the end of processes; those that the kernel does not let wait for stay unknown."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._known: set[Process] = set()
        self._waiting: dict[int, Process] = {}
        """By descriptor."""
        self._seen: list[tuple[Process, int]] = []
        self._wake, self._waker = os.pipe()
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._loop, name="rca-llm endings", daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def watch(self, starts: Mapping[int, int]) -> None:
        """Wait for the end of processes too, given by id with when they began."""
        for process in set(starts.items()) - self._known:
            self._known.add(process)
            with suppress(OSError, AttributeError):  # ended, no descriptor left, an old kernel
                self._add(process)

    def _add(self, process: Process) -> None:
        descriptor = os.pidfd_open(process[0])
        if process_start(process[0]) != process[1]:
            os.close(descriptor)
            return
        self._waiting[descriptor] = process
        self._poll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def tell(self, recorder: Recorder) -> None:
        """Write down the ends that were seen since this was called last."""
        while self._seen:
            (pid, begun), ended = self._seen.pop(0)
            name = recorder.ids[layout.PROCESS_END]
            recorder.cell(layout.INFO, ended, begun, name, 0, pid)

    def stop(self) -> None:
        """Wait no more; what has ended by now is seen."""
        os.close(self._waker)
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        for descriptor in (*self._waiting, self._wake):
            os.close(descriptor)
        self._waiting.clear()
        self._poll.close()

    def _loop(self) -> None:
        while True:
            found = self._poll.poll()
            now = time.perf_counter_ns()
            for descriptor, _ in found:
                if descriptor in self._waiting:
                    self._seen.append((self._waiting.pop(descriptor), now))
                    os.close(descriptor)
            if any(descriptor == self._wake for descriptor, _ in found):
                return
