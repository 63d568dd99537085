"""The GPU benchmarks can be loaded, and a stage that fails costs no other; the rest needs a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rca_llm.finish import finish
from rca_llm.run import Run
from tests.traced import ROOT, environment

FOLDER = ROOT / "benchmarks" / "gpu"
SCRIPTS = ("burst", "collector", "generate", "nccl", "overhead", "scale", "vllm_load")


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("stages", FOLDER / "stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stages = _module()


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
