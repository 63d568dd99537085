"""A run may be finished again, and whoever is killed meanwhile leaves one that can be read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rca_llm import saved
from rca_llm.finish import finish, trim
from rca_llm.probes import format as layout
from rca_llm.probes.recorder import Recorder, new_segment
from rca_llm.readers.segments import parse
from rca_llm.run import Run
from rca_llm.trace import TABLES, Timeline
from tests.traced import Traced, environment, texts, trace_code

_KILLED = """
import os, signal, sys
from pathlib import Path
from rca_llm import finish
from rca_llm.run import Run
real, at = Path.replace, int(sys.argv[2])
def replace(self, target):
    if at == 0: os.kill(os.getpid(), signal.SIGKILL)
    real(self, target)
    if at == 1: os.kill(os.getpid(), signal.SIGKILL)
Path.replace = replace
def truncate(self, *_):
    self.flush()
    os.kill(os.getpid(), signal.SIGKILL)
if at == 2:
    import io
    class File(io.BufferedRandom):
        truncate = truncate
    opened = Path.open
    Path.open = lambda self, mode="r", *more, **named: (
        File(io.FileIO(self, mode)) if mode == "r+b" else opened(self, mode, *more, **named)
    )
finish.finish(Run(Path(sys.argv[1])), {int(pid): int(start) for pid, start in
    (word.split(":") for word in sys.argv[3:])})
"""


@pytest.fixture
def recorded(tmp_path: Path) -> Traced:
    """A small finished run."""
    code = "from rca_llm import record, span\nwith span('outer'): record('inside')\n"
    done = trace_code(tmp_path, code)
    assert (done.status, done.stderr) == (0, "")
    return done


def rows(timeline: Timeline) -> dict[str, int]:
    """How many rows every table has."""
    return {name: len(timeline[name]) for name in TABLES}


def test_a_finished_run_is_finished_again(recorded: Traced) -> None:
    before = rows(recorded.timeline())
    (recorded.run.tables / "left.parquet").write_bytes(b"of an earlier version")
    finish(recorded.run, {})
    finish(recorded.run, {})
    assert rows(recorded.timeline()) == before
    assert saved.is_saved(recorded.run.tables)
    assert not (recorded.run.tables / "left.parquet").exists()


def test_tables_stay_where_the_segments_are_gone(recorded: Traced) -> None:
    before = rows(recorded.timeline())
    shutil.rmtree(recorded.run.segments)
    finish(recorded.run, {})
    assert rows(recorded.timeline()) == before


@pytest.mark.parametrize("at", [0, 1, 2], ids=["written", "half renamed", "half cut"])
def test_who_is_killed_while_finishing_leaves_a_run_to_be_read(recorded: Traced, at: int) -> None:
    run = recorded.run
    before = rows(recorded.timeline())
    seen = {"-".join(path.name.split("-")[:2]).replace("-", ":") for path in run.segment_files()}
    for path in run.segment_files():  # as long as before it was cut
        with path.open("r+b") as file:
            file.seek(layout.LENGTH_OFFSET)
            file.write(bytes(8))
            file.truncate(-(-path.stat().st_size // 65536) * 65536)
    command = [sys.executable, "-c", _KILLED, str(run.path), str(at), *seen]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = recorded.timeline()
    assert rows(killed) == before
    assert "outer" in texts(killed, "ranges", "name")
    assert not [finding for finding in killed.findings if finding.code == "truncated"]
    finish(run, {})
    assert rows(recorded.timeline()) == before
    assert sorted(path.name for path in run.path.iterdir() if "tables" in path.name) == ["tables"]


def test_zeros_at_the_end_of_a_payload_are_not_cut_off(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.segments.mkdir()
    path, header = new_segment(str(run.path))
    recorder = Recorder(path, header)
    assert recorder.payload(layout.BUFFER, bytes(1000), 1, 0)
    size = os.stat(path).st_size
    trim(Path(path))
    assert os.stat(path).st_size < size
    segment = parse("x", Path(path).read_bytes())
    assert segment is not None
    assert (segment.damaged, segment.cut) == (0, None)
    assert [bytes(buffer.data) for buffer in segment.buffers] == [bytes(1000)]


def test_a_segment_without_a_header_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "1-2-3-0.seg"
    path.write_bytes(bytes(65536))
    trim(path)
    assert path.read_bytes() == bytes(65536)
