"""NUMA nodes: what a machine of two sockets says, what this one does, and where GPUs are."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import textwrap
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rca_llm
from rca_llm.probes import nodes
from rca_llm.trace import NODES
from tests.native.conftest import COMPILER, HERE, compile_c
from tests.test_nvml import FakeNvml
from tests.traced import ROOT, environment, trace_code

TWO_SOCKETS = {
    "devices/system/node/online": "0-1,3\n",
    "devices/system/node/node0/cpulist": "0-23,48-71\n",
    "devices/system/node/node0/distance": "10 21 80\n",
    "devices/system/node/node1/cpulist": "24-47,72-95\n",
    "devices/system/node/node1/distance": "21 10 80\n",
    "devices/system/node/node3/cpulist": "\n",  # memory alone
    "devices/system/node/node3/distance": "80 80 10\n",
    "bus/pci/devices/0000:1b:00.0/numa_node": "0\n",
    "bus/pci/devices/0000:cb:00.0/numa_node": "1\n",
    "bus/pci/devices/10000:01:00.0/numa_node": "-1\n",
}
GPU_UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


class Told:
    """A recorder that keeps the facts it is told."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, object, int]] = []

    def info(self, key: str, value: object = None, number: int = 0, pid: int = 0) -> None:
        assert pid == 0
        self.facts.append((key, value, number))


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """The files of a machine with two sockets and a node of memory alone."""
    for name, text in TWO_SOCKETS.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path / "sys")


def test_nodes_with_cpus_are_told_with_their_distances(sysfs: str) -> None:
    told = Told()
    assert nodes.tell(told, sysfs) == [0, 1]  # type: ignore[arg-type]  # all that it uses
    assert told.facts == [
        ("node.cpus", "0-23,48-71", 0),
        ("node.distances", "0:10 1:21", 0),
        ("node.cpus", "24-47,72-95", 1),
        ("node.distances", "0:21 1:10", 1),
    ]


def test_a_machine_that_tells_nothing_has_no_nodes(tmp_path: Path) -> None:
    told = Told()
    assert nodes.tell(told, str(tmp_path)) == []  # type: ignore[arg-type]
    assert told.facts == []
    assert nodes.distances(0, str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("00000000:1B:00.0", 0),  # as NVML writes it
        ("00000000:CB:00.0", 1),
        ("00010000:01:00.0", None),  # the kernel does not know
        ("00000000:FF:00.0", None),
        ("0:../../devices/system/node/online:", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_a_gpu_is_where_its_address_says_or_nobody_knows(
    sysfs: str, address: str, node: int | None
) -> None:
    assert nodes.node_of_pci(address, sysfs) == node


@given(st.sets(st.integers(0, 400), max_size=60))
def test_lists_of_cpus_read_back(cpus: set[int]) -> None:
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    texts = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
    assert nodes.numbers(",".join(texts)) == sorted(cpus)


@given(st.text("0123456789-, x²", max_size=12))
def test_whatever_a_list_says_it_is_numbers_or_nothing(text: str) -> None:
    assert all(number >= 0 for number in nodes.numbers(text))


def test_gpus_are_told_by_uuid_with_their_node(sysfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Known(FakeNvml):
        """The first GPU's driver is old and answers in bytes; the second's knows no address."""

        def nvmlDeviceGetUUID(self, handle: int) -> object:
            return GPU_UUID.encode() if handle == 0 else "GPU-1"

        def nvmlDeviceGetPciInfo(self, handle: int) -> object:
            if handle == 1:
                raise self.NVMLError("not supported")
            return type("Pci", (), {"busId": b"00000000:CB:00.0"})

    monkeypatch.setitem(sys.modules, "pynvml", Known())
    monkeypatch.setattr("rca_llm.probes.nvml.node_of_pci", partial(nodes.node_of_pci, sysfs=sysfs))
    from rca_llm.probes.nvml import Nvml

    told, gpus = Told(), Nvml()
    monkeypatch.setattr(gpus, "names", lambda: ["A", "B"])
    gpus.tell(told)  # type: ignore[arg-type]
    assert told.facts == [
        ("gpu", "A", 0), ("device.uuid", GPU_UUID, 0), ("device.node", "1", 0),
        ("gpu", "B", 1), ("device.uuid", "GPU-1", 1),
    ]  # fmt: skip


def test_a_driver_that_knows_neither_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    from rca_llm.probes.nvml import Nvml

    told, gpus = Told(), Nvml()
    monkeypatch.setattr(gpus, "names", lambda: ["A", "B"])
    gpus.tell(told)  # type: ignore[arg-type]
    assert told.facts == [("gpu", "A", 0), ("gpu", "B", 1)]


_BUSY = """
import time
from rca_llm import span
end = time.monotonic() + 0.6
with span("spin"):
    while time.monotonic() < end: pass
"""


def test_a_real_run_on_this_machine_knows_its_nodes_and_cpus(tmp_path: Path) -> None:
    done = trace_code(tmp_path, _BUSY)
    timeline = done.timeline()
    told = timeline.header.extra.get(NODES, {})
    assert set(told) == {str(node) for node in nodes.nodes_with_cpus()}
    states = timeline["states"]
    ran = states["state"] == timeline.strings.find("running")
    assert ran.any()
    assert set(states["cpu"][~ran].tolist()) <= {-1}
    seen = set(states["cpu"][ran].tolist()) - {-1}
    assert seen, "no look said on which CPU the thread ran"
    assert seen <= os.sched_getaffinity(0)
    summary = rca_llm.load(done.run.path).attribute().summary
    assert "R36" not in {row["id"] for row in summary["hints"]}  # no GPU, and mostly one node


def test_a_run_of_an_older_version_knows_none_of_it(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests" / "data" / "h200" / "generate.rca.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (timeline,) = rca_llm.load(tmp_path / "generate.rca").timelines
    (device,) = timeline.devices
    assert (device.name, device.limits["sms"]) == ("NVIDIA H200", 132)
    assert (device.uuid, device.node) == (None, None)
    assert NODES not in timeline.header.extra
    assert set(timeline["states"]["cpu"].tolist()) <= {-1}


_LAUNCHER = """
import sys
from types import SimpleNamespace
from rca_llm.probes import nodes, nvml
near, far = {near}, {far}
nodes.nodes_with_cpus = lambda sysfs="": {{0: near, 1: far}}
nodes.distances = lambda node, sysfs="": {{node: 10, 1 - node: 21}}
def tell(recorder):
    for index, (uuid, node) in enumerate(
        [("GPU-ffffffff-0000-0000-0000-000000000000", 1), ({uuid!r}, 0)]
    ):
        recorder.info(nodes.GPU_UUID, uuid, index)
        recorder.info(nodes.GPU_NODE, str(node), index)
nothing = lambda sink: None
nvml.open_nvml = lambda: SimpleNamespace(
    handles=[1, 2], tell=tell, sample=nothing, sample_traffic=nothing, sample_processes=nothing
)
from rca_llm.cli import main
sys.exit(main(sys.argv[1:]))
"""

_PROGRAM = """
import os, sys, time
os.sched_setaffinity(0, {{{cpu}}})
memory = bytearray(os.urandom(1 << 20)) * 32
import torch
torch.device_of().call("fake_device")
end = time.monotonic() + 2.6
while time.monotonic() < end:
    torch.matmul()
    for _ in range(20000): pass
"""


@pytest.fixture
def cupti(tmp_path: Path) -> Path:
    """The stand-in for CUPTI."""
    if not COMPILER:
        pytest.skip("no C compiler")
    made = tmp_path / "libfake_cupti.so"
    compile_c(made, [HERE / "fake_cupti.c"], "-shared", "-fvisibility=hidden")
    return made


@pytest.mark.parametrize("where", ["near", "far"])
@pytest.mark.clocks  # the program needs a CPU for a fifth of its time
def test_a_real_process_on_a_made_up_machine_of_two_sockets(
    tmp_path: Path, cupti: Path, where: str
) -> None:
    """Nodes and GPUs are made up; CPUs, pages and records are those of real processes."""
    cpu = min(os.sched_getaffinity(0))
    others = ",".join(str(one) for one in range(1024) if one != cpu)
    near, far = (str(cpu), others) if where == "near" else (others, str(cpu))
    launcher, program = tmp_path / "launcher.py", tmp_path / "program.py"
    launcher.write_text(_LAUNCHER.format(near=repr(near), far=repr(far), uuid=GPU_UUID))
    program.write_text(textwrap.dedent(_PROGRAM.format(cpu=cpu)))
    env = environment(RCA_LLM_CUPTI=str(cupti))
    env["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests' / 'standin' / 'site'}"
    run = tmp_path / "run.rca"
    words = ["trace", "--gpu", "full", "-o", str(run), "--", sys.executable, str(program)]
    done = subprocess.run(
        [sys.executable, str(launcher), *words], env=env, capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = rca_llm.load(run)
    (timeline,) = trace.timelines
    assert timeline.header.extra[NODES]["1"] == {"cpus": far, "distances": {"0": 21, "1": 10}}
    (device,) = timeline.devices
    assert (device.uuid, device.node) == (GPU_UUID, 0)
    looked = [
        float(value)
        for metric, value in zip(
            timeline["samples"]["metric"], timeline["samples"]["value"], strict=True
        )
        if (timeline.text(int(metric)) or "").startswith("process.numa_pages.")
    ]
    assert sum(looked) > 256
    found = [row for row in trace.attribute().summary["hints"] if row["id"] == "R36"]
    assert bool(found) == (where == "far")
    for row in found:
        assert row["evidence"]["cpu_share"] > 0.8  # it is bound a moment after it began
        assert row["confidence"] == "medium"
        assert row["evidence"]["page_share"] == 0.0  # in truth they are all on this machine's node
        assert row["evidence"]["threads"] == "those that launch"
