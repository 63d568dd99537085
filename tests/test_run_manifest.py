"""A run whose manifest was lost, or whose launcher was killed, says what is unknown for that."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rca_llm import run as runs
from rca_llm.commands.ctl import command as ctl
from rca_llm.readers import load
from rca_llm.run import Run
from tests.timelines import findings
from tests.traced import trace_code, trace_ready

CODE = """
import sys
from rca_llm import span
with span("work", "compute"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def status(run: Path) -> str:
    found = CliRunner().invoke(ctl, [str(run), "status"])
    assert found.exit_code == 0
    return found.output.splitlines()[0].removeprefix("state      ")


def quality(run: Path, code: str) -> list[dict[str, Any]]:
    return findings(load(run).attribute().summary, code)


@pytest.mark.parametrize("damage", ["{", "[1]", "{}", None])
def test_a_lost_manifest_is_told(tmp_path: Path, damage: str | None) -> None:
    traced = trace_code(tmp_path, "from rca_llm import span\nwith span('work'): pass")
    path = traced.run.path
    assert not quality(path, "truncated")
    shutil.rmtree(path / "tables")
    assert not quality(path, "truncated")
    if damage is None:
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text(damage)
    [told] = quality(path, "truncated")
    assert (told["where"], told["count"]) == ("manifest.json", 1)
    assert "exit status" in told["detail"]
    assert not quality(path, "not_finished")
    assert status(path) == "unknown"


def test_a_killed_launcher_is_told_while_the_program_lives_and_after(tmp_path: Path) -> None:
    path = tmp_path / "run"
    launcher = trace_ready(path, sys.executable, "-c", CODE)
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    assert status(path) == "recording"
    assert not quality(path, "not_finished")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(timeout=60)
    assert status(path) == "not finished: its launcher is gone, 1 process of it not"
    Run(path).set_gate(False)
    assert status(path) == "not finished: its launcher is gone, 1 process of it not, paused"
    Run(path).set_gate(True)
    launcher.stdin.close()
    assert launcher.stdout.read() == b""  # the program has ended: it alone held the other end
    [told] = quality(path, "not_finished")
    assert (told["where"], told["count"]) == ("manifest.json", 1)
    assert status(path) == "not finished: its launcher is gone, and nothing records any more"
    refused = CliRunner().invoke(ctl, [str(path), "mark", "late"])
    assert refused.exit_code == 1
    assert "this run has ended" in str(refused.exception)


def test_of_a_run_of_another_machine_it_is_not_known_whether_it_goes_on(tmp_path: Path) -> None:
    traced = trace_code(tmp_path, "from rca_llm import span\nwith span('work'): pass")
    path = traced.run.path
    shutil.rmtree(path / "tables")
    traced.run.write_manifest(
        traced.run.manifest() | {"state": runs.RUNNING, "host": "another", "launcher_pid": 1}
    )
    [told] = quality(path, "not_finished")
    assert "cannot be told" in told["detail"]


@pytest.mark.parametrize("pid", [None, "1", -5, 2**40])
def test_a_manifest_without_a_launcher_that_lives_is_not_running(pid: object) -> None:
    manifest = {"host": os.uname().nodename, "launcher_pid": pid, "launcher_start": 7}
    assert runs.launcher_lives(manifest) is False


def test_the_number_of_a_launcher_alone_is_not_enough() -> None:
    manifest: dict[str, Any] = {"host": os.uname().nodename, "launcher_pid": os.getpid()}
    assert runs.launcher_lives(manifest)
    assert not runs.launcher_lives(manifest | {"launcher_start": 7})
