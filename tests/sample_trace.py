"""A small serving trace made by arithmetic, for tests of what is made from a report.

Every step launches `kernels` kernels from one thread; requests arrive before the first step, are
computed in turn, and each gets a token a step. Names can be replaced by hostile ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm.table import Strings, Table
from rca_llm.trace import (
    API,
    BATCH,
    GPU,
    KERNEL,
    MEMCPY,
    RANGES,
    REQUESTS,
    SAMPLES,
    STEPS,
    THREADS,
    TOKENS,
    Device,
    Finding,
    Header,
    Input,
    Timeline,
    Trace,
)

T0 = 1_790_000_000_000_000_000
US = 1_000
NAMES = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
    "flash_fwd_splitkv_kernel",
    "void rms_norm_kernel<c10::BFloat16, 8>",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "vectorized_elementwise_kernel<4, silu>",
)


@dataclass(frozen=True)
class Shape:
    """How large the trace is and what things are called."""

    steps: int = 12
    kernels: int = 40
    requests: int = 6
    prefix: str = ""
    rank: int = 0


def trace(shape: Shape | None = None) -> Trace:
    """A trace of one rank."""
    shape = shape or Shape()
    strings = Strings()
    timeline = Timeline(
        Input(f"{shape.prefix}sample.jsonl", "events", "sample", "1", shape.rank, 0),
        Header(host="h0", rank=shape.rank, engine="sample engine", nccl="2.28.9"),
        strings,
    )
    step_ns = shape.kernels * 12 * US + 150 * US
    starts = T0 + 2_000 * US + np.arange(shape.steps, dtype=np.int64) * step_ns
    _device(timeline, shape, starts)
    _host(timeline, shape, starts, step_ns)
    _requests(timeline, shape, starts, step_ns)
    _samples(timeline, starts)
    timeline.devices.append(Device(0, "NVIDIA H200", 1, {"sms": 132}))
    timeline.findings.append(Finding("truncated", 1, f"{shape.prefix}sample.jsonl", "byte 120"))
    return Trace([timeline])


def _device(timeline: Timeline, shape: Shape, starts: np.ndarray) -> None:
    strings, count = timeline.strings, shape.steps * shape.kernels
    codes = strings.codes([shape.prefix + name for name in NAMES])
    which = np.arange(count) % len(NAMES)
    start = (
        np.repeat(starts, shape.kernels) + np.tile(np.arange(shape.kernels), shape.steps) * 12 * US
    )
    start += 60 * US
    length = np.array([9, 7, 3, 5, 2])[which] * US
    kernels = {
        "kind": np.full(count, KERNEL),
        "start": start,
        "end": start + length,
        "name": codes[which],
        "correlation": np.arange(count) + 1,
        "process": np.ones(count),
        "device": np.zeros(count),
        "stream": np.full(count, 7),
        **{
            f"grid_{axis}": np.full(count, size)
            for axis, size in zip("xyz", (132, 1, 1), strict=True)
        },
        **{
            f"block_{axis}": np.full(count, size)
            for axis, size in zip("xyz", (256, 1, 1), strict=True)
        },
        "registers": np.full(count, 96),
        "shared": np.full(count, 49_152),
    }
    timeline.add("gpu", Table(GPU, kernels))
    timeline.add("gpu", Table(GPU, _copies(timeline, starts, count)))
    launch = start - 10 * US
    calls = {
        "start": launch,
        "end": launch + 6 * US,
        "name": np.full(count, strings.code("cudaLaunchKernel")),
        "process": np.ones(count),
        "thread": np.full(count, 11),
        "correlation": np.arange(count) + 1,
    }
    timeline.add("api", Table(API, calls))


def _copies(timeline: Timeline, starts: np.ndarray, before: int) -> dict[str, object]:
    count = len(starts)
    return {
        "kind": np.full(count, MEMCPY),
        "start": starts + 20 * US,
        "end": starts + 45 * US,
        "name": np.full(count, timeline.strings.code("memcpy")),
        "correlation": before + 1 + np.arange(count),
        "process": np.ones(count),
        "device": np.zeros(count),
        "stream": np.full(count, 7),
        "copy": np.zeros(count),
        "src": np.zeros(count),
        "dst": np.full(count, 2),
        "bytes": np.full(count, 65_536),
    }


def _host(timeline: Timeline, shape: Shape, starts: np.ndarray, step_ns: int) -> None:
    strings, count = timeline.strings, shape.steps
    names = [f"{shape.prefix}{name}" for name in ("schedule", "sample", "gc")]
    kinds = ["host", "host", "gc"]
    offsets, lengths = (0, step_ns - 60 * US, step_ns - 90 * US), (18 * US, 50 * US, 25 * US)
    for name, kind, offset, length in zip(names, kinds, offsets, lengths, strict=True):
        rows = {
            "start": starts + offset,
            "end": starts + offset + length,
            "name": np.full(count, strings.code(name)),
            "domain": np.full(count, strings.code("probe")),
            "kind": np.full(count, strings.code(kind)),
            "process": np.ones(count),
            "thread": np.full(count, 11),
        }
        timeline.add("ranges", Table(RANGES, rows))
    steps = {
        "id": np.arange(count),
        "process": np.ones(count),
        "start": starts,
        "end": starts + step_ns - 5 * US,
        "mode": np.full(count, strings.code("eager")),
    }
    timeline.add("steps", Table(STEPS, steps))
    name = strings.code(f"{shape.prefix}EngineCore")
    timeline.add("threads", Table(THREADS, {"process": [1], "thread": [11], "name": [name]}))


def _requests(timeline: Timeline, shape: Shape, starts: np.ndarray, step_ns: int) -> None:
    strings = timeline.strings
    ids = strings.codes([f"{shape.prefix}request-{n}" for n in range(shape.requests)])
    each = max(shape.steps // max(shape.requests, 1), 1)
    batch: dict[str, list[int]] = {"step": [], "request": [], "phase": [], "tokens": []}
    told = [name for name in REQUESTS if name != "until" and not name.startswith("home_")]
    columns: dict[str, list[int]] = {name: [] for name in told}
    tokens: dict[str, list[int]] = {"request": [], "t": []}
    for number, code in enumerate(ids.tolist()):
        first = min(number * each, shape.steps - 1)
        last = max(min((number + 2) * each, shape.steps) - 1, first)
        for step in range(first, last + 1):
            phase = strings.code("prefill" if step == first else "decode")
            batch["step"].append(step)
            batch["request"].append(code)
            batch["phase"].append(phase)
            batch["tokens"].append(512 if step == first else 1)
            tokens["request"].append(code)
            tokens["t"].append(int(starts[step]) + step_ns - 10 * US)
        values = {
            "id": code,
            "client_submit": max(int(starts[first]) - 5_000 * US, T0),
            "arrival": max(int(starts[first]) - (1_000 + number % 7 * 300) * US, T0),
            "scheduled": int(starts[first]),
            "first_token": int(starts[first]) + step_ns - 10 * US,
            "finished": int(starts[last]) + step_ns,
            "prompt_tokens": 512,
            "output_tokens": last - first + 1,
            "status": strings.code("finished"),
        }
        for name, value in values.items():
            columns[name].append(value)
    timeline.add("requests", Table(REQUESTS, columns))
    timeline.add("batch", Table(BATCH, batch))
    timeline.add("tokens", Table(TOKENS, tokens))


def _samples(timeline: Timeline, starts: np.ndarray) -> None:
    metric = timeline.strings.code("gpu.sm_clock_mhz")
    rows = {
        "t": starts,
        "metric": np.full(len(starts), metric),
        "device": np.zeros(len(starts)),
        "value": 1_980.0 - np.arange(len(starts)) % 7 * 15,
    }
    timeline.add("samples", Table(SAMPLES, rows))
