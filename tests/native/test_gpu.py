"""The Python side steers the collector that is loaded in its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rca_llm.probes import format as layout
from rca_llm.table import UNKNOWN
from rca_llm.trace import KERNEL
from tests.native.conftest import NATIVE, Traced
from tests.native.segments import collector_segments, timeline_of

# A process that loads the collector as CUDA does, and a class shaped as PyTorch's profiler.
_PRELUDE = """
import ctypes, os, types
from rca_llm.probes import gpu
def start():
    global cupti
    cupti = ctypes.CDLL(os.environ["RCA_LLM_CUPTI"])
    ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection()
def kernels(count):
    for _ in range(count):
        cupti.fake_kernel(b"kernel", ctypes.c_uint64(0))
class profile:
    def _prepare_trace(self):
        cupti.cuptiActivityDisable(10)
    def __enter__(self):
        self._prepare_trace()
        return self
    def __exit__(self, *error):
        return True
module = types.SimpleNamespace(profile=profile)
"""


def _python(app: Traced, code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + code],
        env=os.environ | app.environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_profiler_session_is_a_gap_and_no_end(app: Traced) -> None:
    out = _python(
        app,
        "gpu.wrap_profiler(module); gpu.wrap_profiler(module); start(); kernels(3)\n"
        "with profile():\n"
        "    print(gpu.collecting()); kernels(5); raise ValueError('kept from the program')\n"
        "print(gpu.collecting()); kernels(4)",
    )
    assert out == "False\nTrue\n"
    assert timeline_of(app.run)["gpu"]["kind"].tolist() == [KERNEL] * 7
    (segment,) = collector_segments(app.run)
    (gap,) = segment.of(layout.GAP)
    assert segment.names[gap.c] == "displaced"


def test_steps_reach_the_kernels(app: Traced) -> None:
    code = "start(); gpu.push_step(2**40); kernels(2); gpu.pop_step(); gpu.flush(); os._exit(0)"
    _python(app, code, RCA_LLM_EXTERNAL="on")
    assert timeline_of(app.run)["gpu"]["step"].tolist() == [2**40, 2**40]


def test_the_worker_of_vllm_marks_what_it_launches_for_a_step(app: Traced) -> None:
    """By the number that the scheduler left on its output; a batch without one has no step."""
    code = """
from rca_llm.probes.engines import patch, vllm_core
class Worker:
    def execute_model(self, scheduler_output):
        kernels(scheduler_output.kernels)
        if scheduler_output.kernels == 5:
            raise ValueError
    def sample_tokens(self, grammar_output):
        kernels(1)
module = types.SimpleNamespace(Worker=Worker)
for target, make in vllm_core.TARGETS["vllm.v1.worker.gpu_worker"].items():
    patch.wrap(module, target, make)
start()
worker = Worker()
def step(count, **number):
    try:
        worker.execute_model(types.SimpleNamespace(kernels=count, **number))
        worker.sample_tokens(None)
    except ValueError:
        kernels(1)
step(2, _rca_llm_step=7); step(5, _rca_llm_step=8); step(4); step(3, _rca_llm_step=9)
"""
    late = {"RCA_LLM_GPU": "kernels", "FAKE_CUPTI_LAG": "300000000"}
    _python(app, code, **late, RCA_LLM_STEPS="on")
    steps = timeline_of(app.run)["gpu"]["step"].tolist()
    assert Counter(steps) == {7: 3, 8: 5, UNKNOWN: 6, 9: 4}


def test_without_a_collector_nothing_happens(app: Traced) -> None:
    code = "gpu.flush(); gpu.push_step(1); gpu.pop_step(); print(gpu.collecting(), gpu.library())"
    assert _python(app, code) == "False None\n"
    assert _python(app, code, CUDA_INJECTION64_PATH="/no/such/file.so") == "False None\n"


def test_steps_without_a_collector_look_for_it_seldom(app: Traced) -> None:
    code = """
gpu.library = lambda: print("looked")
for step in range(1000):
    gpu.push_step(step); gpu.pop_step()
gpu.LOOK_NS = gpu._next_look = 0
gpu.push_step(1); gpu.pop_step()
"""
    assert _python(app, code) == "looked\n" * 3


def test_other_classes_are_left_alone() -> None:
    from types import SimpleNamespace

    from rca_llm.probes import gpu

    empty = SimpleNamespace(profile=type("profile", (), {}))
    gpu.wrap_profiler(empty)
    gpu.wrap_profiler(SimpleNamespace())
    assert not hasattr(empty.profile, "_prepare_trace")


def test_the_bootstrap_wraps_the_profiler_when_it_is_imported(app: Traced, tmp_path: Path) -> None:
    """A module of the right name, imported by a program that knows nothing of us."""
    folder = tmp_path / "site" / "torch" / "autograd"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").write_text("")
    (folder / "profiler.py").write_text(
        "class profile:\n"
        "    def _prepare_trace(self): print('prepared')\n"
        "    def __enter__(self): self._prepare_trace()\n"
        "    def __exit__(self, *error): print('left')\n"
    )
    code = (
        "import ctypes, os\n"
        "cupti = ctypes.CDLL(os.environ['RCA_LLM_CUPTI'])\n"
        "ctypes.CDLL(os.environ['CUDA_INJECTION64_PATH']).InitializeInjection()\n"
        "from torch.autograd.profiler import profile\n"
        "with profile(): print(cupti.fake_enabled(10))\n"
        "print(cupti.fake_enabled(10))"
    )
    path = os.pathsep.join([str(NATIVE.parent / "bootstrap"), str(tmp_path / "site")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | app.environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["prepared", "0", "left", "1"]
