"""Causes in who gets the CPU: a quota of the cgroup, and busy neighbours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from rca_llm.errors import RcaError
from rca_llm.inject.catalogue import Order
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Truth, Turn

PERIOD_US = 20_000
"""The period of the quota: short, so that a step of some milliseconds feels its share of it."""


def run(order: Order) -> Truth:
    """Serve with `magnitude` CPUs, or with `magnitude` busy processes on the engine's CPU."""
    ledger = Ledger(
        measured_by="wall clock less the thread's CPU time (CLOCK_THREAD_CPUTIME_ID), around"
        " arithmetic that never blocks"
    )
    made = {"cpu_quota": Quota, "cpu_hog": Neighbours}[order.cause.name]
    Service(Load(first=order.first), made(order, ledger), order.seed).run()
    return Truth(order, ledger)


class _OffCpu(Fault):
    """A cause whose delay is whatever keeps the engine off the CPU.

    Without the cause the engine stays where the cause puts it, in a cgroup of its own or on one
    CPU, since that alone changes how much of a machine with other work it gets.
    """

    def __init__(self, order: Order, ledger: Ledger) -> None:
        super().__init__(order.magnitude, ledger)
        self.gone = order.without

    def worked(self, turn: Turn) -> None:
        """All of it."""
        if not self.gone:
            self.ledger.add(turn.start, turn.end, turn.off_cpu, queued=turn.queued)


class Quota(_OffCpu):
    """A cgroup of its own with a quota; whoever may not make one cannot inject this."""

    def begin(self) -> None:
        """Make the cgroup and move into it."""
        self._group = _make_group(None if self.gone else self.magnitude)
        self._home = _home(self._group.parent)
        (self._group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def end(self) -> None:
        """Move back and remove the cgroup."""
        throttled = _throttled_ns(self._group)
        if throttled is not None:
            self.ledger.figures["cgroup_throttled_ns"] = throttled
        with contextlib.suppress(OSError):
            (self._home / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            self._group.rmdir()


def _make_group(cpus: float | None) -> Path:
    name = f"rca-llm-inject-{os.getpid()}"
    quota = None if cpus is None else max(round(cpus * PERIOD_US), 1000)
    for root, settings in _controllers(quota):
        group = root / name
        with contextlib.suppress(OSError):
            group.mkdir()
            for file, value in settings:
                (group / file).write_text(value, encoding="ascii")
            return group
    raise RcaError(
        "cpu_quota: cannot make a cgroup with a CPU quota here; run as root on a machine whose cpu"
        " controller is writable"
    )


def _controllers(quota: int | None) -> list[tuple[Path, list[tuple[str, str]]]]:
    """Where a cgroup can be made, version 1 and 2, and what to write; None: without a quota."""
    period = str(PERIOD_US)
    first = [
        ("cpu.cfs_period_us", period),
        ("cpu.cfs_quota_us", str(-1 if quota is None else quota)),
    ]
    second = f"{'max' if quota is None else quota} {period}"
    return [
        (Path("/sys/fs/cgroup/cpu"), first),
        (Path("/sys/fs/cgroup"), [("cpu.max", second)]),
    ]


def _home(root: Path) -> Path:
    """The cgroup of this process below a controller's root."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if (root.name in controllers.split(",")) or (not controllers and root.name == "cgroup"):
            return root / path.lstrip("/")
    return root


def _throttled_ns(group: Path) -> float | None:
    """How long the cgroup was throttled: `throttled_time` in ns, or `throttled_usec`."""
    try:
        rows = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if "throttled_time" in rows:
        return float(rows["throttled_time"])
    return float(rows["throttled_usec"]) * 1000 if "throttled_usec" in rows else None


class Neighbours(_OffCpu):
    """Busy processes on the one CPU to which the engine's thread is bound."""

    def begin(self) -> None:
        """Bind the engine's thread and start the neighbours on the same CPU."""
        self._before = os.sched_getaffinity(0)
        cpu = max(self._before)
        os.sched_setaffinity(threading.get_native_id(), {cpu})
        code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        self._busy = [
            subprocess.Popen([sys.executable, "-I", "-c", code])
            for _ in range(0 if self.gone else max(round(self.magnitude), 1))
        ]

    def end(self) -> None:
        """End the neighbours."""
        for process in self._busy:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.sched_setaffinity(threading.get_native_id(), self._before)
