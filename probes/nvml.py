"""GPU clocks, power, utilization, memory, throttling and PCIe traffic, through NVML.

Runs in the launcher. Without a driver or the ``pynvml`` module there is nothing to read.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .system import Sink


class Nvml:
    """The GPUs of this machine; `sample` writes what each says now."""

    def __init__(self) -> None:
        self._nvml: Any = import_module("pynvml")
        self._nvml.nvmlInit()
        count = self._nvml.nvmlDeviceGetCount()
        self.handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
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

    def sample(self, sink: Sink) -> None:
        """Write clocks, power, use and memory of every GPU."""
        self._write(self._readers, sink)

    def sample_traffic(self, sink: Sink) -> None:
        """Write PCIe traffic, which NVML measures for 20 ms a call."""
        self._write(self._traffic, sink)

    def _write(self, readers: dict[str, Callable[[Any], float]], sink: Sink) -> None:
        """Ask every GPU; what one does not support is not asked again."""
        for index, handle in enumerate(self.handles):
            for metric, read in list(readers.items()):
                try:
                    sink.device(metric, index, float(read(handle)))
                except self._nvml.NVMLError:
                    del readers[metric]


def open_nvml() -> Nvml | None:
    """NVML, or None where there is no GPU, driver or module."""
    try:
        return Nvml()
    except Exception:  # pynvml raises errors of its own, made when it is imported
        return None
