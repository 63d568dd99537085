"""Samples of GPUs, through a stand-in for `pynvml`: no GPU is needed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rca_llm.probes import nvml


class FakeSink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: dict[tuple[str, int], float] = {}
        self.names: dict[int, str] = {}

    def device(self, metric: str, device: int, value: float) -> None:
        self.written[metric, device] = value

    def process(self, metric: str, process: int, value: float) -> None:
        self.written[metric, process] = value

    def neighbour(self, process: int, name: str) -> None:
        self.names[process] = name


class FakeNvml(ModuleType):
    """Two GPUs; the second has no power meter, and its processes may not be seen."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    class NVMLError(Exception):
        """What NVML raises."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.asked: list[int] = []
        for name, answer in {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 << 30),
            "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetPcieThroughput": 3,
        }.items():
            setattr(self, name, lambda *_, answer=answer: answer)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise self.NVMLError("not supported")
        return 350_500

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle == 1:
            raise self.NVMLError("no permission")
        return [
            SimpleNamespace(pid=7, usedGpuMemory=3 << 30),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Any]:
        self.asked.append(since)
        old = SimpleNamespace(pid=7, smUtil=10, timeStamp=100)
        return [SimpleNamespace(pid=7, smUtil=60 if handle else 30, timeStamp=200), old]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


@pytest.fixture
def gpus(fake: FakeNvml) -> nvml.Nvml:
    found = nvml.open_nvml()
    assert found is not None
    return found


def test_every_gpu_is_asked_in_our_units(gpus: nvml.Nvml) -> None:
    sink: Any = FakeSink()
    gpus.sample(sink)
    gpus.sample_traffic(sink)
    assert sink.written["gpu.sm_clock_mhz", 1] == 1980
    assert sink.written["gpu.power_w", 0] == 350.5
    assert sink.written["gpu.utilization", 0] == 0.4
    assert sink.written["gpu.pcie_rx_bytes_s", 1] == 3 * 1024
    assert ("gpu.power_w", 1) not in sink.written  # unknown, not 0


def test_processes_are_summed_over_the_gpus(gpus: nvml.Nvml) -> None:
    sink: Any = FakeSink()
    gpus.sample_processes(sink)
    assert sink.written == {
        ("gpu.process_memory_bytes", 7): 3 << 30,  # that of process 8 is not known
        ("gpu.process_sm", 7): pytest.approx(0.9),
    }
    assert set(sink.names) == {7}  # by name, since a process outside may be what slows ours


def test_process_samples_are_read_once(fake: FakeNvml, gpus: nvml.Nvml) -> None:
    sink: Any = FakeSink()
    gpus.sample_processes(sink)
    gpus.sample_processes(sink)
    assert fake.asked == [0, 0, 200, 200]


def test_without_a_driver_there_is_nothing_to_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    assert nvml.open_nvml() is None
