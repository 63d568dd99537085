"""The engine: one thread that plans a step, runs the model, samples, and hands tokens over."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from rca_llm import probe, record, request, span, step

from .batch import Batch
from .model import Model
from .scheduler import Output, Plan, Scheduler
from .sequence import Sequence
from .weights import Array

Deliver = Callable[[list[Output]], None]


class Engine:
    """Runs submitted sequences to their end and gives every step's tokens to `deliver`.

    `submit`, `abort`, `stop` and `status` may be called from any thread; `deliver` is called on
    the engine's own.
    """

    def __init__(self, model: Model, scheduler: Scheduler, deliver: Deliver) -> None:
        self._model = model
        self._scheduler = scheduler
        self._deliver = deliver
        # A command runs on the engine's thread between two steps; it returns False to end the loop.
        self._commands: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._steps = 0
        self.failed = False

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the step that runs, and wait for it."""
        self._commands.put(lambda: False)
        self._thread.join()

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for generation."""
        self._commands.put(lambda: self._add(sequence))

    def abort(self, sequence: Sequence) -> None:
        """End a sequence early; it is delivered with `abort` unless it had ended by itself."""
        self._commands.put(lambda: self._remove(sequence))

    def status(self) -> dict[str, float]:
        """Queue lengths, steps done, and the used fraction of the KV cache."""
        scheduler = self._scheduler
        return {
            "waiting": len(scheduler.waiting) + self._commands.qsize(),
            "running": len(scheduler.running),
            "steps": self._steps,
            "kv_usage": round(scheduler.pool.usage, 4),
        }

    def _add(self, sequence: Sequence) -> bool:
        self._scheduler.add(sequence)
        request(sequence.id).queued()
        return True

    def _remove(self, sequence: Sequence) -> bool:
        if self._scheduler.remove(sequence):
            self._deliver([Output(sequence, None, "abort")])
        return True

    def _main(self) -> None:
        try:
            while self._obey():
                self._step(self._plan())
        except Exception:
            self.failed = True
            traceback.print_exc(file=sys.stderr)
            self._fail_all()

    def _fail_all(self) -> None:
        """Answer whatever is here, and whatever still comes, with `error`, until stopped."""
        going = True
        while going:
            lost = [*self._scheduler.running, *self._scheduler.waiting]
            for sequence in lost:
                self._scheduler.remove(sequence)
            self._deliver([Output(sequence, None, "error") for sequence in lost])
            going = self._commands.get()()

    def _obey(self) -> bool:
        """Carry out what others asked for; with nothing to run, sleep until somebody asks."""
        while not self._commands.empty() or not self._scheduler.busy:
            if not self._commands.get()():
                return False
        return True

    @probe(name="schedule")
    def _plan(self) -> Plan:
        """Plan a step and mark who was let in or thrown out."""
        scheduler = self._scheduler
        record("sched_start", waiting=len(scheduler.waiting), kv_free_blocks=scheduler.pool.free)
        plan = scheduler.plan()
        for sequence in plan.preempted:
            request(sequence.id).preempted()
        for sequence in plan.admitted:
            scope = request(sequence.id)
            if sequence.lost:
                scope.resumed()
            else:
                scope.scheduled()
        return plan

    def _step(self, plan: Plan) -> None:
        requests = {work.sequence.id: (work.phase, work.count) for work in plan.work}
        with step(self._steps, requests=requests, mode="eager"):
            with span("prepare_inputs"):
                chunks = (work.chunk() for work in plan.work)
                batch = Batch.of(chunks, self._scheduler.pool.block_size)
            tokens = greedy(self._model.forward(batch))
            outputs = self._update(plan, tokens)
        self._steps += 1
        with span("deliver"):
            self._deliver(outputs)

    @probe(name="update")
    def _update(self, plan: Plan, tokens: list[int]) -> list[Output]:
        """Take the tokens in and mark each as gone from the engine."""
        outputs = self._scheduler.update(plan, tokens)
        for output in outputs:
            scope = request(output.sequence.id)
            if len(output.sequence.output) == 1:
                scope.first_token()
            else:
                scope.token()
        return outputs


@probe(name="sample", kind="compute")
def greedy(logits: Array) -> list[int]:
    """The most likely token of each row; the lowest of equals, so that a run can be repeated."""
    return [int(token) for token in np.argmax(logits, axis=-1)]
