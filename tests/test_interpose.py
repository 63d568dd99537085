"""The interposer changes nothing in any program, and what it records is what happened."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from rca_llm.readers import run_calls
from rca_llm.readers.segments import Segment, parse
from rca_llm.table import Strings
from tests.native.conftest import COMPILER, NATIVE

_HERE = Path(__file__).parent / "native"
_NEUTRAL = {
    *("abort", "clock_gettime", "dlsym", "getenv", "memcmp", "memcpy", "memmove", "memset"),
    *("strlen", "syscall", "__errno_location", "__cxa_finalize", "__gmon_start__"),
    *("_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__tls_get_addr"),
}
"""What glibc and musl both have, and what a linker asks for weakly."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interposer, built from the sources as an installation builds it."""
    if shutil.which(COMPILER) is None:
        pytest.skip("no C compiler")
    out = tmp_path_factory.mktemp("preload")
    done = subprocess.run(
        ["make", "-C", str(NATIVE), f"LIBRARY_DIR={out}", f"{out}/librca_preload.so"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out / "librca_preload.so"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that does everything."""
    if shutil.which(COMPILER) is None:
        pytest.skip("no C compiler")
    return _compiled(COMPILER, tmp_path_factory.mktemp("program") / "interposed")


def _compiled(compiler: str, out: Path, *more: str, source: str = "interposed.c") -> Path:
    command = [compiler, "-O1", "-pthread", str(_HERE / source), "-o", str(out), *more]
    done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An empty run directory with an open gate."""
    path = tmp_path / "run"
    (path / "segments").mkdir(parents=True)
    (path / "control").write_bytes(b"\1" + bytes(layout.CONTROL_BYTES - 1))
    return path


def _plain() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("RCA_") and k != "LD_PRELOAD"}


def _traced(library: Path, run: Path, **more: str) -> dict[str, str]:
    return {**_plain(), "RCA_LLM_RUN": str(run), "LD_PRELOAD": str(library), **more}


def _started(
    folder: Path, env: Mapping[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def _segments(run: Path) -> list[Segment]:
    found = [parse(path.name, path.read_bytes()) for path in sorted((run / "segments").iterdir())]
    return [segment for segment in found if segment is not None]


def _names(segment: Segment) -> list[str]:
    places = segment.of(layout.CALL)
    return [segment.names[int(number)] for number in segment.cells["e"][places]]


def test_it_needs_nothing_that_only_one_c_library_has(library: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    told = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True)
    needed = {line.split()[-1].partition("@")[0] for line in told.stdout.splitlines()}
    assert needed <= _NEUTRAL


@pytest.mark.parametrize("what", ["files", "sockets", "threads", "processes", "daemon", "handlers"])
@pytest.mark.parametrize("least", ["50", "0"])
def test_a_program_does_the_same(
    tmp_path: Path, library: Path, program: Path, run: Path, what: str, least: str
) -> None:
    bare = _started(tmp_path / "a", _plain(), str(program), what)
    traced = _started(
        tmp_path / "b", _traced(library, run, RCA_LLM_IO_US=least), str(program), what
    )
    assert (bare.returncode, bare.stdout, bare.stderr) == (7, traced.stdout, traced.stderr)
    assert traced.returncode == 7
    segments = _segments(run)
    assert not any(segment.damaged or segment.header["stop_errno"] for segment in segments)
    if least == "0":
        assert segments  # every call has a record


def test_a_program_outside_of_a_trace_is_left_alone(
    tmp_path: Path, library: Path, program: Path
) -> None:
    env = {**_plain(), "LD_PRELOAD": str(library)}
    bare = _started(tmp_path / "a", _plain(), str(program), "files")
    loaded = _started(tmp_path / "b", env, str(program), "files")
    assert (bare.returncode, bare.stdout) == (loaded.returncode, loaded.stdout)


def test_every_call_of_every_thread_is_recorded_once(
    tmp_path: Path, library: Path, program: Path, run: Path
) -> None:
    env = _traced(library, run, RCA_LLM_IO_US="0")
    assert _started(tmp_path / "a", env, str(program), "threads").returncode == 7
    (segment,) = _segments(run)
    assert _names(segment).count("pread") + int(segment.header["dropped"]) >= 8 * 3000
    assert _names(segment).count("pread") <= 8 * 3000
    assert segment.header["dropped"] < 8 * 3000 / 100
    more, whole = segment.followers(segment.of(layout.CALL), layout.MORE)
    assert whole.all()
    assert len(set(segment.cells["e"][more].tolist())) == 8


@pytest.mark.parametrize("first", [True, False])
def test_another_preloaded_library_sees_what_it_saw(
    tmp_path: Path, library: Path, program: Path, run: Path, first: bool
) -> None:
    other = _compiled(
        COMPILER, tmp_path / "libcounting.so", "-shared", "-fPIC", source="counting.c"
    )
    alone = {**_plain(), "LD_PRELOAD": str(other)}
    bare = _started(tmp_path / "a", alone, str(program), "threads")
    order = [str(library), str(other)] if first else [str(other), str(library)]
    env = {**_traced(library, run), "LD_PRELOAD": ":".join(order)}
    both = _started(tmp_path / "b", env, str(program), "threads")
    assert bare.stderr == f"pread {8 * 3000}\n"
    assert (both.returncode, both.stdout, both.stderr) == (7, bare.stdout, bare.stderr)


@pytest.mark.parametrize("what", ["files", "sockets", "threads", "processes", "daemon"])
def test_a_program_of_another_c_library_is_unharmed(
    tmp_path: Path, library: Path, run: Path, what: str
) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("no musl-gcc (Debian: musl-tools)")
    program = _compiled("musl-gcc", tmp_path / "musl")
    bare = _started(tmp_path / "a", _plain(), str(program), what)
    traced = _started(tmp_path / "b", _traced(library, run, RCA_LLM_IO_US="0"), str(program), what)
    assert (bare.returncode, bare.stdout, bare.stderr) == (7, traced.stdout, traced.stderr)
    assert traced.returncode == 7
    assert _segments(run)


_SLOW_PEER = """
import json, socket, sys, time
own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
took = []
for _ in range(9):
    begun = time.perf_counter_ns()
    own.recv(1)
    took.append([begun, time.perf_counter_ns()])
print(json.dumps(took))
"""


def test_a_call_is_recorded_with_its_times_bytes_and_peer(
    tmp_path: Path, library: Path, run: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        peer = threading.Thread(target=_send_slowly, args=(server,))
        peer.start()
        env = _traced(library, run)
        done = _started(tmp_path / "a", env, sys.executable, "-S", "-c", _SLOW_PEER, str(port))
        peer.join()
    measured = [tuple(pair) for pair in _json(done.stdout)]
    (segment,) = _segments(run)
    places = segment.of(layout.CALL)
    more, _ = segment.followers(places, layout.MORE)
    rows = [
        (int(segment.cells["a"][at]), int(segment.cells["b"][at]), int(segment.cells["b"][behind]))
        for at, behind in zip(places.tolist(), more.tolist(), strict=True)
        if segment.names[int(segment.cells["e"][at])] in ("recv", "recvfrom")
        and segment.names[int(segment.cells["c"][behind])] == f"127.0.0.1:{port}"
    ]
    assert len(rows) == 9
    for (begun, ended), (start, end, size) in zip(measured, rows, strict=True):
        assert begun - 100_000 <= start < end <= ended + 100_000
        assert size == 1
    ratios = sorted((e - s) / (b - a) for (a, b), (s, e, _) in zip(measured, rows, strict=True))
    assert ratios[4] > 0.95


def _json(text: str) -> list[list[int]]:
    import json

    found: list[list[int]] = json.loads(text)
    return found


def _send_slowly(server: socket.socket) -> None:
    client, _ = server.accept()
    with client:
        for _ in range(9):
            time.sleep(0.03)
            client.send(b"x")


def test_what_was_recorded_survives_a_kill(tmp_path: Path, library: Path, run: Path) -> None:
    code = "import os, time\nos.fsync(os.open('f', 66))\nprint(1, flush=True)\ntime.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env=_traced(library, run, RCA_LLM_IO_US="0"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (segment,) = _segments(run)
    assert "fsync" in _names(segment)
    assert segment.header["closed_ns"] == 0


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, library: Path, program: Path, run: Path
) -> None:
    env = _traced(library, run, RCA_LLM_IO_US="0")
    limit = ["sh", "-c", 'ulimit -f 200; exec "$0" "$1"', str(program), "threads"]
    bare = _started(tmp_path / "a", _plain(), str(program), "threads")
    done = _started(tmp_path / "b", env, *limit)
    assert (done.returncode, done.stdout) == (7, bare.stdout)
    (segment,) = _segments(run)
    assert segment.header["stop_errno"]
    assert segment.header["dropped"] > 0


def test_a_closed_gate_records_nothing(
    tmp_path: Path, library: Path, program: Path, run: Path
) -> None:
    (run / "control").write_bytes(bytes(layout.CONTROL_BYTES))
    env = _traced(library, run, RCA_LLM_IO_US="0")
    assert _started(tmp_path / "a", env, str(program), "files").returncode == 7
    assert _segments(run) == []


_HELD = """
import sys, threading, time
sys.setswitchinterval(0.02)
stop = time.monotonic() + 1.0
def hold():
    while time.monotonic() < stop:
        pass
other = threading.Thread(target=hold)
other.start()
waited = 0
while time.monotonic() < stop:
    begun = time.perf_counter_ns()
    time.sleep(0.001)
    waited += max(time.perf_counter_ns() - begun - 1_100_000, 0)
other.join()
print(waited)
"""


def test_waits_for_the_lock_of_python_are_measured(
    tmp_path: Path, library: Path, run: Path
) -> None:
    env = _traced(library, run)
    done = _started(tmp_path / "a", env, sys.executable, "-S", "-c", _HELD)
    segments = _segments(run)
    if not any("wait for the GIL" in _names(segment) for segment in segments):
        pytest.skip("this Python has no lock, or one that is not waited for in _PyRuntime")
    (segment,) = segments
    places = segment.of(layout.CALL)
    more, _ = segment.followers(places, layout.MORE)
    main = segment.cells["e"][more] == segment.pid
    lasting = (segment.cells["b"] - segment.cells["a"])[places[main]]
    # The sleep may last longer than asked for, which is no wait for the lock.
    assert 0.5 * int(done.stdout) < int(lasting.sum()) < 1.05 * int(done.stdout) + 50_000_000


def test_paths_say_what_files_are_for() -> None:
    assert run_calls.kind_of_path("/m/model-00001-of-00002.safetensors") == "load"
    assert run_calls.kind_of_path("/m/pytorch_model-00001.bin") == "load"
    assert run_calls.kind_of_path("/var/lib/lmcache/chunk-3") == "kv_transfer"
    assert run_calls.kind_of_path("/tmp/kv_offload/3") == "kv_transfer"
    assert run_calls.kind_of_path("/var/log/engine.log.2") == "log"
    assert run_calls.kind_of_path("/home/me/catalog.txt") == "file"


def test_our_own_looks_at_a_thread_are_no_reading_of_files(
    tmp_path: Path, library: Path, run: Path
) -> None:
    code = "import os\nfor path in ('/proc/thread-self/schedstat', '/proc/thread-self/stat'):\n"
    code += "    os.pread(os.open(path, os.O_RDONLY), 100, 0)"
    _started(tmp_path, _traced(library, run, RCA_LLM_IO_US="0"), sys.executable, "-S", "-c", code)
    (segment,) = _segments(run)
    assert any(name.endswith("/schedstat") for name in segment.names.values())
    strings = Strings()
    rows = run_calls.calls(segment, segment.codes(strings), strings)
    paths = {strings[int(number)] for number in rows["path"] if number >= 0}
    assert any(path.endswith("/stat") for path in paths)
    assert not any(path.endswith("/schedstat") for path in paths)


def _with_cufile(folder: Path, how: str) -> Path:
    """A program that uses a stand-in for cuFile, in one of three ways to find it."""
    _compiled(
        COMPILER,
        folder / "libcufile.so.0",
        *("-shared", "-fPIC", "-Wl,-soname,libcufile.so.0"),
        source="cufile_standin.c",
    )
    linked = [str(folder / "libcufile.so.0"), f"-Wl,-rpath,{folder}"]
    out = folder / "program"
    if how == "linked":
        return _compiled(COMPILER, out, *linked, source="cufile_user.c")
    if how == "looked up":
        more = ("-DLOOKED_UP", linked[1])
        return _compiled(COMPILER, out, *more, source="cufile_user.c")
    more = ("-DPART", "-shared", "-fPIC", *linked)
    _compiled(COMPILER, folder / "libpart.so", *more, source="cufile_user.c")
    return _compiled(COMPILER, out, "-DWHOLE", linked[1], source="cufile_user.c")


@pytest.mark.parametrize("how", ["linked", "in a scope of its own", "looked up"])
def test_reads_of_gpudirect_storage_are_calls(
    tmp_path: Path, library: Path, run: Path, how: str
) -> None:
    program = _with_cufile(tmp_path, how)
    bare = _started(tmp_path / "a", _plain(), str(program))
    traced = _started(tmp_path / "b", _traced(library, run), str(program))
    assert " ".join(bare.stdout.split()) == "5007 0 4096 1000 -1 22 text 0 5026"
    assert (bare.returncode, bare.stdout) == (7, traced.stdout)
    assert (traced.returncode, traced.stderr) == (7, bare.stderr)
    found = [row for segment in _segments(run) for row in _cufile(segment)]
    if how == "looked up":  # out of reach, and unharmed
        assert found == []
        return
    path = str(tmp_path / "b" / "shard.safetensors")
    assert found == [
        ("cuFileWrite", "file", path, 4096, False),
        ("cuFileRead", "file", path, 1000, False),
        ("cuFileRead", "file", path, -1, True),
        ("cuFileBatchIOSubmit", "file", None, -1, False),
        ("cuFileBatchIOSubmit", "file", None, -1, True),
    ]


def _cufile(segment: Segment) -> list[tuple[str, str, str | None, int, bool]]:
    """Name, kind, path, bytes and failure of every call of cuFile, each of at least 2 ms."""
    places = segment.of(layout.CALL)
    more, _ = segment.followers(places, layout.MORE)
    found: list[tuple[str, str, str | None, int, bool]] = []
    for name, at, behind in zip(_names(segment), places.tolist(), more.tolist(), strict=True):
        cell, rest = segment.cells[at], segment.cells[behind]
        if name.startswith("cuFile"):
            assert cell["b"] - cell["a"] > 1_900_000
            failed = bool(int(cell["tag"]) >> 8 & layout.FLAG_ERROR)
            kind, path = segment.names[int(cell["d"])], segment.names.get(int(rest["c"]))
            found.append((name, kind, path, int(rest["b"]), failed))
    return found


_SQL = """
PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<20000)
INSERT INTO t SELECT i, printf('row %d', i*7919 % 10007) FROM n;
CREATE INDEX i ON t(b); DELETE FROM t WHERE a % 3 = 0; UPDATE t SET b = b || '!' WHERE a % 5 = 0;
PRAGMA wal_checkpoint(TRUNCATE); VACUUM; PRAGMA integrity_check;
SELECT count(*), sum(length(b)), min(b), max(b) FROM t; .backup copy.db
ATTACH 'copy.db' AS c; SELECT count(*) FROM c.t; SELECT * FROM missing;
"""


def test_the_shell_of_sqlite_does_the_same(tmp_path: Path, library: Path, run: Path) -> None:
    shell = shutil.which("sqlite3")
    if shell is None:
        pytest.skip("no sqlite3")
    env = _traced(library, run, RCA_LLM_IO_US="0")
    found: list[tuple[int, bytes, bytes, bytes]] = []
    for folder, variables in ((tmp_path / "a", _plain()), (tmp_path / "b", env)):
        folder.mkdir()
        command = [shell, "-batch", "test.db"]
        done = subprocess.run(
            command, input=_SQL.encode(), env=variables, cwd=folder, capture_output=True
        )
        content = (folder / "test.db").read_bytes()
        found.append((done.returncode, done.stdout, done.stderr, content))
    assert found[0] == found[1]
    assert {"pread", "pwrite", "fdatasync"} & {n for s in _segments(run) for n in _names(s)}


@pytest.mark.slow
def test_the_tests_of_cpython_pass(tmp_path: Path, library: Path, run: Path) -> None:
    python = _python_with_tests()
    if python is None:
        pytest.skip("no Python with its test package (Debian: libpython3.11-testsuite)")
    wanted = ["test_io", "test_os", "test_subprocess"]
    command = [python, "-m", "test", *wanted]
    bare = _tested(tmp_path / "a", _plain(), command)
    env = _traced(library, run, RCA_LLM_IO_US="5")
    assert _tested(tmp_path / "b", env, command) - bare == set()
    assert _segments(run)


def _tested(folder: Path, env: Mapping[str, str], command: list[str]) -> set[str]:
    """The single tests that fail."""
    folder.mkdir()
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    told = done.stdout + done.stderr
    assert re.search(r"^(== )?Tests? result:", told, re.MULTILINE), told[-2000:]
    # Not `ERROR: ld.so: …`, said where a test gives up root and may not read our library any more.
    return set(re.findall(r"^(?:FAIL|ERROR): (test\S+)", told, re.MULTILINE))


def _python_with_tests() -> str | None:
    for python in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if python is not None:
            done = subprocess.run([python, "-c", "import test.test_io"], capture_output=True)
            if done.returncode == 0:
                return python
    return None
