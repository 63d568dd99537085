"""The causes that can be injected: what each is, how large, and what a report should say of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rca_llm.errors import RcaError

if TYPE_CHECKING:
    from rca_llm.inject.truth import Truth

Workload = Callable[["Order"], "Truth"]
"""Runs a cause and says what it cost."""


@dataclass(frozen=True)
class Cause:
    """A bottleneck under control.

    `hints` are the rules any of which names it rightly, `parts` where its time belongs;
    `magnitudes` are the three standard sizes in `unit`. `charged` says that its time is not all of
    some parts: a call that holds the host up leaves devices idle in time that is charged as any
    host's, and only the hint of the cause says how much of that is its own.
    """

    name: str
    family: str
    title: str
    hints: tuple[str, ...]
    parts: tuple[str, ...]
    unit: str
    magnitudes: tuple[float, float, float]
    gpu: bool = False
    charged: bool = False

    @property
    def default(self) -> float:
        """The magnitude in the middle."""
        return self.magnitudes[1]


@dataclass(frozen=True)
class Order:
    """One run that is wanted: the cause, how much of it, and the seed of its load.

    `folder` is for files that the workload needs or leaves. `without` serves the same load with the
    cause removed. `first` is the number of its first request. `named` lets the probes name what a
    cause on a GPU is compared with as well, so that being named costs both the same; who analyses
    such a run takes out its window.
    """

    cause: Cause
    magnitude: float
    seed: int
    folder: str
    without: bool = False
    first: int = 0
    named: bool = False


def _host(
    name: str,
    family: str,
    title: str,
    hints: tuple[str, ...],
    parts: tuple[str, ...],
    unit: str,
    magnitudes: tuple[float, float, float],
) -> Cause:
    return Cause(name, family, title, hints, parts, unit, magnitudes)


def _gpu(
    name: str,
    family: str,
    title: str,
    hints: tuple[str, ...],
    parts: tuple[str, ...],
    unit: str,
    magnitudes: tuple[float, float, float],
    *,
    charged: bool = False,
) -> Cause:
    own = f"gpu_{family}"
    return Cause(name, own, title, hints, parts, unit, magnitudes, gpu=True, charged=charged)


_NONE = (1.0, 1.0, 1.0)
_COPY = ("io.h2d", "io.d2h")

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        _host("clean", "plain", "nothing at all", (), (), "runs", _NONE),
        _host(
            *("queue", "plain", "more requests than the engine may run at once", ("R01",)),
            *(("scheduling.queue",), "requests a burst", (6, 9, 12)),
        ),
        _host(
            *("gil", "python", "another Python thread that holds the lock", ("R10",)),
            *(("scheduling.gil",), "of the time", (0.4, 0.6, 0.8)),
        ),
        _host(
            *("gc", "python", "full collections of a large heap", ("R08",)),
            *(("scheduling.gc",), "ms a collection", (40, 80, 160)),
        ),
        _host(
            *("cpu_quota", "cpu", "a CPU quota below what the engine needs", ("R07",)),
            *(("scheduling.cpu_wait",), "CPUs", (0.7, 0.5, 0.3)),
        ),
        _host(
            *("cpu_hog", "cpu", "busy neighbours on the engine's CPU", ("R07",)),
            *(("scheduling.cpu_wait",), "processes", (1, 2, 3)),
        ),
        _host(
            *("file_io", "storage", "a file read from disk in every step", ("R49",)),
            *(("io.file",), "MB a step", (4, 8, 16)),
        ),
        _host(
            *("page_faults", "storage", "pages of a mapped file that are on disk", ("R43", "R49")),
            *(("io.page_fault",), "pages a step", (10, 30, 90)),
        ),
        _host(
            *("log_flush", "storage", "log lines that are flushed to disk", ("R37",)),
            *(("io.log", "io.file"), "lines a step", (1, 2, 4)),
        ),
        _host(
            *("serialisation", "messages", "large messages that are pickled in steps", ("R48",)),
            *(("communication.serialization",), "thousand objects a step", (5, 15, 45)),
        ),
        _host(
            *("tokeniser", "messages", "a slow tokeniser before the engine", ("R11",)),
            *(("scheduling.tokenize",), "ms a request", (15, 40, 100)),
        ),
        _host(
            *("slow_client", "messages", "clients that read their answers slowly", ("R50",)),
            *(("io.network",), "ms a token", (15, 30, 60)),
        ),
        _host(
            *("straggler", "ranks", "one of two ranks that comes late", ("R05",)),
            *(("scheduling.host",), "ms a step", (3, 8, 20)),
        ),
        _gpu(
            *("launch_bound", "launching", "many tiny kernels", ("R03",)),
            *(("scheduling.launch", "scheduling.host", "compute.elementwise"), "launches a step"),
            (500, 1000, 2000),
        ),
        _gpu(
            *("sync_in_loop", "launching", "results that are read back in the loop", ("R15",)),
            *((), "reads a step", (8, 16, 32)),
        ),
        _gpu(
            *("alloc_churn", "launching", "device memory from the driver in steps", ("R38",)),
            *(("scheduling.alloc",), "blocks a step", (1, 2, 4)),
            charged=True,
        ),
        _gpu(
            *("jit_in_request", "launching", "kernels compiled in a request", ("R12",)),
            *(("scheduling.jit",), "kernels a request", (1, 2, 4)),
        ),
        _gpu(
            *("pageable_copies", "copies", "copies from pageable memory", ("R18",)),
            *((*_COPY, "scheduling.launch", "scheduling.sync"), "MB a step", (4, 16, 48)),
            charged=True,
        ),
        _gpu(
            *("small_copies", "copies", "many small copies", ("R19",)),
            *((*_COPY, "scheduling.launch"), "copies a step", (100, 300, 900)),
            charged=True,
        ),
        _gpu(
            *("dtype_conversion", "copies", "weights cast while they are loaded", ("R17",)),
            *((), "MB", (64, 128, 256)),
        ),
        _gpu(
            *("pcie_bound", "copies", "large copies at the rate of the link", ("R32",)),
            *(_COPY, "MB a step", (80, 160, 320)),
        ),
        _gpu(
            *("kv_offload", "copies", "KV cache that comes back from the host", ("R21",)),
            *(("communication.kv_transfer", *_COPY), "MB a request", (100, 200, 400)),
        ),
        _gpu(
            *("block_32", "kernels", "blocks of 32 threads", ("R27",)),
            *((), "MB a step", (256, 512, 1024)),
        ),
        _gpu(
            *("one_wave_tail", "kernels", "a grid with a last wave of two blocks", ("R28",)),
            *((), "thousand rounds", (30, 60, 120)),
        ),
        _gpu(
            *("unfused_attention", "kernels", "attention without a fused kernel", ("R26",)),
            *((), "tokens", (2048, 4096, 8192)),
        ),
        _gpu(
            *("gemm_shape", "kernels", "matrix products of odd sizes", ("R25",)),
            *((), "products a step", (8, 16, 32)),
        ),
        _gpu(
            *("bank_conflicts", "kernels", "shared memory read by columns", ("R46",)),
            *((), "thousand rounds", (1, 2, 4)),
        ),
        _gpu(
            *("strided_access", "kernels", "memory read with a stride", ("R47",)),
            *((), "MB a step", (256, 512, 1024)),
        ),
        _gpu(
            *("two_processes", "sharing", "another process on the device", ("R29",)),
            *((), "of the time", (0.3, 0.6, 0.9)),
        ),
        _gpu(
            *("prefill_before_decode", "sharing", "another request's prefill first", ("R02",)),
            *(("scheduling.prefill_interference",), "steps", (4, 8, 16)),
        ),
        _gpu(
            *("memory_growth", "sharing", "device memory that is not given back", ("R34",)),
            *((), "MB a request", (2, 8, 32)),
        ),
    )
}
"""All causes by name."""


def order(
    name: str, magnitude: float | None, seed: int, folder: str, *, without: bool = False
) -> Order:
    """A run of a cause; `RcaError` for a name nobody knows or a size that is none."""
    cause = CAUSES.get(name)
    if cause is None:
        raise RcaError(f"{name}: no such cause; known are {', '.join(CAUSES)}")
    size = cause.default if magnitude is None else magnitude
    if not 0 < size < float("inf"):
        raise RcaError(f"{name}: the magnitude ({cause.unit}) must be greater than 0")
    return Order(cause, size, seed, folder, without)


def workload(cause: Cause) -> Workload:
    """The function that runs a cause: that of its family's module."""
    module = importlib.import_module(f"rca_llm.inject.{cause.family}")
    return cast("Workload", module.run)
