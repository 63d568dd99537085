"""GPU clocks, power, utilization, memory, throttling, PCIe traffic and processes, through NVML.

Runs in the launcher. Without a driver or the ``pynvml`` module there is nothing to read.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from .neighbours import name_of
from .nodes import GPU_NODE, GPU_UUID, node_of_pci

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .recorder import Recorder
    from .system import Sink


class Nvml:
    """The GPUs of this machine; `sample` writes what each says now."""

    def __init__(self) -> None:
        self._nvml: Any = import_module("pynvml")
        self._nvml.nvmlInit()
        count = self._nvml.nvmlDeviceGetCount()
        self.handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self._seen = [0] * count  # microseconds of the newest process sample that was read
        self._readers = self._make_readers()
        self._traffic = self._make_traffic()

    def _make_readers(self) -> dict[str, Callable[[Any], float]]:
        nvml = self._nvml
        return {
            "gpu.sm_clock_mhz": lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM),
            "gpu.power_w": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000.0,
            "gpu.utilization": lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100.0,
            "gpu.memory_used_bytes": lambda h: nvml.nvmlDeviceGetMemoryInfo(h).used,
            "gpu.throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons,
            "gpu.temperature_c": lambda h: nvml.nvmlDeviceGetTemperature(
                h, nvml.NVML_TEMPERATURE_GPU
            ),
        }

    def _make_traffic(self) -> dict[str, Callable[[Any], float]]:
        nvml, kib = self._nvml, 1024.0
        return {
            "gpu.pcie_rx_bytes_s": lambda h: (
                kib * nvml.nvmlDeviceGetPcieThroughput(h, nvml.NVML_PCIE_UTIL_RX_BYTES)
            ),
            "gpu.pcie_tx_bytes_s": lambda h: (
                kib * nvml.nvmlDeviceGetPcieThroughput(h, nvml.NVML_PCIE_UTIL_TX_BYTES)
            ),
        }

    def names(self) -> list[str]:
        """The GPUs' names, by NVML index."""
        return [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self.handles]

    def tell(self, recorder: Recorder) -> None:
        """Write each GPU's name, its UUID, by which CUDA knows it too, and its node if known."""
        for index, (name, handle) in enumerate(zip(self.names(), self.handles, strict=True)):
            recorder.info("gpu", name, index)
            uuid = self._told("nvmlDeviceGetUUID", handle)
            node = self.node(handle)
            if uuid is not None:
                recorder.info(GPU_UUID, _text(uuid), index)
            if node is not None:
                recorder.info(GPU_NODE, str(node), index)

    def node(self, handle: Any) -> int | None:
        """The NUMA node that a GPU is connected to, None where nobody says."""
        pci = self._told("nvmlDeviceGetPciInfo", handle)
        return None if pci is None else node_of_pci(_text(pci.busId))

    def _told(self, question: str, handle: Any) -> Any:
        """What the driver says of a GPU, None where it has no answer."""
        try:
            return getattr(self._nvml, question)(handle)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def sample(self, sink: Sink) -> None:
        """Write clocks, power, use and memory of every GPU."""
        self._write(self._readers, sink)

    def sample_traffic(self, sink: Sink) -> None:
        """Write PCIe traffic, which NVML measures for 20 ms a call."""
        self._write(self._traffic, sink)

    def sample_processes(self, sink: Sink) -> None:
        """Write what each process has of all GPUs: memory, and multiprocessors it kept busy.

        Both are sums over the GPUs, so a process that fills two has 2.0 of the multiprocessors.
        What NVML does not say of a process is left out. Ids are those that the driver sees, which
        in a container may not be the container's own.
        """
        memory: dict[int, int] = {}
        busy: dict[int, float] = {}
        for index, handle in enumerate(self.handles):
            for process in self._asked(partial(self._processes, handle)):
                if process.usedGpuMemory is not None:
                    memory[process.pid] = memory.get(process.pid, 0) + process.usedGpuMemory
            for sample in self._asked(partial(self._utilization, index)):
                busy[sample.pid] = busy.get(sample.pid, 0.0) + sample.smUtil / 100.0
        for metric, found in (("gpu.process_memory_bytes", memory), ("gpu.process_sm", busy)):
            for pid, value in found.items():
                sink.process(metric, pid, float(value))
                sink.neighbour(pid, name_of(pid))

    def _processes(self, handle: Any) -> list[Any]:
        return list(self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))

    def _utilization(self, index: int) -> list[Any]:
        """The newest figure of each process since the last call."""
        found = self._nvml.nvmlDeviceGetProcessUtilization(self.handles[index], self._seen[index])
        newest = {one.pid: one for one in sorted(found, key=lambda one: one.timeStamp)}
        self._seen[index] = max([self._seen[index], *(one.timeStamp for one in newest.values())])
        return list(newest.values())

    def _asked(self, question: Callable[[], list[Any]]) -> list[Any]:
        """The answer; nothing where the driver has none (no process, no permission, MIG)."""
        try:
            return question()
        except self._nvml.NVMLError:
            return []

    def _write(self, readers: dict[str, Callable[[Any], float]], sink: Sink) -> None:
        """Ask every GPU; what one does not support is not asked again."""
        for index, handle in enumerate(self.handles):
            for metric, read in list(readers.items()):
                try:
                    sink.device(metric, index, float(read(handle)))
                except self._nvml.NVMLError:
                    del readers[metric]


def _text(value: str | bytes) -> str:
    """A text as older and newer versions of pynvml give it."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def open_nvml() -> Nvml | None:
    """NVML, or None where there is no GPU, driver or module."""
    try:
        return Nvml()
    except Exception:  # pynvml raises errors of its own, made when it is imported
        return None
