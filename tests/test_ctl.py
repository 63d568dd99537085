"""`rca-llm ctl` steers a trace from outside and refuses what is no running trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from rca_llm.readers import load, read
from rca_llm.run import Run
from tests.traced import environment, texts, trace_code, trace_ready


def _ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rca_llm", "ctl", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)


def test_marks_and_status_of_a_running_trace(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    launcher = trace_ready(run, sys.executable, "-c", code)
    assert launcher.stdin is not None
    assert "state      recording" in _ctl(str(run), "status").stdout
    assert _ctl(str(run), "mark", "before the change").returncode == 0
    assert _ctl(str(run), "stop").returncode == 0
    assert "state      paused" in _ctl(str(run), "status").stdout
    assert _ctl(str(run), "start").returncode == 0
    launcher.stdin.close()
    assert launcher.wait(timeout=60) == 0
    timeline = read(run).timelines[0]
    assert texts(timeline, "marks", "name") == ["before the change"]
    [mark] = load(run).attribute().summary["marks"]
    assert mark["name"] == "before the change"
    assert "state      finished" in _ctl(str(run), "status").stdout


def test_a_pause_is_recorded_from_the_change_on(tmp_path: Path) -> None:
    """Not from when the launcher looks: what was launched in between has no record of its own."""
    run = tmp_path / "run"
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    launcher = trace_ready(run, sys.executable, "-c", code)
    changes: list[int] = []
    for is_open in (False, True):
        time.sleep(0.3)
        Run(run).set_gate(is_open)
        Run(run).set_gate(is_open)  # once more is no change
        told = (run / "control").read_bytes()[layout.CONTROL_CHANGED_OFFSET :]
        changes.append(int.from_bytes(told[:8], "little"))
    time.sleep(0.3)
    assert launcher.stdin is not None
    launcher.stdin.close()
    assert launcher.wait(timeout=60) == 0
    assert read(run).timelines[0].header.extra["gaps"] == [changes]


def test_a_mark_in_a_pause_is_kept_and_does_not_lengthen_the_window(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    launcher = trace_ready(run, sys.executable, "-c", code)
    assert _ctl(str(run), "stop").returncode == 0
    time.sleep(0.3)
    assert _ctl(str(run), "mark", "in the pause").returncode == 0
    assert launcher.stdin is not None
    launcher.stdin.close()
    assert launcher.wait(timeout=60) == 0
    summary = load(run).attribute().summary
    [mark] = summary["marks"]
    assert mark["name"] == "in the pause"
    assert summary["window"]["end_ns"] < mark["t_ns"]


def test_status_counts_processes_and_those_that_outlive_their_command(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # The child ignores that its command ends, as a daemon does.
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time;"
        " time.sleep(60)'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,"
        " stderr=subprocess.DEVNULL, start_new_session=True);"
        " print(child.pid, flush=True); sys.stdin.read()"
    )
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rca_llm",
            "trace",
            "-o",
            str(run),
            "--",
            sys.executable,
            "-c",
            code,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    try:
        for action in (["stop"], ["start"], ["mark", "a"], ["mark", "b"]):
            assert _ctl(str(run), *action).returncode == 0
        wait_until(lambda: "processes  2\n" in _ctl(str(run), "status").stdout)
        launcher.stdin.close()
        assert launcher.wait(timeout=60) == 0
        status = _ctl(str(run), "status").stdout
        assert "state      finished, but 1 process of it not\n" in status
        assert "processes  2\n" in status
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: "state      finished\n" in _ctl(str(run), "status").stdout)


def wait_until(done: Callable[[], bool]) -> None:
    """Return once something is so; fail after a minute."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_is_no_running_trace_is_refused(tmp_path: Path) -> None:
    missing = _ctl(str(tmp_path / "none"), "stop")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    foreign = _ctl(str(tmp_path), "stop")
    assert (foreign.returncode, foreign.stderr) == (
        2,
        f"rca-llm: {tmp_path}: not a run directory\n",
    )
    done = trace_code(tmp_path, "pass")
    ended = _ctl(str(done.run.path), "stop")
    assert (ended.returncode, ended.stderr) == (
        2,
        f"rca-llm: {done.run.path}: this run has ended\n",
    )
    assert Run(done.run.path).is_open()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("mark", ""), "mark needs a name: rca-llm ctl {run} mark NAME"),
        (("mark",), "mark needs a name: rca-llm ctl {run} mark NAME"),
        (("stop", "extra"), "stop takes nothing behind it, and 'extra' was given"),
        (("status", "x"), "status takes nothing behind it, and 'x' was given"),
    ],
)
def test_a_wrong_number_of_words_is_told_in_one_line(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    done = trace_code(tmp_path, "pass")
    found = _ctl(str(done.run.path), *words)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"rca-llm: {told.format(run=done.run.path)}\n"


def test_a_line_break_in_a_file_name_stays_within_the_line(tmp_path: Path) -> None:
    found = _ctl(str(tmp_path / "two\nlines\x1b[31m"), "stop")
    assert found.returncode == 2
    assert found.stderr == f"rca-llm: {tmp_path}/two\\nlines\\x1b[31m: no such run directory\n"
