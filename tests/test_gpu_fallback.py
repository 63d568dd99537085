"""Where the collector is not built, cupti-python records: shown with a stand-in of its module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rca_llm import readers
from rca_llm.probes import format as layout
from rca_llm.trace import KERNEL, MEMCPY, MEMSET, Timeline

BOOTSTRAP = Path(__file__).parent.parent / "probes" / "bootstrap"

# The part of cupti-python that is used; activity_flush_all delivers what was "recorded".
_CUPTI = """
import enum, time, types
class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    CONCURRENT_KERNEL = 10
enabled, records = [], []
def activity_register_callbacks(request, complete):
    global completed
    completed = complete
    assert request() == (8 << 20, 0)
def activity_enable(kind):
    enabled.append(kind)
def activity_flush_all(flag):
    done, records[:] = list(records), []
    if done:
        completed(done)
def add(kind, **fields):
    now = time.time_ns()
    common = dict(kind=kind, start=now, end=now + 1000, device_id=1, context_id=1, stream_id=7,
                  correlation_id=5, graph_id=0, graph_node_id=0, flags_=0, bytes=64)
    records.append(types.SimpleNamespace(**{**common, **fields}))
def kernel(name):
    add(10, name=name, grid_x=2, grid_y=3, grid_z=4, block_x=128, block_y=1, block_z=1,
        static_shared_memory=16, dynamic_shared_memory=32, local_memory_per_thread=0,
        registers_per_thread=40, cluster_x=1, cluster_y=1, cluster_z=1, launch_type=0)
"""
_PROGRAM = """
import torch.cuda
torch.cuda.use()
from cupti import cupti
print(len(cupti.enabled))
if cupti.enabled:
    for _ in range(3):
        cupti.kernel("_Z6kernelPf")
    cupti.add(1, copy_kind=1, src_kind=1, dst_kind=3, bytes=4096)
    cupti.add(2, memory_kind=3, bytes=512)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of modules: PyTorch's start of CUDA, and cupti-python."""
    for package, name, content in (
        ("torch", "cuda.py", "def _lazy_init(): pass\ndef use(): _lazy_init()\n"),
        ("cupti", "cupti.py", _CUPTI),
    ):
        folder = tmp_path / "site" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / name).write_text(content)
    return tmp_path / "site"


def run(site: Path, **variables: str) -> tuple[str, Path]:
    """Run the program in a trace; what it printed, and the run directory."""
    folder = site.parent / "run"
    (folder / "segments").mkdir(parents=True)
    (folder / "control").write_bytes(b"\1".ljust(layout.CONTROL_BYTES, b"\0"))
    environment = {key: value for key, value in os.environ.items() if "INJECTION64" not in key}
    environment |= {"RCA_LLM_RUN": str(folder)}
    environment |= {"PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), str(site)])}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip(), folder


def test_kernels_and_copies_are_recorded(site: Path) -> None:
    enabled, folder = run(site)
    assert enabled == "3"
    (timeline,) = readers.read(folder).timelines
    gpu = timeline["gpu"].sorted_by("kind")
    assert gpu["kind"].tolist() == [KERNEL] * 3 + [MEMCPY, MEMSET]
    shape = ("grid_x", "grid_y", "grid_z", "block_x", "shared", "registers", "stream", "device")
    assert [int(gpu[name][0]) for name in shape] == [2, 3, 4, 128, 48, 40, 7, 1]
    assert timeline.text(int(gpu["name"][0])) == "kernel(float*)"
    assert [int(gpu[name][3]) for name in ("copy", "src", "dst", "bytes")] == [0, 0, 2, 4096]
    _check_it_is_told(timeline)


def _check_it_is_told(timeline: Timeline) -> None:
    found = [finding for finding in timeline.findings if finding.code == "tracer_overhead"]
    assert len(found) == 1
    assert "cupti-python" in found[0].detail
    ends = timeline["gpu"]["end"]
    assert ((ends - timeline["gpu"]["start"]) == 1000).all()


@pytest.mark.parametrize(
    "variables",
    [{"RCA_LLM_GPU": "off"}, {"CUDA_INJECTION64_PATH": "/some/library.so"}],
    ids=["off", "collector"],
)
def test_it_stays_away_where_it_is_not_needed(site: Path, variables: dict[str, str]) -> None:
    enabled, _ = run(site, **variables)
    assert enabled == "0"


def test_without_cupti_python_the_program_runs_on(site: Path) -> None:
    (site / "cupti" / "cupti.py").write_text("enabled = ()\nraise_here = 1\n")
    enabled, _ = run(site)
    assert enabled == "0"
