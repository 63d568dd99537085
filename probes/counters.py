"""Hardware counters of every GPU: how busy its parts were, sampled by the GPU itself.

Runs in a process of its own beside the launcher (`rca-llm trace --counters`), because it needs a
CUDA context and a libcupti newer than PyTorch's. CUPTI's PM sampling watches the whole device,
whichever process works on it. Which counters fit into one pass is tried, not assumed: they are
added in the order of `COUNTERS`, and what does not fit, or is not known on this GPU, is left out;
so is a counter with which no samples come, as those of NVLink where a GPU has no link.

Every sample covers the interval that ends at its time. The GPU stamps samples on a clock of its
own; pairs of readings of that clock and ours put them on ours.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns, sleep

from . import format as layout
from . import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

INTERVAL_NS = 500_000
"""A kernel of a millisecond has a sample to itself, wherever it begins."""
DECODE_S = 0.1
MOST_SAMPLES = 512
"""Samples that one look at the GPU may bring; it brings about two hundred. CUPTI prepares room for
all of them at every look, which at 4,096 took two thirds of a processor."""
HARDWARE_BYTES = 64 << 20
TRIAL_S = 0.01
TRIALS = 3
"""Looks for a first sample of a choice of counters, and the time before each."""
STRANGE_NS = 3_600_000_000_000
"""A difference of two clock readings that jumps by more than this is no clock."""

PERCENT = 0.01
MOST_SHARE = 1.02
"""No share of a highest rate is more, but for rounding at a sample's edges. One sample in 600 of
busy tensor cores said 15 to 300 (libcupti 13.5 on an H200)."""
_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_LOADS = "pipe_lsu_mem_global_op_ld.sum"
COUNTERS: dict[str, tuple[float, tuple[str, ...]]] = {
    "gpu.sm_active": (PERCENT, ("sm__cycles_active" + _PEAK,)),
    "gpu.tensor_active": (
        PERCENT,
        (
            "sm__pipe_tensor_cycles_active_realtime" + _PEAK,
            "sm__pipe_tensor_cycles_active" + _PEAK,
            "sm__inst_executed_pipe_tensor" + _PEAK,
        ),
    ),
    "gpu.dram_read": (
        PERCENT,
        ("dram__read_throughput" + _PEAK, "dramc__read_throughput" + _PEAK),
    ),
    "gpu.dram_write": (
        PERCENT,
        ("dram__write_throughput" + _PEAK, "dramc__write_throughput" + _PEAK),
    ),
    "gpu.pcie_read_bytes_s": (1.0, ("pcie__read_bytes.sum.per_second",)),
    "gpu.pcie_write_bytes_s": (1.0, ("pcie__write_bytes.sum.per_second",)),
    "gpu.bank_conflicts": (
        PERCENT,
        (
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared" + _PEAK,
            "l1tex__data_bank_conflicts_pipe_lsu" + _PEAK,
        ),
    ),
    "gpu.load_sectors": (
        1.0,
        (
            "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
            f"l1tex__t_sectors_{_LOADS} / l1tex__t_requests_{_LOADS}",
            "l1tex__m_xbar2l1tex_read_sectors_realtime.sum"
            " / sm__inst_executed_pipe_lsu_mem_lg_cmd_read.sum",
        ),
    ),
    "gpu.nvlink_rx_bytes_s": (1.0, ("nvlrx__bytes.sum.per_second",)),
    "gpu.nvlink_tx_bytes_s": (1.0, ("nvltx__bytes.sum.per_second",)),
}
"""By our metric: the factor that brings the counter to its unit, and CUPTI's names for it; of two
with a stroke the first over the second. Shares are fractions of the highest rate that the part can
keep up; PCIe reads are those of the GPU. Of two names for one thing the first is the one that
leaves room for more in a pass (on an H200 `_realtime` counts the same, and all of these fit).
Sectors are those of loads alone: a counter that takes in stores would call a plain copy strided."""


class Clock:
    """Puts times of one GPU on ours.

    Read through CUPTI where it can; else by the samples themselves: none ends after it was read, so
    the smallest distance seen is the offset, too large by at most an interval and the reading.
    """

    def __init__(self, context: int | None) -> None:
        self._read = device_clock(context)
        self._offset: int | None = None
        self.is_exact = self._read is not None

    def look(self) -> None:
        """Read both clocks."""
        if self._read is None:
            return
        before = perf_counter_ns()
        theirs = self._read()
        after = perf_counter_ns()
        if theirs is not None:
            self._offset = (before + after) // 2 - theirs

    def saw(self, last: int) -> None:
        """The end of the last sample that was read just now."""
        bound = perf_counter_ns() - last
        if self._offset is not None and abs(bound - self._offset) > STRANGE_NS:
            self._read, self._offset, self.is_exact = None, None, False
        if not self.is_exact:
            self._offset = bound if self._offset is None else min(self._offset, bound)

    def ours(self, theirs: int) -> int:
        """A time of the GPU on our clock."""
        return theirs + (self._offset or 0)


def device_clock(context: int | None) -> Any:
    """A function that reads the GPU's clock in ns, None where CUPTI offers none."""
    import ctypes

    if context is None:
        return None
    try:
        function = ctypes.CDLL(_mapped("libcupti.so"), mode=os.RTLD_LAZY).cuptiDeviceGetTimestamp
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

    def read() -> int | None:
        found = ctypes.c_uint64()
        return found.value if function(context, ctypes.byref(found)) == 0 else None

    return read


def _mapped(name: str) -> str:
    """The path under which a library is mapped into this process; OSError where it is not."""
    with open("/proc/self/maps") as file:
        for line in file:
            path = line.partition("/")[2].rstrip()
            if name in path:
                return "/" + path
    raise OSError(name + " is not loaded")


class Device:
    """The counters of one GPU."""

    def __init__(self, index: int, sampling: Any, context: int | None) -> None:
        self.index = index
        self.clock = Clock(context)
        self.metrics: list[str] = []
        self.lost = 0
        self._sampling = sampling
        self._names: list[tuple[str, ...]] = []
        self._collector: Any = None
        self._choose()
        self._collector = self._begun(self._names)

    def _choose(self) -> None:
        """Take every counter that can be sampled in one pass with those before it."""
        for metric, (_, names) in COUNTERS.items():
            for name in names:
                chosen = [*self._names, tuple(name.split(" / "))]
                if self._samples(chosen):
                    self._names = chosen
                    self.metrics.append(metric)
                    break
        if not self._names:
            raise RuntimeError("no counter can be sampled")

    def _begun(self, names: list[tuple[str, ...]]) -> Any:
        """A collector that samples some counters; raises where they do not fit into one pass.

        Every choice has a collector of its own: one that was configured again crashed (libcupti
        13.5 on an H200).
        """
        collector = self._sampling.Collector(self.index)
        collector.enable()
        try:
            collector.configure(
                metrics=[part for name in names for part in name],
                sampling_interval=INTERVAL_NS,
                hardware_buffer_size=HARDWARE_BYTES,
            )
            collector.start()
        except Exception:
            collector.disable()
            raise
        return collector

    def _samples(self, names: list[tuple[str, ...]]) -> bool:
        """Whether some counters fit into one pass, and samples of them come."""
        try:
            collector = self._begun(names)
        except (PermissionError, MemoryError):
            raise
        except Exception:  # cupti-python has errors of its own, made when it is imported
            return False
        try:
            return any(_look(collector) for _ in range(TRIALS))
        except Exception:  # as above
            return False
        finally:
            collector.stop()
            collector.disable()

    def sample(self, here: recorder.Recorder, wanted: bool) -> None:
        """Write what the GPU has counted since the last call, or let it go."""
        self.clock.look()
        try:
            data = self._collector.decode(MOST_SAMPLES)
        except MemoryError:  # the GPU's buffer was full: it keeps the oldest
            self.lost += 1
            here.info("gpu.counters_overflow", None, 1)
            self._restart()
            return
        # One that had no end yet says 0, among others that have one.
        found = [one for one in data if one.end_timestamp] if wanted else list(data[-1:])
        if found:
            self.clock.saw(int(found[-1].end_timestamp))
        for one in found if wanted else ():
            time = self.clock.ours(int(one.end_timestamp))
            for metric, value in zip(self.metrics, self._values(one.metric_values), strict=True):
                put(here, metric, self.index, time, value * COUNTERS[metric][0])

    def _values(self, counted: list[float]) -> Iterator[float]:
        """A value of every metric; what is over nothing is no number."""
        rest = iter(counted)
        for name in self._names:
            value = float(next(rest))
            if len(name) > 1:
                below = float(next(rest))
                value = value / below if below else float("nan")
            yield value

    def _restart(self) -> None:
        self._collector.stop()
        self._collector.start()

    def close(self) -> None:
        """Stop counting."""
        try:
            self._collector.stop()
            self._collector.disable()
        except Exception:  # as above; the samples are written
            pass


def _look(collector: Any) -> bool:
    """Whether samples have come after a moment."""
    sleep(TRIAL_S)
    return any(one.end_timestamp for one in collector.decode(MOST_SAMPLES))


def put(here: recorder.Recorder, metric: str, device: int, time: int, value: float) -> None:
    """One value of a GPU at a time; a number that is none, or cannot be, is unknown: left out."""
    from struct import pack, unpack

    if value <= MOST_SHARE or (value == value and COUNTERS[metric][0] != PERCENT):
        bits = unpack("<q", pack("<d", value))[0]
        here.cell(
            layout.SAMPLE, time, bits, here.ids[metric], device, layout.SUBJECTS.index("device")
        )


def contexts() -> list[int]:
    """A CUDA context of every GPU that this process sees; raises without CUDA."""
    from importlib import import_module

    driver: Any = import_module("cuda.bindings.driver")
    driver.cuInit(0)
    _, count = driver.cuDeviceGetCount()
    found: list[int] = []
    for index in range(count):
        _, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(index)[1])
        found.append(int(context))
    return found


def load_libraries() -> None:
    """Load the libcupti that lies beside cupti-python, and what it needs to count.

    Another one, such as PyTorch's, may be found first and be too old; and nothing tells libcupti
    where its parts lie. What is loaded once is found by its name from then on.
    """
    import ctypes
    from glob import glob
    from importlib.util import find_spec

    found = find_spec("cupti")
    places = found.submodule_search_locations if found is not None else None
    for place in places or ():
        folder = os.path.join(os.path.dirname(place), "nvidia", "cu*", "lib")
        for name in ("libnvperf_host.so", "libnvperf_target.so", "libcupti.so.*"):
            for path in glob(os.path.join(folder, name)):
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def open_devices(here: recorder.Recorder) -> list[Device]:
    """Every GPU whose counters can be read; of others it is told why not. Raises without any."""
    from importlib import import_module

    load_libraries()
    sampling: Any = import_module("cupti.pm_sampling")
    found: list[Device] = []
    errors: list[str] = []
    for index, context in enumerate(contexts()):
        try:
            found.append(Device(index, sampling, context))
        except Exception as error:  # no permission, another profiler, a GPU without counters
            errors.append(told(error, f"GPU {index}: "))
            here.info("counters.error", errors[-1], index)
    if errors and not found:
        raise OSError("; ".join(errors))
    return found


def told(error: Exception, where: str = "") -> str:
    """An error in one short line."""
    return " ".join(f"{where}{type(error).__name__}: {error}".split())[:500]


def watch(devices: list[Device], here: recorder.Recorder, run: str, more: Any) -> None:
    """Sample until `more` says no."""
    with open(os.path.join(run, layout.CONTROL_NAME), "rb", buffering=0) as gate:
        while more():
            gate.seek(layout.CONTROL_GATE_OFFSET)
            wanted = gate.read(1) == b"\1"
            for device in devices:
                device.sample(here, wanted)


def main(run: str) -> int:
    """Sample into a run directory until standard input ends; 1 where nothing can be sampled.

    Says `ready` on standard output, or why not, in one line.
    """
    path, header = recorder.new_segment(run, layout.WRITER_LAUNCHER)
    here = recorder.Recorder(path, header)
    devices: list[Device] = []
    try:
        devices = open_devices(here)
        print("ready" if devices else "no GPU", flush=True)
    except Exception as error:  # cupti-python or CUDA is missing, or does not fit the driver
        print(told(error), flush=True)
    for device in devices:
        here.info("counters.metrics", " ".join(device.metrics), device.index)
    if devices:
        watch(devices, here, run, ended(sys.stdin.fileno()))
    for device in devices:
        exact = "read from the GPU" if device.clock.is_exact else "bounded by the samples"
        here.info("counters.clock", exact, device.index)
        device.close()
    here.close()
    return 0 if devices else 1


def ended(fd: int) -> Any:
    """A function that waits for the next look, and is false once `fd` has ended."""
    from select import select

    def more() -> bool:
        readable, _, _ = select([fd], [], [], DECODE_S)
        return not (readable and not os.read(fd, 64))

    return more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
