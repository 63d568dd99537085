"""Every GPU benchmark comes to its end, on stand-ins for the machine (`tests/standin`).

The stand-ins measure nothing: what is checked is that each stage runs, counts what was launched,
and leaves its result.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.native.conftest import AS_CUPTI, COMPILER, HERE, compile_c
from tests.test_counters import FAKE_DRIVER, FAKE_SAMPLING
from tests.traced import ROOT, environment

STANDIN = ROOT / "tests" / "standin"
SCRIPTS = ROOT / "benchmarks" / "gpu"


@pytest.fixture(scope="module")
def cupti(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for CUPTI."""
    for program in (COMPILER, "c++"):
        if shutil.which(program) is None:
            pytest.skip(f"no compiler ({program})")
    made = tmp_path_factory.mktemp("standin") / "libfake_cupti.so"
    compile_c(made, [HERE / "fake_cupti.c"], *AS_CUPTI)
    return made


class Machine:
    """A "GPU machine": runs a script on the stand-ins and reads what it left."""

    def __init__(self, folder: Path, cupti: Path) -> None:
        self.out, self.more = folder / "out", dict[str, str]()
        self._folder, self._cupti = folder, cupti

    def run(self, script: str, *words: str, results: str) -> dict[str, Any]:
        """The script's results; the test fails with its words where a stage failed."""
        env = environment(RCA_LLM_CUPTI=str(self._cupti), TMPDIR=str(self._folder), **self.more)
        env["PATH"] = f"{STANDIN / 'bin'}:{env['PATH']}"
        env["PYTHONPATH"] = str(STANDIN / "site")
        command = [sys.executable, str(SCRIPTS / script), "--out", str(self.out), *words]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=280, cwd=self._folder,
            check=False,
        )  # fmt: skip
        assert (self.out / results).exists(), done.stdout[-3000:] + done.stderr[-3000:]
        found: dict[str, Any] = json.loads((self.out / results).read_text())
        failed = {key: value for key, value in found.items() if key.endswith(" failed")}
        assert not failed, done.stdout[-3000:]
        return found


@pytest.fixture
def machine(tmp_path: Path, cupti: Path) -> Machine:
    """A fresh one."""
    return Machine(tmp_path, cupti)


QUICK = ("--rounds", "2", "--warm", "0")


def test_launches_are_measured_over_the_untraced_and_over_kernels(machine: Machine) -> None:
    found = machine.run("overhead.py", "--stages", "launches", *QUICK, results="overhead.json")
    stage = found["launches"]
    assert stage["lost"] == {}
    for phase in ("eager", "graph", "tiny"):
        assert {row["rounds"] for row in stage[phase].values()} == {2}
        assert stage["over kernels"][phase]["kernels"]["ratio"] == [1.0, 1.0, 1.0]
    kernels, launches, full = (stage["recorded"][n] for n in ("kernels", "launches", "full"))
    assert kernels["kernels"] == launches["kernels"] == full["kernels"] > 10_000
    assert (kernels["calls"], launches["calls"] > 10_000) == (0, True)
    assert "functions 2: 3" in stage["answers"]["floor-activity"]


def test_steps_by_markers_agree_with_those_of_launches(machine: Machine) -> None:
    machine.more["FAKE_CUPTI_LAG"] = "200000000"
    found = machine.run("markers.py", "--times", "100", results="markers.json")
    agree, default = found["agree"], found["default"]
    assert agree["with_a_marker"] == agree["agree"] == default["launched_in_steps"] > 10_000
    assert (agree["disagree"], agree["as_launched"]) == (0, agree["steps"])
    assert default["with_a_marker"] == default["launched_in_steps"]
    assert (default["as_launched"], default["in_other_steps"]) == (default["steps"], 0)
    assert default["otherwise_by_start"] > default["launched_in_steps"] / 2
    assert default["calls"] == 0
    paused = found["paused"]
    assert paused["with_a_marker"] == paused["kernels"] == default["launched_in_steps"]
    assert paused["as_launched"] == paused["steps"]
    assert found["price"]["two_markers_ns"]["on"] > 0


@pytest.mark.slow
def test_four_workers_are_measured_over_none(machine: Machine) -> None:
    words = ("--stages", "four", "--tracers", "none,trace-kernels,floor-kernels", *QUICK)
    found = machine.run("overhead.py", *words, results="overhead.json")
    assert found["four"]["lost"] == {}
    assert found["four"]["eager"]["none"]["ratio"] == [1.0, 1.0, 1.0]
    assert {row["rounds"] for row in found["four"]["eager"].values()} == {2}


@pytest.mark.slow
def test_rivals_and_attributes_are_measured(machine: Machine) -> None:
    words = ("--stages", "rows,attributes", *QUICK)
    found = machine.run("overhead.py", *words, results="overhead.json")
    assert list(found["rows"]["lost"]) == ["cupti-python"]  # no folder with it was given
    assert len(found["rows"]["eager"]) == 13
    assert len(found["attributes"]["graph"]) == 12
    assert found["attributes"]["answers"]["pinned host memory"][1] == "attribute 8: 0"


@pytest.mark.slow
def test_every_short_kernel_of_a_large_run_is_counted(machine: Machine) -> None:
    words = ("--launches", "50000", "--replays", "20", "--seconds", "20", "--repeat", "1")
    found = machine.run("scale.py", "--stages", "ready,many", *words, results="scale.json")
    counted = found["many"]["counted"]
    assert counted["kernels"] == counted["expected"] == 70_000
    assert (counted["nodes"], counted["without_time"]) == (20_000, 0)
    assert found["many"]["told"][-1]["error"] == 0
    assert found["ready"]["tables"]["kernels"] == 240_000
    assert len(found["ready"]["traced_ms"]) == 1


@pytest.mark.slow
def test_counters_are_sampled_beside_known_work(machine: Machine, tmp_path: Path) -> None:
    for name, text in {
        "cupti/__init__.py": "", "cupti/pm_sampling.py": FAKE_SAMPLING, "cuda/__init__.py": "",
        "cuda/bindings/__init__.py": "", "cuda/bindings/driver.py": FAKE_DRIVER,
    }.items():  # fmt: skip
        path = tmp_path / "counters" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    machine.more["RCA_GPU_COUNTERS"] = str(tmp_path / "counters")
    found = machine.run("scale.py", "--stages", "counters", results="scale.json")["counters"]
    assert found["status"] == 0
    assert found["means"]["gpu.sm_active"]["gemm"] == 0.25
    assert found["edges_us"]["count"] > 0
    # The same cupti-python is found where causes are injected.
    words = ("--families", "counters", "--seeds", "1")
    injected = machine.run("injection.py", *words, results="injection.json")
    assert "no hardware counters" not in injected["counters"]


def test_gaps_are_charged_in_both_modes(machine: Machine) -> None:
    found = machine.run("gaps.py", "--blocks", "1", results="gaps.json")
    assert found.get("error") is None
    assert found["verdict"]["step_ns"].keys() == {"eager", "graph"}
    assert found["parts"]["eager"]["compute.other"] > 0


def test_a_program_is_traced_near_its_gpu_and_far_from_it(machine: Machine) -> None:
    near, *rest = sorted(os.sched_getaffinity(0))
    cpus = f"{near}/{rest[-1] if rest else near + 1}"  # two "nodes", the second perhaps closed
    found = machine.run("numa.py", "--seconds", "1", "--cpus", cpus, results="numa.json")
    assert "error" not in found
    assert found["free"]["copies"]["H2D pageable"] > 0
    assert found["free"]["by its own clock"]["steps"] > 0
    assert sum(found["free"]["running_ns_by_cpu"][0].values()) > 0
    bound = [found[name]["by its own clock"]["cpus"] for name in ("near", "far") if name in found]
    assert bound == ([1, 1] if rest else [])
    assert (found["left out"] is None) == bool(rest)
    if rest:  # this machine's real nodes decide about a verdict, not the ones made up here
        assert found["near and far"]["nodes"] == found["free"]["nodes"] * 2


@pytest.mark.parametrize(
    ("family", "runs"),
    [
        ("shapes", 3),
        pytest.param("launching", 12, marks=pytest.mark.slow),
        pytest.param("copies", 15, marks=pytest.mark.slow),
        pytest.param("kernels", 9, marks=pytest.mark.slow),
        pytest.param("sharing", 9, marks=pytest.mark.slow),
    ],
)
def test_every_injected_cause_is_judged(machine: Machine, family: str, runs: int) -> None:
    words = ("--families", family, "--seeds", "1")
    found = machine.run("injection.py", *words, results="injection.json")
    assert found[family].startswith(f"{runs} runs status 0"), found[family]
    assert len([row for row in found["rows"] if row["cause"] != "clean"]) == runs
    assert found["figures"]["runs"] == runs
    # What is served without the cause before is judged too.
    assert found["figures"]["clean_runs"] > 0
    notes = [row["note"] for row in found["rows"]]
    assert [note for note in notes if note.startswith("analysis failed")] == []


@pytest.mark.slow
def test_recordings_agree_with_rivals_and_survive_kills(machine: Machine, shared: Path) -> None:
    machine.more["FAKE_NSYS"] = str(exported(shared, machine.out.parent))
    words = ("--stages", "build,agree,kill,recover,queued,record,launch", "--repeat", "2")
    found = machine.run("collector.py", *words, results="collector.json")
    assert found["agree"]["torch.profiler"]["full"]["kernels"] == [6275, 6275]
    # The stand-in's export is of another program; that costs the other rival nothing.
    assert found["agree"]["nsys"]["failed"].startswith("IndexError")
    assert found["kill"]["kernels_without_name"] == 0
    assert found["recover"]["wrap=1"]["kernels_between"] == 347
    assert found["recover"]["wrap=1"]["steps"] == {"11": 5, "12": 7, "13": 7, "14": 7}
    alone = found["queued"]["launched alone"]
    assert alone["queued known"] == alone["kernels"] > 0
    assert found["launch"]["report_bytes"] > 0


@pytest.mark.slow
def test_kernels_of_engines_in_turns_are_counted(machine: Machine, shared: Path) -> None:
    machine.more["FAKE_NSYS"] = str(exported(shared, machine.out.parent))
    words = ("--tracers", "none-1,trace-full,trace-rest,nsys", "--rounds", "2")
    found = machine.run("burst.py", *words, results="burst-small.json")
    assert found["lost"] == {}
    assert found["kernels"]["trace-full"][0] == found["kernels"]["trace-rest"][0] == 180
    assert found["kernels"]["trace-full, nsys"]["kernels"][0] == 180
    assert len(found["steady_rounds"]) == len(found["switched_rounds"]) == 2


def exported(shared: Path, folder: Path) -> Path:
    """An Nsight export, for the stand-in to give back."""
    path = folder / "recorded.sqlite"
    with gzip.open(shared / "data" / "h200" / "generate.nsys.sqlite.gz") as file:
        path.write_bytes(file.read())
    return path


def test_what_was_measured_survives_the_end_of_a_script(machine: Machine, tmp_path: Path) -> None:
    """SIGTERM in the middle of the rounds, as `all.py` sends it."""
    script = tmp_path / "ended.py"
    script.write_text(
        f"import os, signal, sys, threading, time\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        "import overhead, turns\n"
        "ask = turns.Turns.ask\n"
        "def slow(self, name, limit=60.0, **message):\n"
        "    if self.session.results.get('launches'):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(30)\n"
        "    return ask(self, name, limit, **message)\n"
        "turns.Turns.ask = slow\noverhead.main()\n"
    )
    with pytest.raises(AssertionError, match="told to end"):
        machine.run(str(script), "--stages", "launches", *QUICK, results="overhead.json")
    found = json.loads((machine.out / "overhead.json").read_text())
    assert found["launches failed"] == "Ended: told to end"
    assert {row["rounds"] for row in found["launches"]["eager"].values()} == {1}
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".draft")]
