"""Samples the stacks of a run's Python processes with py-spy, from outside (`--stacks`).

One py-spy a process, started when the process is first seen to record. It reads the process's
memory, never stops it, and ends with it. RUN/stacks/PID.json is what it wrote; RUN/stacks/PID.start
is when its own clock began, in ns of CLOCK_MONOTONIC: the time at which it said that it had
started, which is right to a few ms.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from rca_llm.probes import format as layout
from rca_llm.run import Run

FOLDER = "stacks"
RATE = 100
"""Samples a second."""
MOST_PROCESSES = 16
EVERY_S = 0.1
WAIT_S = 5.0


def find() -> str | None:
    """The py-spy of this installation or of the machine; None where there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    if importlib.util.find_spec("py_spy") is None and not beside.exists():
        return shutil.which("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


class Stacks:
    """Follows the processes of a run from a thread of its own."""

    def __init__(self, run: Run, program: str) -> None:
        self.run = run
        self.failed: str | None = None
        self._program = program
        self._folder = run.path / FOLDER
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rca-llm stacks", daemon=True)

    def start(self) -> None:
        """Begin to look for processes."""
        self._folder.mkdir(exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Let every py-spy write what it has."""
        self._stop.set()
        self._thread.join(timeout=WAIT_S)
        for child in self._children.values():
            if child.poll() is None:
                with suppress(OSError):
                    child.send_signal(signal.SIGINT)
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(WAIT_S)

    def _loop(self) -> None:
        while not self._stop.wait(EVERY_S):
            for pid in self._recording() - set(self._children):
                if len(self._children) < MOST_PROCESSES:
                    self._follow(pid)

    def _recording(self) -> set[int]:
        """The processes in which our code in Python runs."""
        found: set[int] = set()
        for path in self.run.segment_files():
            pid = int(path.name.split("-")[0])
            if pid not in self._children and _writer(path) == layout.WRITER_PYTHON:
                found.add(pid)
        return found

    def _follow(self, pid: int) -> None:
        out = self._folder / f"{pid}.json"
        command = [self._program, "record", "--pid", str(pid), "--format", "chrometrace"]
        command += ["--rate", str(RATE), "--nonblocking", "--threads", "--output", str(out)]
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # a terminal's Ctrl-C must not end it before the command
                preexec_fn=_unblock,
            )
        except OSError as error:
            self.failed = str(error)
            return
        self._children[pid] = child
        threading.Thread(target=self._listen, args=(pid, child), daemon=True).start()

    def _listen(self, pid: int, child: subprocess.Popen[str]) -> None:
        """Note when sampling begins, and what went wrong."""
        for line in child.stdout or ():
            if "Sampling process" in line:
                text = f"{time.monotonic_ns()}\n"
                with suppress(OSError):
                    (self._folder / f"{pid}.start").write_text(text, encoding="ascii")
            elif "Error:" in line or "Permission" in line:
                self.failed = line.strip()


def _unblock() -> None:
    """The launcher holds its signals back, and its children inherit that."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _writer(path: Path) -> int:
    """Who writes a segment, 0 where its header is not there yet."""
    try:
        with path.open("rb") as file:
            data = file.read(24)
    except OSError:
        return 0
    return int.from_bytes(data[20:24], "little") if data.startswith(layout.MAGIC) else 0
