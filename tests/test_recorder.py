"""Recording outlives the process, finds every kind of child, and disturbs nobody."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from rca_llm.probes.recorder import command_name
from rca_llm.readers.segments import parse
from rca_llm.run import Run
from tests.traced import TRACE, environment, texts, trace, trace_code

_LOOP = """
import sys
from rca_llm import span
count = 0
while True:
    with span("loop"):
        count += 1
    if count % 1000 == 0:
        sys.stdout.write("%d\\n" % count)
        sys.stdout.flush()
"""


@pytest.mark.parametrize("wait_s", [0.0, 0.37])
def test_sigkill_loses_at_most_the_record_being_written(tmp_path: Path, wait_s: float) -> None:
    script = tmp_path / "loop.py"
    script.write_text(_LOOP)
    launcher = subprocess.Popen(
        [*TRACE, "-o", str(tmp_path / "run"), "--", sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert launcher.stdout is not None
    first = launcher.stdout.readline()
    time.sleep(wait_s)
    os.kill(Run(tmp_path / "run").manifest()["pid"], signal.SIGKILL)
    # The last line may be cut short, but a whole one says that so many spans were left.
    finished = int((first + launcher.stdout.read()).rpartition(b"\n")[0].split()[-1])
    assert launcher.wait(timeout=60) == 128 + 9
    spans = _spans(tmp_path / "run", "loop")
    assert len(spans) >= finished
    # Every span but the last, which the signal may have met, has both its times.
    assert all(start and end >= start for start, end in spans[:-1])


def _spans(run: Path, name: str) -> list[tuple[int, int]]:
    """The spans of a name as they lie in the files, in file order."""
    found: list[tuple[int, int]] = []
    for path in Run(run).segment_files():
        segment = parse(path.name, path.read_bytes())
        assert segment is not None
        assert segment.damaged == 0
        for place in segment.of(layout.SPAN).tolist():
            cell = segment.cells[place]
            if segment.names[int(cell["e"])] == name:
                found.append((int(cell["a"]), int(cell["b"])))
    return found


def test_an_open_span_of_a_killed_process_is_seen(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from rca_llm import span\n"
        "with span('outer'):\n"
        "    with span('inner'): pass\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = trace_code(tmp_path, code)
    assert done.status == 128 + 9
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    outer, inner = names.index("outer"), names.index("inner")
    ends = timeline["ranges"]["end"]
    assert ends[outer] >= ends[inner]
    assert [f.count for f in timeline.findings if f.code == "repaired"] == [1]


_CHILDREN = {
    "fork": "pid = os.fork()\nif pid == 0:\n    child(); os._exit(0)\nos.waitpid(pid, 0)",
    "subprocess": "subprocess.run([sys.executable, __file__, 'child'], check=True)",
    "shell": 'subprocess.run(f\'"{sys.executable}" "{__file__}" child\', shell=True, check=True)',
    "exec": "os.execv(sys.executable, [sys.executable, __file__, 'child'])",
    "posix_spawn": (
        "pid = os.posix_spawn(sys.executable, [sys.executable, __file__, 'child'], os.environ)\n"
        "os.waitpid(pid, 0)"
    ),
}
_MULTIPROCESSING = (
    "process = multiprocessing.get_context('{0}').Process(target=child)\n"
    "process.start()\nprocess.join()\nassert process.exitcode == 0"
)
_CHILDREN |= {
    f"multiprocessing {method}": _MULTIPROCESSING.format(method)
    for method in ("fork", "spawn", "forkserver")
}


@pytest.mark.parametrize("kind", _CHILDREN)
def test_every_kind_of_child_is_found(tmp_path: Path, kind: str) -> None:
    body = "\n".join("    " + line for line in _CHILDREN[kind].splitlines())
    code = (
        "import multiprocessing, os, subprocess, sys\n"
        "from rca_llm import span\n"
        "def child():\n"
        "    with span('in child'): pass\n"
        "if __name__ == '__main__' and 'child' in sys.argv:\n"
        "    child()\n"
        "elif __name__ == '__main__':\n"
        "    with span('in parent'): pass\n"
        f"{body}\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stderr) == (0, "")
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    assert names.count("in parent") == 1
    assert names.count("in child") == 1
    processes = timeline["ranges"]["process"]
    same = processes[names.index("in parent")] == processes[names.index("in child")]
    assert same == (kind == "exec")


def test_a_forked_child_does_not_write_into_its_parents_spans(tmp_path: Path) -> None:
    """Both leave the same `with`; the child, 0.5 s later, must not move the parent's end."""
    code = (
        "import os, time\n"
        "from rca_llm import span\n"
        "with span('shared'):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: time.sleep(0.5)\n"
        "with span('after'): pass\n"
        "if pid == 0: os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    done = trace_code(tmp_path, code)
    assert done.status == 0
    [(start, end)] = _spans(done.run.path, "shared")
    first_after = min(start for start, _ in _spans(done.run.path, "after"))
    assert start < end <= first_after
    assert len(_spans(done.run.path, "after")) == 2


def test_every_thread_has_its_own_segment_and_short_threads_share(tmp_path: Path) -> None:
    code = (
        "import threading\n"
        "from rca_llm import span\n"
        "def work():\n"
        "    with span('work'): pass\n"
        "for i in range(50):\n"
        "    thread = threading.Thread(target=work, name=f'worker {i}')\n"
        "    thread.start(); thread.join()\n"
    )
    done = trace_code(tmp_path, code)
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    threads = {int(timeline["ranges"]["thread"][i]) for i, n in enumerate(names) if n == "work"}
    assert names.count("work") == 50
    assert len(threads) == 50
    assert {f"worker {i}" for i in range(50)} <= set(texts(timeline, "threads", "name"))
    pid = done.run.manifest()["pid"]
    own = [path for path in done.run.segment_files() if path.name.startswith(f"{pid}-")]
    assert len(own) <= 3


def test_spans_in_signal_handlers_and_collections_do_not_tear_records(tmp_path: Path) -> None:
    code = (
        "import gc, signal\n"
        "from rca_llm import span, record\n"
        "def tick(number, frame):\n"
        "    with span('handler', path='/x', bytes=3): gc.collect(0)\n"
        "signal.signal(signal.SIGALRM, tick)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "for i in range(60_000):\n"
        "    with span('outer', 'file', bytes=i): record(f'mark {i % 3000}', value=i)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stderr) == (0, "")
    timeline = done.timeline()
    assert not [f for f in timeline.findings if f.code == "truncated"]
    names = texts(timeline, "ranges", "name")
    assert names.count("outer") == 60_000
    assert "handler" in names
    assert len(timeline["marks"]) == 60_000
    rows = [i for i, name in enumerate(names) if name == "outer"]
    assert sorted(timeline["ranges"]["bytes"][rows].tolist()) == list(range(60_000))


def test_a_programs_exception_from_a_handler_is_not_swallowed(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "from rca_llm import span\n"
        "class Mine(Exception): pass\n"
        "def tick(number, frame): raise Mine\n"
        "signal.signal(signal.SIGALRM, tick)\n"
        "caught = 0\n"
        "for attempt in range(200):\n"
        "    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.0003)\n"
        "        while True:\n"
        "            with span(f'name {attempt}', 'file', path='p'): pass\n"
        "    except Mine: caught += 1\n"
        "print(caught)\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stdout) == (0, "200\n")


def test_a_daemon_that_closes_all_files_keeps_its_own(tmp_path: Path) -> None:
    """Our mappings hold descriptors; once closed by the program their numbers are the program's."""
    code = (
        "import os\n"
        "from rca_llm import span\n"
        "with span('x'): pass\n"
        "os.closerange(3, 100)\n"
        "mine = [os.open('mine', os.O_CREAT | os.O_RDWR) for _ in range(20)]\n"
        "for i in range(200_000):\n"
        "    with span('x'): pass\n"
        "for fd in mine: assert os.write(fd, b'ok') == 2\n"
        "assert os.stat('mine').st_size == 2, os.stat('mine')\n"
        "print('kept')\n"
    )
    script = tmp_path / "daemon.py"
    script.write_text(f"import os; os.chdir({str(tmp_path)!r})\n{code}")
    done = trace(tmp_path, sys.executable, str(script))
    assert (done.status, done.stdout, done.stderr) == (0, "kept\n", "")
    assert len(_spans(done.run.path, "x")) == 200_001


def test_most_descriptors_stay_the_programs(tmp_path: Path) -> None:
    """Before Python 3.13 a mapping holds a descriptor: threads that take too many go without."""
    code = (
        "import os, resource, threading\n"
        "from rca_llm import span\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "threads, together = 100, threading.Barrier(101)\n"
        "def work():\n"
        "    with span('x'): together.wait()\n"
        "    together.wait()\n"
        "for _ in range(threads): threading.Thread(target=work).start()\n"
        "together.wait()\n"
        "print(len(os.listdir('/proc/self/fd')) < 128)\n"
        "together.wait()\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stdout) == (0, "True\n")
    recorded = texts(done.timeline(), "ranges", "name").count("x")
    if sys.version_info >= (3, 13):
        assert (recorded, done.stderr) == (100, "")
    else:
        assert 10 < recorded < 100
        assert "Too many open files" in done.stderr


def test_bad_arguments_never_raise(tmp_path: Path) -> None:
    code = (
        "from rca_llm import probe, record, request, span, step\n"
        "for name in (None, 5, [], {}, object(), 'x' * 100_000, '\\ud800', 'a\\0b'):\n"
        "    with span(name): pass\n"
        "    with span('s', kind=name, request=name, path=name): pass\n"
        "    record(name); record('n', request=name, value=name)\n"
        "    with request(name) as r: r.arrival(); r.token(name); r.prompt_tokens = name\n"
        "    with step(name, {name: ('prefill', 1)} if name.__hash__ else {}, mode=name): pass\n"
        "    with step(1, name): pass\n"
        "with span('n', step='x', bytes=2**70): pass\n"
        "record('big', a=2**80, b=float('nan'), c=-2**63)\n"
        "print('fine')\n"
    )
    done = trace_code(tmp_path, code)
    assert (done.status, done.stdout, done.stderr) == (0, "fine\n", "")
    assert len(done.timeline()["ranges"]) > 0


def _interpreters() -> list[str]:
    """Other Pythons of this machine, one of each minor version."""
    found = {path.name: str(path) for path in map(Path, _candidates()) if _runs(path)}
    return sorted(found.values()) or [""]


def _runs(python: Path) -> bool:
    """Whether it starts: pyenv's wrappers are there for versions that are not."""
    call = [str(python), "-c", ""]
    return (
        python.exists() and subprocess.run(call, capture_output=True, check=False).returncode == 0
    )


def _candidates() -> list[str]:
    """Those on the path, then pyenv's own, which its wrappers on the path do not start."""
    names = [f"python3.{minor}" for minor in range(7, 15) if minor != sys.version_info.minor]
    found = [path for name in names if (path := shutil.which(name)) is not None]
    folders = list(Path.home().glob(".pyenv/versions/*/bin"))
    return found + [str(folder / name) for name in names for folder in folders]


@pytest.mark.parametrize("python", _interpreters())
def test_interpreters_without_rca_llm_are_recorded(tmp_path: Path, python: str) -> None:
    if not python:
        pytest.skip("no other Python on this machine")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, threading\n"
        "from _rca_llm_probes import probe, record, request, span, step\n"
        "@probe\n"
        "def work():\n"
        "    with span('x', 'file', bytes=3): record('m', n=1)\n"
        "with request('A'), step(1, {'A': ('decode', 1)}): work()\n"
        "pid = os.fork()\n"
        "if pid == 0: work(); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    done = trace(tmp_path, python, str(script))
    assert (done.status, done.stderr) == (0, "")
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    assert (names.count("work"), names.count("x"), len(timeline["marks"])) == (3, 3, 3)
    assert (len(timeline["requests"]), len(timeline["steps"])) == (1, 1)


def test_hidden_sitecustomize_runs(tmp_path: Path) -> None:
    hidden = tmp_path / "site"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.hidden_ran = __name__\n")
    code = "import sys; print(sys.hidden_ran, sys.modules['sitecustomize'].__file__)"
    env = environment(PYTHONPATH=os.pathsep.join([environment()["PYTHONPATH"], str(hidden)]))
    done = trace(tmp_path, sys.executable, "-c", code, env=env)
    assert done.stdout == f"sitecustomize {hidden}/sitecustomize.py\n"
    assert done.stderr == ""


def test_bootstrap_does_nothing_outside_a_trace(tmp_path: Path) -> None:
    bootstrap = Path(layout.__file__).parent / "bootstrap"
    env = environment(PYTHONPATH=str(bootstrap))
    code = "import sys; print([name for name in sys.modules if 'probes' in name])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_stale_run_variable_does_no_harm(tmp_path: Path) -> None:
    bootstrap = Path(layout.__file__).parent / "bootstrap"
    env = environment(PYTHONPATH=f"{bootstrap}{os.pathsep}{environment()['PYTHONPATH']}")
    env["RCA_LLM_RUN"] = str(tmp_path / "gone")
    code = "from rca_llm import span\nwith span('x'): print('ran')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_probes_start_without_slow_modules(tmp_path: Path) -> None:
    slow = ("typing", "threading", "ctypes", "json", "inspect", "importlib.util", "numpy", "re")
    code = f"import json, sys; print(json.dumps([m for m in {slow!r} if m in sys.modules]))"
    code = code.replace("import json, sys;", "import sys; found = list(sys.modules); import json;")
    code = code.replace("if m in sys.modules", "if m in found")
    done = trace(tmp_path, sys.executable, "-c", code)
    untraced = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=True
    )
    assert set(json.loads(done.stdout)) <= set(json.loads(untraced.stdout))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/python3", "-u", "/srv/serve.py", "--api-key", "x"], "python3 serve.py"),
        (["python", "-m", "vllm.entrypoints", "serve"], "python -m vllm.entrypoints"),
        (["python", "-X", "dev", "-c", "secret = 1"], "python -c"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        ([], ""),
    ],
)
def test_command_names_hold_no_values(argv: list[str], name: str) -> None:
    assert command_name(argv) == name
