"""What is no IO of the program: wake-ups of event loops, and what our own recorder opens."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from rca_llm.readers import run_calls
from rca_llm.trace import Timeline
from tests.traced import environment, texts, trace

LOOP = """
import asyncio, os, socket, threading
async def main():
    await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(20)))
asyncio.run(main())
one, other = socket.socketpair()
reading, writing = os.pipe()
for bytes in (1, 8, 9, 4096):
    one.send(bytes * b"x")
    os.write(writing, bytes * b"x")
"""


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    folder = tmp_path_factory.mktemp("waking")
    every_call = environment(RCA_LLM_IO_US="0")
    return trace(folder, sys.executable, "-c", LOOP, env=every_call).timeline()


def test_a_few_bytes_to_a_loop_wake_it_and_are_no_message(timeline: Timeline) -> None:
    ranges, strings = timeline["ranges"], timeline.strings
    sent = np.flatnonzero(ranges["kind"] == strings.find("serialize"))
    assert sorted(ranges["bytes"][sent].tolist()) == [9, 9, 4096, 4096]


def test_what_the_recorder_opens_is_none_of_the_programs_files(timeline: Timeline) -> None:
    paths = [path for path in texts(timeline, "ranges", "path") if path]
    assert paths
    assert not [path for path in paths if path.endswith(".seg")]
    assert not [row for row in timeline.header.extra["short_calls"] if ".seg" in str(row["path"])]


def test_files_of_the_program_may_be_called_like_ours() -> None:
    assert run_calls.is_own("/tmp/run.rca/segments/12-345-12-0.seg")
    assert not run_calls.is_own("/data/segments/12.seg")
    assert not run_calls.is_own("/data/12-345-12-0.seg")
