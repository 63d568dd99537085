"""The program that the GPU benchmarks trace: a random-weight Llama, in phases of known work.

    python workload.py --phases eager,graph,prefill,tiny --times times.json

Each phase runs inside an NVTX range of its name, a synchronisation before and after it, and
its begin and end on CLOCK_MONOTONIC go into the JSON file, beside the time of every repetition. The
same program runs untraced, under our collector, under Nsight Systems and under torch.profiler.
With `--serve` it waits for what to do instead (`seat.py`), for programs that work in turns; with
`--workers N` that is done by N processes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from seat import Seat
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24},
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
}
PROMPT = 128
LONGEST = 4096


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--phases", default="eager,graph,prefill,tiny,generate")
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--profiler", choices=("none", "cuda", "all"), default="none")
    parser.add_argument("--times", type=Path)
    parser.add_argument("--serve", choices=("no", "seat", "pipe"), default="no")
    parser.add_argument("--workers", type=int, default=0, help="processes that serve at once")
    parser.add_argument("--progress", type=Path, help="append a line a repetition, for a kill")
    return parser.parse_args()


class Model:
    """A Llama with one decode step eager and captured."""

    def __init__(self, size: str, device: str) -> None:
        config = LlamaConfig(
            num_attention_heads=16, num_key_value_heads=8, vocab_size=32000, **SIZES[size]
        )
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.set_default_dtype(dtype)
        with torch.device(device):
            self.model = LlamaForCausalLM(config).eval()
            self.token = torch.ones((1, 1), dtype=torch.long)
            self.prompt = torch.randint(0, 32000, (1, PROMPT))
            self.long_prompt = torch.randint(0, 32000, (1, 2048))
        torch.set_default_dtype(torch.float32)
        self.device = device
        self.cache = StaticCache(config=config, max_cache_len=LONGEST)
        self.positions = torch.arange(LONGEST, device=device)[None]
        self.mask = torch.ones(LONGEST, LONGEST, dtype=torch.bool, device=device).tril()[None, None]
        self._forward(self.prompt, 0)
        self.replay: Any = None

    def _forward(self, tokens: torch.Tensor, start: int) -> torch.Tensor:
        """Logits of the last token, the cache filled up to `start` before.

        Position and mask are given, so that nothing is read back from the device: a read would
        forbid the capture.
        """
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.cumulative_length.fill_(start)
        length = tokens.shape[1]
        return self.model(
            input_ids=tokens,
            past_key_values=self.cache,
            position_ids=self.positions[:, start : start + length],
            attention_mask=self.mask[:, :, start : start + length],
            use_cache=True,
            logits_to_keep=1,
        ).logits

    def eager(self) -> None:
        """One decode step, launched kernel by kernel."""
        self._forward(self.token, PROMPT)

    def prefill(self) -> None:
        """A prompt of 2,048 tokens."""
        self._forward(self.long_prompt, 0)

    def graph(self) -> None:
        """The same decode step as one CUDA graph, captured at the first call."""
        if self.replay is None:
            self.replay = self._capture()
        self.replay.replay()

    def _capture(self) -> Any:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.eager()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits = self._forward(self.token, PROMPT)
        return graph

    def tiny(self) -> None:
        """A thousand launches of about a microsecond."""
        for _ in range(1000):
            self.token.add_(0)

    def generate(self) -> None:
        """One request through `generate`: a prefill and eight decode steps."""
        self.model.generate(
            self.prompt, max_new_tokens=9, min_new_tokens=9, do_sample=False, pad_token_id=0
        )


def synchronise(device: str) -> None:
    """Wait for the device, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def nvtx_range(name: str, device: str) -> Iterator[None]:
    """A range that every tracer shows."""
    if device != "cuda":
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def timed(work: Callable[[], None], device: str) -> int:
    """Nanoseconds of one repetition up to the end of its device work."""
    begun = time.monotonic_ns()
    work()
    synchronise(device)
    return time.monotonic_ns() - begun


def run_phase(name: str, work: Callable[[], None], arguments: argparse.Namespace) -> dict[str, Any]:
    """Warm up, then repeat inside a range of the phase's name."""
    device = arguments.device
    for _ in range(3):
        work()
    synchronise(device)
    begun = time.monotonic_ns()
    with nvtx_range(f"phase {name}", device):
        times = []
        for number in range(arguments.repeat):
            with nvtx_range(f"{name} {number}", device):
                times.append(timed(work, device))
            if arguments.progress:
                with arguments.progress.open("a") as file:
                    file.write(f"{name} {number} {time.monotonic_ns()}\n")
    return {"phase": name, "begin": begun, "end": time.monotonic_ns(), "times": times}


def profiled(arguments: argparse.Namespace, body: Callable[[], None]) -> None:
    """Run the body under torch.profiler, where asked for, and keep its trace beside the times."""
    if arguments.profiler == "none":
        body()
        return
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    if arguments.profiler == "all":
        kinds.append(torch.profiler.ProfilerActivity.CPU)
    with torch.profiler.profile(activities=kinds) as profile:
        body()
    begun = time.monotonic()
    profile.export_chrome_trace(str(arguments.times.with_suffix(".kineto.json")))
    print(f"kineto export {time.monotonic() - begun:.2f} s", file=sys.stderr)


class Pipe:
    """A worker's side of its parent's pipes; what `seat.Seat` is to a benchmark."""

    def wait(self) -> dict[str, Any]:
        """The next message."""
        line = sys.stdin.readline()
        return json.loads(line) if line else {"do": "quit"}

    def answer(self, content: dict[str, Any]) -> None:
        """Reply to a message."""
        print(json.dumps(content), flush=True)


def serve(arguments: argparse.Namespace) -> None:
    """Load the model and warm up, then do what is asked for until the other side lets go."""
    device = arguments.device
    with torch.inference_mode():
        model = Model(arguments.size, device)
        for name in arguments.phases.split(","):
            for _ in range(3):
                getattr(model, name)()
        synchronise(device)
        seat = Pipe() if arguments.serve == "pipe" else Seat()
        if arguments.serve == "pipe":
            seat.answer({"ready": True})
        while (message := seat.wait())["do"] != "quit":
            seat.answer(ACTIONS[message["do"]](model, device, message))


def repeat(model: Model, device: str, message: dict[str, Any]) -> dict[str, Any]:
    """Time some repetitions of each phase, after one that does not count.

    First the first phase runs untimed for `warm` seconds: a processor that has slept is slow.
    """
    times: dict[str, list[int]] = {}
    begun = time.monotonic_ns()
    first = getattr(model, next(iter(message["phases"])))
    while time.monotonic_ns() - begun < message.get("warm", 0.0) * 1e9:
        timed(first, device)
    begun = time.monotonic_ns()
    for name, count in message["phases"].items():
        work = getattr(model, name)
        with nvtx_range(f"phase {name}", device):
            timed(work, device)
            times[name] = [timed(work, device) for _ in range(count)]
    return {"times": times, "wall": time.monotonic_ns() - begun}


def profile(model: Model, device: str, message: dict[str, Any]) -> dict[str, Any]:
    """Switch torch.profiler on for good."""
    every = torch.profiler.ProfilerActivity
    kinds = [every.CUDA] if message["kind"] == "cuda" else [every.CPU, every.CUDA]
    PROFILES.append(torch.profiler.profile(activities=kinds))
    PROFILES[-1].__enter__()
    return {"on": message["kind"]}


PROFILES: list[Any] = []
ACTIONS: dict[str, Callable[[Model, str, dict[str, Any]], dict[str, Any]]] = {
    "repeat": repeat,
    "profile": profile,
}


def serve_by_workers(arguments: argparse.Namespace) -> None:
    """Hand every message to all workers at once, and time until the last has answered."""
    command = [sys.executable, __file__, "--serve", "pipe", "--phases", arguments.phases]
    command += ["--size", arguments.size, "--device", arguments.device]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(arguments.workers)
    ]
    for worker in workers:
        answer_of(worker)
    seat = Seat()
    while (message := seat.wait())["do"] != "quit":
        begun = time.monotonic_ns()
        for worker in workers:
            worker.stdin.write(json.dumps(message) + "\n")
            worker.stdin.flush()
        answers = [answer_of(worker) for worker in workers]
        seat.answer({"wall": time.monotonic_ns() - begun, "workers": answers})
    for worker in workers:
        worker.stdin.close()
    for worker in workers:
        worker.wait()


def answer_of(worker: Any) -> dict[str, Any]:
    """A worker's next answer; libraries may print lines of their own between."""
    while line := worker.stdout.readline():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError("a worker has ended")


def main() -> None:
    """Run the phases and write their times, or serve."""
    arguments = options()
    if arguments.workers:
        serve_by_workers(arguments)
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if arguments.serve != "no":
        serve(arguments)
        return
    begun = time.monotonic_ns()
    with torch.inference_mode():
        model = Model(arguments.size, arguments.device)
        synchronise(arguments.device)
        found: list[dict[str, Any]] = []

        window: list[int] = []

        def body() -> None:
            window.append(time.monotonic_ns())
            with nvtx_range("body", arguments.device):
                for name in arguments.phases.split(","):
                    found.append(run_phase(name, getattr(model, name), arguments))
            window.append(time.monotonic_ns())

        for name in arguments.phases.split(","):  # captures, autotuning and lazy loading come first
            getattr(model, name)()
        synchronise(arguments.device)
        profiled(arguments, body)
    arguments.times.write_text(
        json.dumps({"phases": found, "body": window, "begin": begun, "end": time.monotonic_ns()})
    )


if __name__ == "__main__":
    main()
