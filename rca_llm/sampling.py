"""The launcher's own recording: clock anchors, samples, pauses, and the limits of a run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rca_llm import faults
from rca_llm.endings import Endings
from rca_llm.probes import format as layout
from rca_llm.probes import nodes, nvml, recorder
from rca_llm.probes.pages import Pages
from rca_llm.probes.system import Sink, System
from rca_llm.run import Run

TICK_S = 0.010
CENSUS_S = 0.200
SLOW_S = 1.0
GPU_S = 0.100
PAGES_S = 0.5
# The sampler takes at most this share of one processor: where reading takes long (many threads),
# it reads less often.
MAX_SHARE = 0.05


@dataclass(frozen=True)
class Limits:
    """When recording ends by itself: after seconds, at bytes on disk."""

    duration_s: float | None = None
    max_bytes: int | None = None


class Sampler:
    """Samples the process tree of ``pid`` into the run from a thread of its own."""

    def __init__(self, run: Run, pid: int, limits: Limits) -> None:
        self.run = run
        self.limits = limits
        self.full = False
        self.error: Exception | None = None
        self._pid = pid
        self._stop = threading.Event()
        self._ends = bytearray(1)  # the same for what looks without Python
        self._began = time.monotonic()
        self._recorder = open_segment(run)
        self._nodes = nodes.tell(self._recorder)
        self._system = System(self._recorder, pid, str(run.path), self._nodes)
        self._endings = Endings()
        self._gap: tuple[memoryview[int], int] | None = None
        self._gate = run.gate()
        self._changed = self._told()
        self._plan = Plan([])
        self._threads = [
            threading.Thread(target=self._guard, args=[loop], name="rca-llm sampler", daemon=True)
            for loop in (self._loop, self._gpu_loop)
        ]

    @property
    def seen(self) -> dict[int, int]:
        """The start time of every process that was seen, by pid."""
        return dict(self._system.starts)

    def start(self) -> None:
        """Begin to sample."""
        self._anchor()
        self._endings.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take the last samples and end."""
        self._stop.set()
        self._ends[0] = 1
        for thread in self._threads:
            thread.join(timeout=5)
        self._endings.stop()
        self._endings.tell(self._recorder)
        self._anchor()
        self._close_gap()
        if faults.happened() and (work := faults.work_ns(self.run.path)):
            Sink(self._recorder).sample(faults.WORK_METRIC, float(work))
        self._recorder.close()

    def _anchor(self) -> None:
        monotonic, utc, width = recorder.anchor()
        self._recorder.cell(layout.ANCHOR, monotonic, utc, min(width, layout.ALL))

    def _guard(self, loop: Callable[[], None]) -> None:
        """Keep what goes wrong in a thread for the launcher to tell, instead of a traceback."""
        try:
            loop()
        except Exception as error:  # whatever it is: the command runs on
            self.error = error

    def _loop(self) -> None:
        _prefer()
        tasks = [(TICK_S, self._tick), (CENSUS_S, self._census), (SLOW_S, self._slow)]
        self._plan = plan = Plan(tasks)
        self._census()
        while not self._ends_within(plan.pause()):
            plan.run_due()
        self._census()
        self._system.slow()
        self._system.close()

    def _ends_within(self, pause: float) -> bool:
        """Wait; whether sampling is to end. Sleeping costs half of waiting for the event."""
        if pause > TICK_S:
            return self._stop.wait(pause)
        time.sleep(pause)
        return self._stop.is_set()

    def _tick(self) -> None:
        if self._watch_gate():
            self._system.follow(TICK_S, self._plan.next_after(TICK_S), self._gate, self._ends)

    def _census(self) -> None:
        if self._gap is None:
            self._system.census()
            self._endings.watch(self._system.starts)
            self._endings.tell(self._recorder)
            self._check_limits()

    def _slow(self) -> None:
        self._anchor()
        if self._gap is None:
            self._system.slow()

    def _check_limits(self) -> None:
        limits = self.limits
        if limits.duration_s is not None and time.monotonic() - self._began >= limits.duration_s:
            self._end("duration")
        elif limits.max_bytes is not None and self.run.size() >= limits.max_bytes:
            self.full = True
            self._end("max-size")

    def _end(self, reason: str) -> None:
        self.limits = Limits()
        self.run.set_gate(False)
        self._open_gap(reason)

    def _watch_gate(self) -> bool:
        """Note when recording is switched off and on again; whether it is on."""
        is_open = self._gate[layout.CONTROL_GATE_OFFSET] == 1
        if is_open:
            self._close_gap()
        else:
            self._open_gap("paused")
        return is_open

    def _told(self) -> int:
        """When the gate changed last, as the run says, ns."""
        place = layout.CONTROL_CHANGED_OFFSET
        return int.from_bytes(self._gate[place : place + 8], "little")

    def _since(self) -> int:
        """When the gate changed, once that is noticed; now where nobody says it, ns."""
        before, self._changed = self._changed, self._told()
        return self._changed if self._changed != before else time.perf_counter_ns()

    def _open_gap(self, reason: str) -> None:
        if self._gap is None:
            room = self._recorder.reserve_always(1)
            if room is not None:
                name = self._recorder.ids[reason]
                recorder.put(*room, layout.GAP, self._since(), 0, name)
                self._gap = room

    def _close_gap(self) -> None:
        if self._gap is not None:
            words, at = self._gap
            words[at + 1] = self._since()
            self._gap = None

    def _gpu_loop(self) -> None:
        gpus = nvml.open_nvml()
        if gpus is None or not gpus.handles:
            return
        own = open_segment(self.run)
        gpus.tell(own)
        sink = Sink(own)
        tasks: list[tuple[float, Callable[[], object]]] = [
            (GPU_S, lambda: gpus.sample(sink)),
            (SLOW_S, lambda: gpus.sample_traffic(sink)),
            (SLOW_S, lambda: gpus.sample_processes(sink)),
        ]
        if len(self._nodes) > 1:  # else all memory is near
            pages = Pages(sink, self._nodes)
            tasks.append((PAGES_S, lambda: pages.look(self.seen)))
        plan = Plan(tasks)
        while not self._stop.wait(plan.pause()):
            if self._gap is None:
                plan.run_due()
        own.close()


def _prefer() -> None:
    """Let this thread run before others, where that is allowed.

    What it looks for is above all that others get no CPU, and then it would get none either.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)


class Plan:
    """Tasks that come due every so many seconds, slowed down to `MAX_SHARE` of a processor."""

    def __init__(self, tasks: Sequence[tuple[float, Callable[[], object]]]) -> None:
        self._tasks = [(period, task) for period, task in tasks]
        self._due = [time.monotonic() + period for period, _ in tasks]
        self._rest = 0.0  # until then, for the share's sake

    def pause(self) -> float:
        """Seconds to sleep now."""
        return max(max(min(self._due), self._rest) - time.monotonic(), 0.001)

    def next_after(self, period: float) -> float:
        """When a task of a longer period is due."""
        return min(
            due for due, task in zip(self._due, self._tasks, strict=True) if task[0] > period
        )

    def run_due(self) -> None:
        """Run every task whose time has come; one may take its time, as long as it sleeps."""
        began, cpu = time.monotonic(), time.thread_time()
        for index, (period, task) in enumerate(self._tasks):
            if self._due[index] <= began:
                task()
                self._due[index] = max(self._due[index] + period, time.monotonic())
        self._rest = began + (time.thread_time() - cpu) / MAX_SHARE


def open_segment(run: Run) -> recorder.Recorder:
    """A segment of the launcher's calling thread."""
    path, header = recorder.new_segment(str(run.path), layout.WRITER_LAUNCHER)
    return recorder.Recorder(path, header)
