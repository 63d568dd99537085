"""The GPU benchmarks can be loaded, and a stage that fails costs no other; the rest needs a GPU."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rca_llm
from rca_llm.finish import finish
from rca_llm.run import Run
from tests.traced import ROOT, environment

FOLDER = ROOT / "benchmarks" / "gpu"
SCRIPTS = (
    "all",
    "burst",
    "collector",
    "gaps",
    "generate",
    "injection",
    "markers",
    "nccl",
    "numa",
    "overhead",
    "scale",
)
SCRIPTS += ("vllm_load",)


sys.path.insert(0, str(FOLDER))
try:
    stages: Any = importlib.import_module("stages")
    turns: Any = importlib.import_module("turns")
    every: Any = importlib.import_module("all")
    packing: Any = importlib.import_module("packing")
finally:
    sys.path.remove(str(FOLDER))


class Kept:
    """A session that keeps results in the order in which they came."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []

    def keep(self, stage: str, found: Any) -> None:
        """Add a result."""
        self.found.append((stage, found))


def _fails(_: Kept) -> None:
    raise ValueError("broken")


def _gives(value: Any) -> Callable[[Kept], Any]:
    return lambda session: value


STAGES: dict[str, Callable[[Kept], Any]] = {
    "fails": _fails,
    "gives": _gives(7),
    "keeps by itself": _gives(None),
}


def test_a_stage_that_fails_is_kept_as_that_and_the_next_runs() -> None:
    session, ended = Kept(), list[str]()

    def after(name: str, seconds: float) -> None:
        ended.append(name)

    stages.run_stages(session, STAGES, "fails,gives,keeps by itself", after=after)
    assert session.found == [("fails failed", "ValueError: broken"), ("gives", 7)]
    assert ended == ["fails", "gives", "keeps by itself"]


def test_nothing_follows_a_needed_stage_that_failed() -> None:
    session = Kept()
    stages.run_stages(session, STAGES, "fails,gives", needed="fails")
    assert session.found == [("fails failed", "ValueError: broken")]


def test_no_stage_begins_when_the_time_is_used_up() -> None:
    session = Kept()
    stages.run_stages(session, STAGES, "gives", budget=-1.0)
    assert session.found == [("gives left out", "the time was used up")]


def test_a_stage_that_does_not_exist_is_refused_before_the_first() -> None:
    session = Kept()
    with pytest.raises(SystemExit) as refused:
        stages.run_stages(session, STAGES, "gives,missing")
    assert str(refused.value).startswith("no such stage: missing; there are fails, gives")
    assert session.found == []


def test_a_stage_that_takes_too_long_is_ended_and_its_children_with_it(tmp_path: Path) -> None:
    def hangs(_: Kept) -> None:
        stages.command(["sh", "-c", f"echo $$ >{tmp_path}/pid; sleep 60 & wait"], {}, 50, tmp_path)

    session = Kept()
    limits = {"hangs": 0.5}
    stages.run_stages(session, STAGES | {"hangs": hangs}, "hangs,gives", limits=limits)
    assert session.found == [("hangs failed", "OutOfTime: not done within 0 s"), ("gives", 7)]
    group, alive = (tmp_path / "pid").read_text().strip(), list[str]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = path.read_text().rpartition(") ")[2].split()[:3]
            alive += [str(path)] if (of, state == "Z") == (group, False) else []
    assert not alive


def test_what_a_failed_stage_left_running_is_ended_and_nothing_else(tmp_path: Path) -> None:
    def leaves(_: Kept) -> None:
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        raise ValueError("broken")

    with subprocess.Popen(["sleep", "60"]) as before:
        stages.run_stages(Kept(), {"leaves": leaves}, "leaves")
        assert stages.descendants(os.getpid()).count(before.pid) == 1
        assert before.poll() is None
        others = [pid for pid in stages.descendants(os.getpid()) if pid != before.pid]
        assert not [pid for pid in others if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        before.kill()


def test_a_stage_whose_clean_up_hangs_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "AGAIN_S", 0.2)

    def hangs(_: Kept) -> None:
        try:
            time.sleep(60)
        finally:
            time.sleep(60)

    session = Kept()
    stages.run_stages(session, {"hangs": hangs}, "hangs", limits={"hangs": 0.2})
    assert [name for name, _ in session.found] == ["hangs failed"]


def test_a_command_has_a_limit_and_tells_what_it_said_until_then(tmp_path: Path) -> None:
    words = ["sh", "-c", "echo begun; sleep 60 & wait"]
    status, said, _ = stages.command(words, {}, 0.5, tmp_path)
    assert (status, said) == (-signal.SIGKILL, "begun\n")


def test_no_stage_goes_on_past_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(stages.DEADLINE, str(time.monotonic() + stages.MARGIN_S + 100))
    assert 99 < stages.left() <= 100
    assert stages.left(7.0) == 7.0
    monkeypatch.setenv(stages.DEADLINE, str(time.monotonic()))
    assert stages.left(7.0) == 0.0
    session = Kept()
    stages.run_stages(session, STAGES, "gives")
    assert session.found == [("gives left out", "the time was used up")]


def test_a_stage_that_is_told_to_end_is_kept_and_none_follows() -> None:
    def ends(_: Kept) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    session, before = Kept(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        stages.run_stages(session, STAGES | {"ends": ends}, "ends,gives")
    assert ended.value.code == 143
    assert session.found == [("ends failed", "Ended: told to end")]
    assert signal.getsignal(signal.SIGTERM) is before


def _answer(ms: float) -> dict[str, Any]:
    return {"wall": ms * 1e6}


def test_ratios_are_those_of_each_round_over_its_own_untraced_programs() -> None:
    rounds = [
        {"none-1": _answer(10), "none-2": _answer(30), "ours": _answer(30)},
        {"none-1": _answer(40), "none-2": None, "ours": _answer(50)},
        {"none-1": None, "none-2": None, "ours": _answer(1)},  # nothing to compare with
        {"none-1": _answer(10), "none-2": _answer(10), "ours": None},
    ]
    found = turns.ratios(rounds, lambda answer: float(answer["wall"]), ["none-1", "none-2"])
    assert found["ours"] == {"ratio": [1.1875, 1.375, 1.5625], "ms": [1.0, 30.0, 50.0], "rounds": 2}
    assert found["none-1"]["ratio"] == [0.5, 1.0, 1.0]


def test_quartiles_of_one_value_and_of_none() -> None:
    assert turns.quartiles([2.0]) == [2.0, 2.0, 2.0]
    assert turns.quartiles([]) == []


JOBS = {
    "good": """
        (out / "good.json").write_text(json.dumps({"stage": 1, "other failed": "why"}))
        (out / "kept.bin").write_bytes(b"recorded")
    """,
    "hangs": """
        (out / "hangs.json").write_text(json.dumps({"stage": "half"}))
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        time.sleep(60)
    """,
    "deaf": """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    """,
    "fails": "sys.exit(3)",
}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs such jobs by the driver."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    head = "import json, signal, subprocess, sys, time\nfrom pathlib import Path\n"
    head += "out = Path(sys.argv[sys.argv.index('--out') + 1])\nout.mkdir()\n"
    for name, body in JOBS.items():
        (scripts / f"{name}.py").write_text(head + textwrap.dedent(body))
    monkeypatch.setattr(every, "HERE", scripts)
    monkeypatch.setattr(every, "GRACE_S", 0.5)
    monkeypatch.setattr(every, "MARGIN_S", 0.0)
    monkeypatch.setattr(every, "end_descendants", lambda: None)  # this process has others
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(seconds: float, *wanted: Any) -> dict[str, Any]:
        options = every.options(["--out", str(tmp_path / "out"), "--seconds", str(seconds)])
        runner = every.Runner(options)
        for one in wanted:
            runner.run(one)
        found: dict[str, Any] = json.loads((tmp_path / "out" / "all.json").read_text())
        return found

    return run


def _job(name: str, needs: float = 1, limit: float = 1.5, **more: Any) -> Any:
    return every.Job(name, (f"{name}.py",), needs, limit, **more)


def test_a_job_that_fails_or_hangs_costs_the_others_nothing(
    jobs: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [_job(name) for name in ("fails", "hangs", "deaf")] + [_job("good", 1, 30)]
    found = jobs(100, *wanted)
    assert {name: told["status"] for name, told in found.items()} == {
        "fails": 3, "hangs": -signal.SIGTERM, "deaf": -signal.SIGKILL, "good": 0
    }  # fmt: skip
    assert found["hangs"]["results"] == {"hangs.json": {"stage": "half"}}
    assert found["good"]["results"]["good.json"]["stage"] == 1
    with tarfile.open(tmp_path / "out" / "kept-good.tar") as kept:
        assert kept.getnames() == ["kept.bin"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "all.json", "all.log", "kept-good.tar"
    ]  # fmt: skip
    assert "-- good: status 0" in (said := capsys.readouterr().out)
    assert "other failed: why" in said


def test_a_job_is_left_out_where_it_does_not_fit_or_lacks_something(
    jobs: Callable[..., Any],
) -> None:
    found = jobs(20, _job("good", 60), _job("good", bundle=True), _job("good", gpus=2))
    assert found == {"good": {"left out": "needs --gpus 2"}}
    assert jobs(20, _job("good", 60))["good"]["left out"].endswith("s are left, it needs 60")


def test_every_job_names_a_script_and_words_that_it_knows(tmp_path: Path) -> None:
    for one in every.JOBS:
        assert one.words[0].removesuffix(".py") in SCRIPTS
        command = [sys.executable, str(FOLDER / one.words[0]), *one.words[1:]]
        command += ["--bundle", str(tmp_path)] if one.bundle else []
        done = subprocess.run(
            [*command, "--help"], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "gpu.md").read_text()
    for one in every.JOBS:
        assert f"| `{one.name}` | `{' '.join(one.words)}` | {one.needs:g} |" in page


def test_what_a_job_leaves_running_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n"
        "import all, os, stages, subprocess, time\n"
        "all.adopt_orphans()\n"
        "made = subprocess.Popen(['sh', '-c', '(sleep 60 & echo $!)'], stdout=subprocess.PIPE)\n"
        "orphan = int(made.stdout.readline())\n"
        "made.wait()\n"
        "assert orphan in stages.descendants(os.getpid())\n"
        "stages.end_descendants()\n"
        "assert stages.descendants(os.getpid()) == []\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_loaded_where_there_is_no_gpu(tmp_path: Path, name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--out" in done.stdout


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """What `collector.py --stages record` brought home from an H200."""
    with tarfile.open(ROOT / "tests" / "data" / "h200" / "generate.rca.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "generate.rca"


def test_what_is_counted_on_a_gpu_can_be_counted_in_a_recording(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    collector, scale = map(importlib.import_module, ("collector", "scale"))
    timeline = collector.read(recording)
    kernels = collector.kernels_of(timeline, -(2**62), 2**62)
    counted = [len(rows) for rows in scale.kernel_rows(recording)]
    assert sum(counted) == kernels.count == int((timeline["gpu"]["kind"] == 0).sum()) > 60_000
    assert collector.compared(kernels, kernels)["total_ratio"] == 1.0
    described = collector.described(recording, timeline)
    assert described["bytes"] > 0
    assert described["api_calls"] == len(timeline["api"])
    finish(Run(recording), {})
    assert scale.tables(recording)["bytes_a_kernel"] < 30


def test_steps_of_generate_and_checks_of_vllm_read_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scripts do with a recording from a GPU, on one that a vLLM left there."""
    with tarfile.open(ROOT / "tests" / "data" / "h200" / "vllm.rca.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (run,) = tmp_path.glob("*.rca")
    run.rename(tmp_path / "generate.rca")
    monkeypatch.syspath_prepend(str(FOLDER))
    generate, vllm_load = map(importlib.import_module, ("generate", "vllm_load"))
    session = stages.Session(tmp_path, tmp_path, None, shown=0)
    generate.steps(session)
    told = session.results["steps"]
    assert told["kernels"] > 1000
    assert told["kernels_in_no_step"] == 0
    assert told["kernels_without"] == {"grid_x": 0, "block_x": 0, "registers": 0}
    trace = rca_llm.load(tmp_path / "generate.rca")
    found = vllm_load.Found(trace, trace.attribute())
    gaps = trace.timelines[0].header.extra["gaps"]
    kernels = found.kernels(gaps)
    assert (kernels["kernels"], kernels["without a step"]) == (told["kernels"], 0)
    assert (kernels["of graphs"], kernels["while paused"]) == (79_585, 0)
    assert found.kernels([(0, vllm_load.NEVER)])["while paused"] == kernels["kernels"]
    assert sum(found.prefills().values()) > 0
    json.dumps(found.described())
    stamps = json.loads((ROOT / "tests" / "data" / "h200" / "vllm.stamps.json").read_text())
    calls = [SimpleNamespace(id=id.removesuffix("-0")) for id in stamps]
    checks = vllm_load._checks(found, calls, None, stamps, SimpleNamespace(closed=gaps))
    assert len(checks) == 10
    assert checks["failed"] == []
    late = SimpleNamespace(closed=[(0, vllm_load.NEVER)])
    checks = vllm_load._checks(found, calls, None, stamps, late)
    assert checks["failed"] == ["nothing of a pause is kept"]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_recording_is_packed_without_what_is_made_from_it(tmp_path: Path, suffix: str) -> None:
    if suffix == "zst":
        pytest.importorskip("zstandard", reason="zstandard is not there")
    run = tmp_path / "run.rca"
    for name in ("segments/1.seg", "tables/gpu.npy", "manifest.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(os.urandom(1000))
    truths = tmp_path / "truths.jsonl"
    truths.write_text("{}\n")
    kept = tmp_path / f"kept.tar.{suffix}"
    parts = {"one.rca": run, truths.name: truths}
    assert packing.pack(kept, parts) == kept.stat().st_size
    with _opened(kept) as archive:
        files = {member.name: member for member in archive.getmembers() if member.isfile()}
        assert set(files) == {"one.rca/segments/1.seg", "one.rca/manifest.json", "truths.jsonl"}
        assert {(one.uname, one.gname, one.uid) for one in files.values()} == {("", "", 0)}
        found = archive.extractfile("one.rca/segments/1.seg")
        assert found is not None
        assert found.read() == (run / "segments" / "1.seg").read_bytes()
    assert packing.pack(kept, parts, largest=1500) is None
    assert not kept.exists()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """An archive, whatever compresses it."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        import zstandard

        data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    else:
        data = gzip.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        yield archive
