"""A run that is recorded now is nobody else's to replace; one that is over is, with `--force`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rca_llm import hold
from rca_llm.inject.traced import inject
from rca_llm.run import Run, create
from tests.traced import TRACE, environment

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


def _trace(run: Path, *options: str, code: str = "pass") -> subprocess.CompletedProcess[str]:
    command = [*TRACE, "-o", str(run), *options, "--", sys.executable, "-c", code]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


@contextmanager
def _recording(run: Path) -> Generator[subprocess.Popen[bytes]]:
    """A trace whose command runs until its input ends."""
    command = [*TRACE, "-o", str(run), "--force", "--", sys.executable, "-c", WAITS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment()) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        yield launcher


def test_a_run_that_is_recorded_is_not_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with _recording(run) as launcher:
        before = [path.name for path in Run(run).segment_files()]
        second = _trace(run, "--force", code="print('ran')")
        said = f"rca-llm: {run}: another trace records into it; end that first, or give another"
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr == f"{said} path\n"
        with pytest.raises(hold.Held):
            inject("clean", None, 0, run, force=True)
        assert {path.name for path in Run(run).segment_files()} >= set(before)
        assert before
        beside = _trace(run, code="print('ran')")
        assert (beside.returncode, beside.stdout) == (0, "ran\n")
        assert Run(tmp_path / "run-2").manifest()["state"] == "finished"
        launcher.communicate()
    assert Run(run).manifest()["state"] == "finished"
    assert _trace(run, "--force", code="raise SystemExit(5)").returncode == 5
    assert Run(run).manifest()["status"] == 5


def test_of_two_that_begin_together_one_records(tmp_path: Path) -> None:
    command = [*TRACE, "-o", str(tmp_path / "run"), "--force", "--", sys.executable, "-c", WAITS]
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment())
        for _ in range(2)
    ]
    said = [launcher.stdout.readline() for launcher in both if launcher.stdout]
    for launcher in both:
        launcher.communicate()
    assert sorted(said) == [b"", b"ready\n"]
    assert sorted(launcher.returncode for launcher in both) == [0, 2]


def test_a_run_whose_launcher_was_killed_is_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with _recording(run) as launcher:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        assert Run(run).manifest()["state"] == "running"
        assert _trace(run, "--force").returncode == 0
        assert Run(run).manifest()["state"] == "finished"


def test_where_files_cannot_be_locked_the_manifest_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    run = create(tmp_path / "run")
    told = {"state": "running", "host": os.uname().nodename, "launcher_pid": os.getpid()}
    run.write_manifest(told)
    with pytest.raises(hold.Held):
        create(tmp_path / "run", force=True)
    run.write_manifest({**told, "launcher_start": 1})
    create(tmp_path / "run", force=True)


def test_a_lock_that_was_removed_by_its_holder_is_made_anew(tmp_path: Path) -> None:
    first = hold.Hold(tmp_path)
    (tmp_path / hold.LOCK).unlink()
    second = hold.Hold(tmp_path)
    with pytest.raises(hold.Held):
        hold.Hold(tmp_path)
    del first, second
    hold.Hold(tmp_path)


@pytest.mark.parametrize("cause", ["clean", "straggler"])
def test_an_injected_cause_never_touches_a_folder_that_is_no_run(
    tmp_path: Path, cause: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    command = [sys.executable, "-m", "rca_llm", "inject", cause, "--force", "-o", str(precious)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"rca-llm: {precious} exists: it is not a run directory\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["precious", "file"]
