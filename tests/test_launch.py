"""`rca-llm trace` stands in nobody's way: streams, signals, statuses, and every kind of failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rca_llm.attribute.ranks import find_ranks
from rca_llm.readers import read
from rca_llm.readers.files import source
from rca_llm.readers.run import read_segments
from rca_llm.run import Run
from rca_llm.trace import TABLES
from tests.traced import TRACE, environment, texts, trace, trace_code, trace_ready

_SERVER = """
import os, signal, sys, time
def stop(number, frame):
    os.write(1, b"stopping\\n")  # print is not reentrant, and the signal may come within one
    sys.exit(number + 20)
signal.signal(signal.{name}, stop)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGQUIT"])
def test_signals_reach_the_command_and_its_status_comes_back(tmp_path: Path, name: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(_SERVER.format(name=name))
    launcher = subprocess.Popen(
        [*TRACE, "-o", str(tmp_path / "run"), "--", sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    number = getattr(signal, name)
    launcher.send_signal(number)
    assert launcher.stdout.read() == "stopping\n"
    assert launcher.wait(timeout=60) == number + 20
    assert Run(tmp_path / "run").manifest()["status"] == number + 20


def test_blocked_signals_without_a_name_stay_blocked(tmp_path: Path) -> None:
    """Real-time signals between the first and the last have numbers only."""
    number = signal.SIGRTMIN + 1
    code = f"import signal; print({number} in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [*TRACE, "-o", str(tmp_path / "run"), "--", sys.executable, "-c", code]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=60, check=False
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_ctrl_c_of_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal signals the whole process group; the launcher must not add a second one."""
    script = tmp_path / "count.py"
    script.write_text(
        "import signal, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 1.0\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
        "print(len(seen), flush=True)\n"
    )
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(tmp_path)
        command = [*TRACE, "-o", "run", "--", sys.executable, str(script)]
        os.execve(command[0], command, environment())
    output = _until(terminal, b"ready")
    os.write(terminal, b"\x03")
    output += _until(terminal, b"never")
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert output.replace(b"^C", b"").split()[1] == b"1"


def _until(terminal: int, text: bytes) -> bytes:
    """What a terminal shows until `text`, or until its last process ends."""
    output = b""
    while text not in output:
        try:
            output += os.read(terminal, 1024)
        except OSError:  # EIO: nobody holds the terminal any more
            break
    return output


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
        ("import os; os.abort()", 128 + 6),
    ],
)
def test_status_is_the_commands_own(tmp_path: Path, code: str, status: int) -> None:
    done = trace_code(tmp_path, code)
    assert (done.status, done.stderr) == (status, "")


def test_streams_pass_through_untouched(tmp_path: Path) -> None:
    code = (
        "import os, sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]);"
        "sys.stderr.write('err\\n'); os.write(int(sys.argv[1]), b'inherited');"
        "print(os.environ.get('LC_CTYPE'))"
    )
    read_end, write_end = os.pipe()
    env = environment(LC_ALL="C")
    env.pop("LC_CTYPE", None)
    command = [*TRACE, "-o", str(tmp_path / "run"), "--", sys.executable, "-c", code]
    command.append(str(write_end))
    done = subprocess.run(
        command,
        input=b"\x00\xff\n",
        capture_output=True,
        env=env,
        pass_fds=[write_end],
        check=False,
    )
    os.close(write_end)
    untraced = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ.get('LC_CTYPE'))"],
        capture_output=True,
        env=env,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"\n\xff\x00" + untraced.stdout, b"err\n")
    assert os.read(read_end, 100) == b"inherited"
    os.close(read_end)


def test_missing_command_is_127_and_one_line(tmp_path: Path) -> None:
    done = trace(tmp_path, "no-such-command-here", "x")
    assert done.status == 127
    assert done.stderr == "rca-llm: no-such-command-here: command not found\n"
    assert not done.run.path.exists()


def test_a_file_that_cannot_be_run_is_126_and_one_line(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    done = trace(tmp_path, str(plain))
    assert done.status == 126
    assert done.stderr == f"rca-llm: {plain}: cannot be run: Permission denied\n"


def test_a_script_without_interpreter_line_runs_as_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo from sh $1; exit 5\n")
    script.chmod(0o755)
    done = trace(tmp_path, str(script), "x")
    assert (done.status, done.stdout) == (5, "from sh x\n")


def test_wrong_usage_is_2(tmp_path: Path) -> None:
    assert trace(tmp_path, "true", options=("--gpu", "maybe")).status == 2


def test_unwritable_run_directory_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [*TRACE, "-o", str(tmp_path / "file" / "run"), "--", "sh", "-c", "echo ran; exit 3"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr.count("\n") == 1
    assert "the command runs untraced" in done.stderr


def test_an_existing_directory_is_left_alone_without_force(tmp_path: Path) -> None:
    first = trace_code(tmp_path, "raise SystemExit(1)")
    second = trace_code(tmp_path, "raise SystemExit(4)")
    assert first.run.manifest()["status"] == 1
    assert second.status == 4
    assert "will not overwrite without --force; recording into" in second.stderr
    assert Run(tmp_path / "run-2").manifest()["status"] == 4
    assert trace_code(tmp_path, "raise SystemExit(6)", "--force").run.manifest()["status"] == 6


def test_force_never_removes_what_is_no_run(tmp_path: Path) -> None:
    precious = tmp_path / "run" / "precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    done = trace_code(tmp_path, "raise SystemExit(0)", "--force")
    assert done.status == 0
    assert precious.read_text() == "kept"
    assert "not a run directory" in done.stderr


def test_a_trace_inside_a_trace_records_into_the_outer_one(tmp_path: Path) -> None:
    script = tmp_path / "inner.py"
    script.write_text("from rca_llm import span\nwith span('inner'): print('ran')\n")
    inner = [*TRACE, "-o", str(tmp_path / "other"), "--", sys.executable, str(script)]
    done = trace(tmp_path, *inner)
    assert (done.status, done.stdout) == (0, "ran\n")
    assert done.stderr == (
        f"rca-llm: already inside a trace: this command is recorded in {done.run.path}\n"
    )
    timeline = done.timeline()
    assert "inner" in texts(timeline, "ranges", "name")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_ignores_us_is_told_of(tmp_path: Path, flag: str) -> None:
    done = trace(tmp_path, sys.executable, flag, "-c", "print('ran')")
    assert (done.status, done.stdout) == (0, "ran\n")
    assert done.stderr.count("\n") == 1
    assert "no process left a trace" in done.stderr


def test_full_disk_stops_recording_and_not_the_command(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system needs root: {mounted.stderr.decode().strip()}")
    try:
        done = trace_code(
            disk,
            "from rca_llm import span\n"
            "for i in range(100_000):\n"
            "    with span('x'): pass\n"
            "print('finished')\n",
        )
        assert (done.status, done.stdout) == (0, "finished\n")
        assert done.stderr.count("\n") == 1
        assert "No space left on device" in done.stderr
        timeline = done.timeline()
        kept = texts(timeline, "ranges", "name").count("x")
        dropped = sum(f.count for f in timeline.findings if f.code == "dropped_records")
        assert kept > 1000
        collections = 200  # spans of the garbage collector, dropped among the others
        assert 100_000 <= kept + dropped <= 100_000 + collections
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_paused_trace_records_what_follows_start(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from rca_llm import span\n"
        "def ctl(action):\n"
        "    command = [sys.executable, '-m', 'rca_llm', 'ctl', run, action]\n"
        "    subprocess.run(command, check=True, env={**os.environ, 'RCA_LLM_RUN': ''})\n"
        "run = os.environ['RCA_LLM_RUN']\n"
        "for i in range(100):\n"
        "    with span('before'): pass\n"
        "time.sleep(0.1)\n"
        "ctl('start')\n"
        "time.sleep(0.1)\n"
        "for i in range(100):\n"
        "    with span('during'): pass\n"
        "ctl('stop')\n"
        "time.sleep(0.1)\n"
        "for i in range(100):\n"
        "    with span('after'): pass\n"
    )
    done = trace_code(tmp_path, code, "--start", "paused")
    assert (done.status, done.stderr) == (0, "")
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    assert [names.count(name) for name in ("before", "during", "after")] == [0, 100, 0]


def test_duration_ends_the_recording_and_not_the_command(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from rca_llm import record\n"
        "record('early')\n"
        "time.sleep(2.5)\n"
        "for i in range(40): record('late')\n"
    )
    timeline = trace_code(tmp_path, code, "--duration", "0.5s").timeline()
    assert len(timeline["marks"]) == 1


def test_secrets_of_command_and_environment_stay_out(tmp_path: Path) -> None:
    secret = "s3cr3t-value"
    env = environment(HF_TOKEN=secret)
    command = [sys.executable, "-c", "pass", "--api-key", secret, f"--password={secret}"]
    done = trace(tmp_path, *command, env=env)
    assert done.status == 0
    for path in done.run.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_report_option_writes_the_report_and_fails_softly(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code = "from rca_llm import span\nwith span('x'): pass\nraise SystemExit(9)\n"
    assert trace_code(tmp_path, code, "--report", str(page)).status == 9
    assert page.read_text().startswith("<!")
    again = trace_code(tmp_path, code, "--force", "--report", str(tmp_path / "none" / "r.html"))
    assert again.status == 9
    assert again.stderr.count("\n") == 1


def test_launcher_that_is_killed_leaves_the_command_running(tmp_path: Path) -> None:
    done_file = tmp_path / "done"
    script = tmp_path / "script.py"
    script.write_text(f"import time; time.sleep(1); open({str(done_file)!r}, 'w').close()")
    command = [*TRACE, "-o", str(tmp_path / "run"), "--", sys.executable, str(script)]
    launcher = subprocess.Popen(command, env=environment())
    while len(list((tmp_path / "run").glob("segments/*"))) < 2:
        time.sleep(0.02)
    launcher.kill()
    launcher.wait()
    end = time.monotonic() + 30
    while not done_file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert done_file.exists()


def test_a_finished_run_is_the_same_from_its_tables_and_its_segments(tmp_path: Path) -> None:
    code = (
        "import threading\n"
        "from rca_llm import record, request, span, step\n"
        "def work():\n"
        "    with request('A'), step(1, {'A': ('prefill', 5)}), span('x', 'file', bytes=1): pass\n"
        "    record('m', value=2)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "work()\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stderr) == (0, "")
    assert (done.run.tables / "ranges.parquet").exists()
    found = source(done.run.path)
    whole, again = read_segments(found), read(done.run.path).timelines[0]
    assert {name: len(again[name]) for name in TABLES} == {n: len(whole[n]) for n in TABLES}
    assert texts(again, "ranges", "name") == texts(whole, "ranges", "name")
    assert again.header == whole.header


def test_a_daemon_that_outlives_its_command_keeps_recording(tmp_path: Path) -> None:
    """Its segments must not be cut while it writes: that would kill it."""
    marker = tmp_path / "daemon-done"
    code = (
        "import os, sys, time\n"
        "from rca_llm import span\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    null = os.open(os.devnull, os.O_RDWR)\n"
        "    for fd in (0, 1, 2): os.dup2(null, fd)\n"
        "    time.sleep(1.5)\n"
        "    for i in range(5000):\n"
        "        with span('daemon'): pass\n"
        f"    open({str(marker)!r}, 'w').close()\n"
        "    os._exit(0)\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stderr) == (0, "")
    assert not done.run.tables.exists()
    end = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert texts(done.timeline(), "ranges", "name").count("daemon") == 5000


def test_signals_after_the_command_ended_do_not_cost_its_status(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print('ready', flush=True); sys.stdin.read(); sys.exit(11)")
    launcher = trace_ready(tmp_path / "run", sys.executable, str(script))
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    launcher.stdin.close()
    launcher.stdout.read()  # the end of the command closes its output
    for _ in range(20):
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert launcher.wait(timeout=60) in (11, 128 + signal.SIGINT)
    assert Run(tmp_path / "run").manifest()["status"] == launcher.returncode


_TWICE = """
import signal, sys
from rca_llm.cli import main
held = lambda: sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
before, code = held(), "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
for run in sys.argv[1:]:
    status = main(["trace", "-o", run, "--", sys.executable, "-c", code])
    print(status, held() == before, flush=True)
print(main(["trace", "-o", sys.argv[1], "--", "no-such-command"]), held() == before)
"""


def test_a_trace_within_a_process_leaves_its_signals_as_they_were(tmp_path: Path) -> None:
    """And a second one gives its command those of the process, not those that were held."""
    runs = [str(tmp_path / name) for name in ("one", "two")]
    done = subprocess.run(
        [sys.executable, "-c", _TWICE, *runs],
        capture_output=True, text=True, env=environment(), timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["0", "0 True", "0", "0 True", "127 True"], done.stderr


def test_size_limit_ends_the_recording_and_not_the_command(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from rca_llm import span\n"
        "end = time.monotonic() + 4\n"
        "while time.monotonic() < end:\n"
        "    for i in range(1000):\n"
        "        with span('x'): pass\n"
        "print('finished')\n"
    )
    done = trace_code(tmp_path, code, "--max-size", "2M")
    assert (done.status, done.stdout) == (0, "finished\n")
    assert done.stderr == f"rca-llm: {done.run.path}: recording ended at --max-size\n"
    spans = done.timeline()["ranges"]
    assert len(spans) > 2_000_000 / 32 / 2
    assert int(spans["start"][-1] - spans["start"][0]) < 3_500_000_000


def test_a_working_directory_that_is_gone_costs_the_trace_and_not_the_command(
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    inside = f'cd "{gone}" && rmdir "{gone}" && exec "$@"'
    done = subprocess.run(
        ["/bin/sh", "-c", inside, "sh", *TRACE, "--", "/bin/echo", "hi"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert done.stderr.count("\n") == 1
    assert "runs untraced" in done.stderr


_BUSY = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"


def test_the_window_of_a_program_without_python_is_its_commands_life(tmp_path: Path) -> None:
    done = trace(tmp_path, "sh", "-c", f"sleep 0.3; {_BUSY}; sleep 0.4")
    assert done.status == 0
    begin, end = (done.run.manifest()[name] for name in ("began_ns", "ended_ns"))
    assert end - begin >= 700_000_000
    member = read(done.run.path).timelines[0]
    (rank,) = find_ranks(member)
    assert (rank.start, rank.end) == (begin, end)
    window = read(done.run.path).attribute().summary["window"]
    assert window["span_ns"] == end - begin


def test_the_window_of_a_program_without_python_leaves_pauses_out(tmp_path: Path) -> None:
    options = ("--duration", "1s")
    done = trace(tmp_path, "sh", "-c", f"{_BUSY}; sleep 3", options=options)
    assert done.status == 0
    begin, end = (done.run.manifest()[name] for name in ("began_ns", "ended_ns"))
    (rank,) = find_ranks(done.timeline())
    assert rank.start == begin
    assert rank.end < end - 500_000_000
