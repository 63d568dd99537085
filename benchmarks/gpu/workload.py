"""The program that the GPU benchmarks trace: a random-weight Llama, in phases of known work.

    python workload.py --phases eager,graph,prefill,tiny --times times.json

Each phase runs inside an NVTX range of its name, a synchronisation before and after it, and
its begin and end on CLOCK_MONOTONIC go into the JSON file, beside the time of every repetition. The
same program runs untraced, under our collector, under Nsight Systems and under torch.profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24},
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
}
PROMPT = 128
LONGEST = 4096
KINDS = (1, 2, 4, 5, 10, 17, 22, 38, 39, 52)
"""Every CUPTI kind that our collector may have enabled."""


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--phases", default="eager,graph,prefill,tiny,generate")
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=0, help="alternate traced and untraced blocks")
    parser.add_argument("--profiler", choices=("none", "cuda", "all"), default="none")
    parser.add_argument("--times", type=Path, required=True)
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


class Switch:
    """Turns the collecting of this process off and on, for pairs within one process."""

    def __init__(self) -> None:
        self.collector = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"])
        self.cupti = ctypes.CDLL("libcupti.so.13")

    def off(self) -> None:
        """No kind enabled: what is left is what CUPTI leaves behind."""
        self.collector.rca_llm_gpu_release()
        for kind in KINDS:
            self.cupti.cuptiActivityDisable(kind)

    def on(self) -> None:
        """Everything as it was."""
        self.collector.rca_llm_gpu_reclaim()


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


def run_pairs(name: str, work: Callable[[], None], arguments: argparse.Namespace) -> dict[str, Any]:
    """Blocks of repetitions, alternately traced and not: the median time of each block."""
    switch = Switch()
    found: dict[str, list[int]] = {"off": [], "on": []}
    for _ in range(arguments.pairs):
        for state in ("off", "on"):
            getattr(switch, state)()
            timed(work, arguments.device)
            block = sorted(timed(work, arguments.device) for _ in range(5))
            found[state].append(block[2])
    return {"phase": name, "pairs": found}


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


def main() -> None:
    """Run the phases and write their times."""
    arguments = options()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begun = time.monotonic_ns()
    with torch.inference_mode():
        model = Model(arguments.size, arguments.device)
        synchronise(arguments.device)
        found: list[dict[str, Any]] = []

        window: list[int] = []

        def body() -> None:
            run = run_pairs if arguments.pairs else run_phase
            window.append(time.monotonic_ns())
            with nvtx_range("body", arguments.device):
                for name in arguments.phases.split(","):
                    found.append(run(name, getattr(model, name), arguments))
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
