"""What the probes of vLLM cost an engine step: real vLLM on the CPU, probes on against off.

    RCA_LLM_VLLM_PYTHON=… python benchmarks/engine_probes.py [--pairs N] [--json FILE]

One process runs a small random Llama with the engine core inside it and decodes with a full batch.
Blocks of steps with every wrapper in place and recording alternate with blocks in which the
original functions are put back and the gate is shut; what is compared is the time of a step, pair
by pair. `probe_us` is the processor time of the wrappers alone: all that a decode step passes
through, in this process, around functions that do nothing, less the same without wrappers, so that
neither the model nor other work of the machine drowns it. Medians with quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BATCHES = (1, 8, 64)
BLOCK = 8
"""Steps between two switches."""
ALONE = 200
"""Steps without a model between two readings of the clock."""


def main() -> None:
    """Run the benchmark in vLLM's environment, under a trace, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    python = os.environ.get("RCA_LLM_VLLM_PYTHON", "")
    if not python:
        sys.exit("RCA_LLM_VLLM_PYTHON is not set: sh tests/engines/vllm.sh python3 FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(python, Path(folder), arguments.pairs)
    for row in found:
        print(json.dumps(row))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def _measure(python: str, folder: Path, pairs: int) -> list[dict[str, Any]]:
    model, told = folder / "model", folder / "told.json"
    make = [python, str(ROOT / "tests" / "engines" / "tiny_llama.py"), str(model)]
    subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "rca_llm", "trace", "--io", "off", "-o", str(folder / "run")]
    command += ["--", python, __file__, "--inside", str(model), str(told), str(pairs)]
    subprocess.run(command, check=True, env=env)
    rows: list[dict[str, Any]] = json.loads(told.read_text())
    return rows


# ------------------------------------------------------------------ in vLLM's environment


def inside(model: str, told: str, pairs: int) -> None:
    """Decode with every batch size, and write what was found."""
    from vllm import LLM

    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=max(BATCHES),
        enable_prefix_caching=False,
    )
    rows = [_alone(batch, pairs) | _decode(llm, batch, pairs) for batch in BATCHES]
    Path(told).write_text(json.dumps(rows))


def _decode(llm: Any, batch: int, pairs: int) -> dict[str, Any]:
    """The time of decode steps of one batch, with the probes on and off in turn."""
    from vllm import SamplingParams

    engine, switch = llm.llm_engine, Switch()
    for number in range(batch):
        told = SamplingParams(max_tokens=1900, ignore_eos=True, temperature=0)
        engine.add_request(f"{batch}-{number}", {"prompt_token_ids": [65] * 16}, told)
    for _ in range(8):
        engine.step()
    blocks: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        for on in (True, False) if number % 2 else (False, True):
            switch(on)
            blocks[on].append(_block(engine.step))
    switch(True)
    engine.abort_request([f"{batch}-{number}" for number in range(batch)])
    while engine.has_unfinished_requests():
        engine.step()
    more = [a - b for a, b in zip(blocks[True], blocks[False], strict=True)]
    ratio = [a / b for a, b in zip(blocks[True], blocks[False], strict=True)]
    return {
        "batch": batch,
        "pairs": pairs,
        "step_us_off": _quartiles(blocks[False]),
        "more_us": _quartiles(more),
        "ratio": _quartiles(ratio),
    }


def _block(step: Callable[[], object]) -> float:
    """The median time of a step in a block, us."""
    times: list[int] = []
    for _ in range(BLOCK):
        begun = perf_counter_ns()
        step()
        times.append(perf_counter_ns() - begun)
    return statistics.median(times) / 1000


class Switch:
    """Puts the original functions back and shuts the gate, or undoes both."""

    def __init__(self) -> None:
        self.wrapped = list(_wrapped())
        self.control = Path(os.environ["RCA_LLM_RUN"], "control")

    def __call__(self, on: bool) -> None:
        """Do the one or the other."""
        for owner, name, wrapper in self.wrapped:
            setattr(owner, name, wrapper if on else wrapper.__wrapped__)
        with self.control.open("r+b") as file:
            file.write(bytes([on]))


def _wrapped() -> Any:
    """Every function of vLLM that is wrapped: its owner, name and wrapper."""
    for module in [m for n, m in sys.modules.items() if n.startswith("vllm.") and m is not None]:
        for owner in [c for c in vars(module).values() if isinstance(c, type)]:
            if owner.__module__ == module.__name__:
                for name, found in list(vars(owner).items()):
                    if hasattr(found, "__rca_llm__"):
                        yield owner, name, found


def _alone(batch: int, pairs: int) -> dict[str, Any]:
    """The processor time of the wrappers in a decode step, us, around functions that do nothing."""
    plain, wrapped = _Work(batch, _bare), _Work(batch, _wrapper)
    more: list[float] = []
    for number in range(pairs):
        order = (plain, wrapped) if number % 2 else (wrapped, plain)
        spent = {work: work.spent() for work in order}
        more.append(spent[wrapped] - spent[plain])
    return {"probe_us": _quartiles(more)}


def _bare(_module: str, _name: str, function: Callable[..., Any]) -> Any:
    return function


def _wrapper(module: str, name: str, function: Callable[..., Any]) -> Any:
    """What the probes make of a function of vLLM."""
    for file in ("vllm_core", "vllm_scheduler", "vllm_frontend"):
        probes = import_module(f"_rca_llm_probes.engines.{file}")
        make = probes.TARGETS.get(module, {}).get(name)
        if make:
            return make(function)
    raise LookupError(name)


class _Work:
    """One decode step of vLLM without vLLM: what is wrapped of it, called as the engine does."""

    def __init__(self, batch: int, wrapped: Callable[[str, str, Any], Any]) -> None:
        names = [f"alone-{batch}-{number}" for number in range(batch)]
        self.output, self.ended = _stand_ins(names)
        self.scheduler = _scheduler(names)
        self.frontend = SimpleNamespace(request_states=dict.fromkeys(names))
        core, worker = "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker"
        scheduler, frontend = "vllm.v1.core.sched.scheduler", "vllm.v1.engine.output_processor"
        self.step = wrapped(core, "EngineCore.step", self._step)
        self.schedule = wrapped(scheduler, "Scheduler.schedule", self._planned)
        self.update = wrapped(scheduler, "Scheduler.update_from_output", self._ended)
        self.execute = wrapped(worker, "Worker.execute_model", self._nothing)
        self.sample = wrapped(worker, "Worker.sample_tokens", self._nothing)
        self.process = wrapped(frontend, "OutputProcessor.process_outputs", self._nothing)

    def _planned(self, _scheduler: Any) -> Any:
        return self.output

    def _ended(self, _scheduler: Any, _output: Any, _model: Any) -> Any:
        return self.ended

    def _nothing(self, *_: Any) -> None:
        pass

    def _step(self) -> None:
        self.schedule(self.scheduler)
        self.execute(self, self.output)
        self.sample(self)
        self.update(self.scheduler, self.output, None)

    def spent(self) -> float:
        """The processor time of a step, us."""
        begun = thread_time_ns()
        for _ in range(ALONE):
            # An engine makes the list of its batch anew for every step.
            cached = self.output.scheduled_cached_reqs
            cached.req_ids = list(cached.req_ids)
            self.step()
            self.process(self.frontend, self.ended[0].outputs, None)
        return (thread_time_ns() - begun) / ALONE / 1000


def _scheduler(names: list[str]) -> Any:
    return SimpleNamespace(
        requests={name: SimpleNamespace(num_prompt_tokens=8) for name in names},
        waiting=[],
        running=names,
        kv_cache_manager=SimpleNamespace(
            usage=0.5, block_pool=SimpleNamespace(get_num_free_blocks=lambda: 7)
        ),
        _preempt_request=None,
    )


def _stand_ins(names: list[str]) -> tuple[Any, Any]:
    cached = SimpleNamespace(
        req_ids=names, num_computed_tokens=[9] * len(names), resumed_req_ids=set()
    )
    output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1),
        total_num_scheduled_tokens=len(names),
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        finished_req_ids=set(),
    )
    each = [SimpleNamespace(request_id=n, new_token_ids=[5], finish_reason=None) for n in names]
    return output, {0: SimpleNamespace(outputs=each)}


def _quartiles(values: list[float]) -> list[float]:
    return [round(value, 4) for value in statistics.quantiles(values, n=4)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
