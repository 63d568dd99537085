"""Hardware counters, through a stand-in for cupti-python: no GPU here counts anything."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from rca_llm import launch, readers
from rca_llm.readers.files import source
from rca_llm.readers.run import read_segments
from rca_llm.run import create
from rca_llm.trace import Timeline

FAKE_DRIVER = """
def cuInit(flags): return (0,)
def cuDeviceGetCount(): return 0, 2
def cuDeviceGet(index): return 0, index
def cuDevicePrimaryCtxRetain(device): return 0, 4096 + device
"""

# The GPU's clock runs one hour ahead of ours; a sample a millisecond, ten a look; device 1 refuses.
# As on an H200 without a link: counters of NVLink fit, and no sample comes; a look may bring a
# sample without an end, and one in which tensor cores did 41 times what they can. Once, the buffer
# overflows.
FAKE_SAMPLING = """
import os, time
AHEAD = 3600 * 10**9
FITS = int(os.environ.get("FAKE_FITS", "5"))
UNKNOWN = ("sm__pipe_tensor_cycles_active_r", "l1tex__average", "l1tex__t_sectors", "pcie__write")
VALUES = {
    "sm__cycles": 25.0, "sm__pipe": 50.0, "dram__read": float("nan"), "dram__write": 10.0,
    "pcie__read": 7e9, "l1tex__data": 5.0, "l1tex__m_xbar": 640.0, "sm__inst_executed": 40.0,
}
class Sample:
    def __init__(self, end, values):
        self.start_timestamp, self.end_timestamp, self.metric_values = end - 10**6, end, values
class Collector:
    def __init__(self, index): self.index, self.looks, self.overflowed = index, 0, False
    def enable(self):
        if self.index == 1:
            raise PermissionError("no permission")
    def configure(self, *, metrics, sampling_interval, hardware_buffer_size):
        if len(metrics) > FITS or any(name.startswith(UNKNOWN) for name in metrics):
            raise ValueError("not in one pass")
        self.metrics = metrics
    def start(self): self.looks = 0
    def stop(self): pass
    def disable(self): pass
    def decode(self, most):
        self.looks += 1
        if any(name.startswith("nvl") for name in self.metrics):
            return []
        if self.looks == 8 and "FAKE_CRASH" in os.environ:
            os.kill(os.getpid(), 11)
        if self.looks == 4 and not self.overflowed:
            self.overflowed = True
            raise MemoryError("overflow")
        now = time.perf_counter_ns() + AHEAD
        values = [next(v for n, v in VALUES.items() if m.startswith(n)) for m in self.metrics]
        unfinished = Sample(0, [9.0 for _ in self.metrics])
        strange = [4100.0 if m.startswith("sm__pipe") else v for m, v in zip(self.metrics, values)]
        told = [strange if i == 7 else values for i in range(10)]
        return [unfinished, *(Sample(now - i * 10**6, told[i]) for i in reversed(range(10)))]
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with the stand-ins `cupti` and `cuda.bindings`."""
    folder = tmp_path / "fake"
    for name, text in {
        "cupti/__init__.py": "",
        "cupti/pm_sampling.py": FAKE_SAMPLING,
        "cuda/__init__.py": "",
        "cuda/bindings/__init__.py": "",
        "cuda/bindings/driver.py": FAKE_DRIVER,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def trace(tmp_path: Path, path: Path | None, *options: str, **env: str) -> tuple[Path, str]:
    """Trace a program that sleeps a little; the run directory, and what the launcher said."""
    run = tmp_path / "run.rca"
    command = [sys.executable, "-m", "rca_llm", "trace", "-o", str(run), *options]
    command += ["--", sys.executable, "-c", "import time; time.sleep(1.5)"]
    places = [str(path)] if path else []
    places += [str(launch.PROBES.parent.parent), os.environ.get("PYTHONPATH", "")]
    whole = os.environ | env | {"PYTHONPATH": os.pathsep.join(part for part in places if part)}
    done = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return run, done.stderr


def values(timeline: Timeline, metric: str) -> list[float]:
    """All values of a metric."""
    samples = timeline["samples"]
    rows = samples["metric"] == timeline.strings.find(metric)
    return samples["value"][rows].tolist()


def test_counters_become_samples_on_our_clock(fake: Path, tmp_path: Path) -> None:
    run, said = trace(tmp_path, fake, "--counters")
    assert said == ""
    (timeline,) = readers.read(run).timelines
    active = values(timeline, "gpu.sm_active")
    assert len(active) >= 20
    assert set(active) == {0.25}
    assert set(values(timeline, "gpu.tensor_active")) == {0.5}
    assert not values(timeline, "gpu.dram_read")  # no number: unknown, not 0
    assert set(values(timeline, "gpu.dram_write")) == {0.1}
    assert set(values(timeline, "gpu.pcie_read_bytes_s")) == {7e9}
    assert not values(timeline, "gpu.bank_conflicts")  # did not fit
    samples = timeline["samples"]
    ours = samples["metric"] == timeline.strings.find("gpu.sm_active")
    first, last = (int(getattr(np, at)(samples["t"][ours])) for at in ("min", "max"))
    anchors = [anchor[0] for anchor in timeline.header.anchors]
    assert min(anchors) - 10**8 < first < last < max(anchors) + 10**8
    assert set(samples["device"][ours].tolist()) == {0}


def test_a_counter_with_which_no_samples_come_is_left_out(fake: Path, tmp_path: Path) -> None:
    run, said = trace(tmp_path, fake, "--counters", FAKE_FITS="20")
    assert said == ""
    (timeline,) = readers.read(run).timelines
    assert set(values(timeline, "gpu.sm_active")) == {0.25}
    assert set(values(timeline, "gpu.bank_conflicts")) == {0.05}
    assert not values(timeline, "gpu.nvlink_rx_bytes_s")
    assert set(values(timeline, "gpu.load_sectors")) == {16.0}  # one counter over another


def test_a_crash_of_the_counting_process_is_told(fake: Path, tmp_path: Path) -> None:
    run, said = trace(tmp_path, fake, "--counters", FAKE_CRASH="1")
    assert "ended early, with -11" in said
    assert values(readers.read(run).timelines[0], "gpu.sm_active")  # what there was is kept


def test_an_overflow_is_counted(fake: Path, tmp_path: Path) -> None:
    run, _ = trace(tmp_path, fake, "--counters")
    found = [f for f in readers.read(run).timelines[0].findings if "counters" in f.detail]
    assert [(f.code, f.count) for f in found] == [("dropped_records", 1)]


def test_a_paused_trace_has_no_counters(fake: Path, tmp_path: Path) -> None:
    run, _ = trace(tmp_path, fake, "--counters", "--start", "paused")
    assert not values(read_segments(source(str(run))), "gpu.sm_active")


def test_without_counters_the_program_runs_on_and_one_line_says_why(
    fake: Path, tmp_path: Path
) -> None:
    run, said = trace(tmp_path, fake, "--counters", FAKE_FITS="0")
    assert said.startswith(
        "rca-llm: no hardware counters: OSError: GPU 0: RuntimeError: no counter"
    )
    assert "GPU 1: PermissionError: no permission" in said
    assert len(said.splitlines()) == 1
    assert not values(readers.read(run).timelines[0], "gpu.sm_active")


def test_a_missing_library_is_told(tmp_path: Path) -> None:
    _, said = trace(tmp_path, None, "--counters")
    assert said.startswith("rca-llm: no hardware counters: ")
    assert len(said.splitlines()) == 1


def test_the_counting_process_ends_with_its_launcher(fake: Path, tmp_path: Path) -> None:
    """Whoever holds its standard input may be killed: it sees the end of that and goes."""
    run = create(tmp_path / "alone.rca")
    places = os.pathsep.join([str(fake), str(launch.PROBES.parent.parent)])
    with subprocess.Popen(
        [sys.executable, "-m", "rca_llm.probes.counters", str(run.path)],
        env=os.environ | {"PYTHONPATH": places}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.close()
        assert process.wait(30) == 0
