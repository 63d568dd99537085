"""Checks this machine and environment: what tracing needs, and known serving misconfigurations.

Nothing is installed, changed or loaded onto a device: versions come from package metadata, devices
from NVML, limits from the kernel. A check that cannot be made says so (`unknown`) instead of
passing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

SCHEMA = "rca-llm/check/1"

Status = Literal["ok", "warning", "missing", "unknown"]

LEAST_MEMORY = 48_000_000_000
"""Bytes of GPU memory that the product's checklist asks for."""
LEAST_TORCH, LEAST_CUDA = (2, 3), (12, 1)
ENGINES = ("vllm", "sglang", "transformers", "llama_cpp")


@dataclass(frozen=True)
class Result:
    """One check: what was looked at, what was found, and what to do where it is not ok."""

    area: str
    name: str
    status: Status
    found: str
    advice: str = ""


def run(engine: str | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """All checks as a document; `engine` limits those about engines to one."""
    given = os.environ if environment is None else environment
    results = [*tracing(), *devices(), *packages(), *settings(given, engine)]
    if engine is not None:
        results += list(_installed(engine))
    counts = {status: sum(one.status == status for one in results) for status in _STATUSES}
    return {"schema": SCHEMA, "checks": [asdict(one) for one in results], "counts": counts}


_STATUSES: tuple[Status, ...] = ("ok", "warning", "missing", "unknown")


def tracing() -> Iterator[Result]:
    """What `rca-llm trace` can record here."""
    probes = Path(__file__).resolve().parent / "probes" / "native"
    for file, what, without in (
        ("librca_llm.so", "GPU collector", "kernels come through cupti-python at a price, or not"),
        ("_recorder*.so", "fast spans", "spans cost more"),
        ("_watch*.so", "fast looks at threads", "threads are looked at less often, at a price"),
    ):
        built = any(probes.glob(file))
        advice = "" if built else f"without it {without}; install a C compiler and reinstall"
        yield Result("tracing", what, "ok" if built else "missing", _yes(built, "built"), advice)
    yield _readable("run-queue delay", "/proc/self/schedstat", "waiting for a CPU is not seen")
    yield _readable("pressure", "/proc/pressure/cpu", "pressure of the machine is not seen")
    yield _cgroup()
    yield _profiling_permission()
    yield _other_profilers()


def _yes(found: bool, what: str) -> str:
    return what if found else f"not {what}"


def _readable(name: str, path: str, without: str) -> Result:
    try:
        Path(path).read_bytes()
    except OSError as error:
        return Result("tracing", name, "missing", f"{path}: {error.strerror}", without)
    return Result("tracing", name, "ok", path)


def _cgroup() -> Result:
    """Whether throttling by a CPU quota can be seen, and whether there is a quota now."""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu"):
        for file in ("cpu.max", "cpu.cfs_quota_us"):
            quota = _text(f"{root}/{file}")
            if quota and quota.split()[0] not in ("max", "-1"):
                advice = "a quota throttles threads for whole periods; raise it or remove it"
                return Result("tracing", "CPU quota", "warning", f"{file}: {quota}", advice)
            if quota:
                return Result("tracing", "CPU quota", "ok", "none")
    return Result("tracing", "CPU quota", "unknown", "no cpu controller is mounted here")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _profiling_permission() -> Result:
    """Whether the driver lets only administrators profile (it asks CUPTI for CAP_SYS_ADMIN)."""
    text = _text("/proc/driver/nvidia/params")
    found = re.search(r"RmProfilingAdminOnly:\s*(\d)", text)
    if found is None:
        return Result("tracing", "GPU counters", "unknown", "no NVIDIA driver is loaded here")
    if found[1] == "0" or os.geteuid() == 0:
        return Result("tracing", "GPU counters", "ok", "permitted")
    advice = "hardware counters need root or the driver's NVreg_RestrictProfilingToAdminUsers=0"
    return Result("tracing", "GPU counters", "warning", "for administrators only", advice)


_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


def _other_profilers() -> Result:
    """Variables by which another profiler gets into processes; their values are not shown."""
    found = [name for name in _INJECTIONS if os.environ.get(name)]
    if found:
        advice = "another profiler is injected here; only one can record the GPU"
        return Result("tracing", "other profilers", "warning", ", ".join(found), advice)
    return Result("tracing", "other profilers", "ok", "none")


def devices() -> Iterator[Result]:
    """The GPUs: whether there are any, their memory, their clocks and partitions."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except Exception as error:  # no library, no driver, no permission: all mean the same here
        said = str(error) or type(error).__name__
        yield Result("GPU", "devices", "unknown", f"NVML: {said}", "only the host can be traced")
        return
    yield Result("GPU", "devices", "ok" if count else "missing", str(count))
    for number in range(count):
        yield from _device(pynvml, number)


def _device(nvml: Any, number: int) -> Iterator[Result]:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    name = nvml.nvmlDeviceGetName(handle)
    name = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    enough = memory >= LEAST_MEMORY
    advice = "" if enough else f"models of 7B and more want {LEAST_MEMORY / 1e9:.0f} GB"
    status: Status = "ok" if enough else "warning"
    yield Result("GPU", f"memory of {number}", status, f"{name}: {memory / 1e9:.1f} GB", advice)
    yield _asked(number, "persistence", lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)))


def _asked(number: int, name: str, ask: Callable[[], bool]) -> Result:
    try:
        on = ask()
    except Exception as error:
        return Result("GPU", f"{name} of {number}", "unknown", str(error))
    advice = "" if on else "the driver may unload between jobs: nvidia-smi -pm 1"
    return Result("GPU", f"{name} of {number}", "ok" if on else "warning", _yes(on, "on"), advice)


def packages() -> Iterator[Result]:
    """The software stack: torch and its CUDA, and a fused attention."""
    torch = version("torch")
    if torch is None:
        yield Result("software", "torch", "unknown", "not installed here")
    else:
        good = _numbers(torch) >= LEAST_TORCH
        advice = "" if good else "2.3 or later"
        yield Result("software", "torch", "ok" if good else "warning", torch, advice)
        yield _cuda(torch)
    found = {name: version(name) for name in ("flash-attn", "flashinfer-python", "xformers")}
    shown = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    if shown:
        yield Result("software", "FlashAttention", "ok", shown)
    elif torch is not None and _numbers(torch) >= (2, 2):
        yield Result("software", "FlashAttention", "ok", "in torch (scaled_dot_product_attention)")
    else:
        advice = "install flash-attn, or torch 2.2 or later"
        status: Status = "unknown" if torch is None else "missing"
        yield Result("software", "FlashAttention", status, "none found", advice)


def version(name: str) -> str | None:
    """The installed version of a distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", text.partition("+")[0])[:3])


def _cuda(torch: str) -> Result:
    """The CUDA that torch was built for: from its version, else from the runtime it requires."""
    found = re.search(r"\+cu(\d+)(\d)$", torch)
    number = (int(found[1]), int(found[2])) if found else _runtime()
    if number is None:
        advice = "a CPU build of torch cannot use a GPU" if "+cpu" in torch else ""
        return Result("software", "CUDA", "unknown", f"torch {torch} names none", advice)
    good = number >= LEAST_CUDA
    advice = "" if good else "12.1 or later"
    shown = ".".join(map(str, number))
    return Result("software", "CUDA", "ok" if good else "warning", shown, advice)


def _runtime() -> tuple[int, int] | None:
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"):
        if found := version(name):
            major, minor, *_ = (*_numbers(found), 0)
            return major, minor
    return None


def _installed(engine: str) -> Iterator[Result]:
    number = version(engine.replace("_", "-"))
    here = number is not None or importlib.util.find_spec(engine) is not None
    yield Result("engine", engine, "ok" if here else "missing", number or _yes(here, "installed"))


@dataclass(frozen=True)
class Setting:
    """An environment variable that costs latency when it has some value."""

    name: str
    bad: re.Pattern[str]
    advice: str
    engine: str | None = None


def _setting(name: str, bad: str, advice: str, engine: str | None = None) -> Setting:
    return Setting(name, re.compile(bad, re.I), advice, engine)


SETTINGS = (
    _setting("CUDA_LAUNCH_BLOCKING", r"[1-9]|true", "every launch waits for its kernel: unset it"),
    _setting("TORCH_NCCL_BLOCKING_WAIT", r"1|true", "collectives block the host: unset it"),
    _setting("NCCL_P2P_DISABLE", r"1", "ranks of a host copy through memory: unset it"),
    _setting("NCCL_SHM_DISABLE", r"1", "ranks of a host use the network: unset it"),
    _setting("NCCL_DEBUG", r"TRACE|INFO", "NCCL writes a log from its threads: use WARN"),
    _setting("PYTORCH_NO_CUDA_MEMORY_CACHING", r"1", "every tensor is a cudaMalloc: unset it"),
    _setting("PYTHONMALLOC", r"debug|malloc_debug", "every allocation is checked: unset it"),
    _setting("PYTHONASYNCIODEBUG", r"1", "asyncio checks every call: unset it"),
    _setting("PYTHONTRACEMALLOC", r"[1-9]", "every allocation is recorded: unset it"),
    _setting("VLLM_LOGGING_LEVEL", r"DEBUG", "logs from the engine's loop: use INFO", "vllm"),
    _setting("VLLM_ENABLE_V1_MULTIPROCESSING", r"0", "engine and front end share a lock", "vllm"),
    _setting("VLLM_TRACE_FUNCTION", r"1", "every Python call is traced: unset it", "vllm"),
    _setting("SGLANG_LOG_LEVEL", r"debug", "logs from the scheduler's loop: use info", "sglang"),
)
"""Known misconfigurations; a value is compared, never shown."""


def settings(environment: Mapping[str, str], engine: str | None = None) -> Iterator[Result]:
    """Environment variables and limits that make serving slow."""
    for one in SETTINGS:
        value = environment.get(one.name)
        foreign = engine is not None and one.engine not in (None, engine)
        if value is not None and not foreign and one.bad.fullmatch(value.strip()):
            yield Result("setting", one.name, "warning", "set", one.advice)
    yield _threads(environment)
    yield from _memory()


def _threads(environment: Mapping[str, str]) -> Result:
    """Whether helper threads of OpenMP may compete with the engine's own."""
    cores, told = len(os.sched_getaffinity(0)), environment.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told) > cores:
        advice = f"more threads than the {cores} CPUs at hand: lower it"
        return Result("setting", "OMP_NUM_THREADS", "warning", told, advice)
    if cores < 2:
        advice = "engine, front end and driver threads share one CPU"
        return Result("setting", "CPUs", "warning", str(cores), advice)
    return Result("setting", "CPUs", "ok", str(cores))


def _memory() -> Iterator[Result]:
    shm = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None
    if shm is not None:
        few = shm < 1 << 30
        advice = "ranks exchange through it: docker run --shm-size 8g, or --ipc host" if few else ""
        found = f"{shm / 1e9:.1f} GB free"
        yield Result("setting", "/dev/shm", "warning" if few else "ok", found, advice)
    pages = re.search(r"\[(\w+)\]", _text("/sys/kernel/mm/transparent_hugepage/enabled"))
    if pages:
        never = pages[1] == "never"
        advice = "large host buffers miss the TLB: madvise or always" if never else ""
        status: Status = "warning" if never else "ok"
        yield Result("setting", "huge pages", status, pages[1], advice)
