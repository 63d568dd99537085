"""A pool's worker is given the request of each piece of its work, not of the scope it began in."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rca_llm.trace import Timeline, Trace
from tests.scenes import MS
from tests.traced import trace_code

EXECUTOR = """
import asyncio, concurrent.futures, time
from rca_llm import request
async def serve(id):
    with request(id):
        await asyncio.to_thread(time.sleep, 0.05)
async def main():
    for id in ("A", "B", "C"):
        await serve(id)
    await asyncio.sleep(0.3)
asyncio.run(main())
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    for id in ("D", "E"):
        with request(id):
            pool.submit(time.sleep, 0.05).result()
"""

ANYIO = """
import anyio, anyio.to_thread, time
from rca_llm import request
async def main():
    for id in ("A", "B", "C"):
        with request(id):
            await anyio.to_thread.run_sync(time.sleep, 0.05)
    await anyio.sleep(0.3)
anyio.run(main)
"""

THREADS = """
import threading, time
from rca_llm import request
for id in ("A", "B"):
    with request(id):
        thread = threading.Thread(target=time.sleep, args=(0.05,))
        thread.start()
    thread.join()
"""


def _work(timeline: Timeline) -> list[tuple[str, int, int]]:
    """The spans in which threads were given work: the request, begin and end, in order."""
    ranges, strings = timeline["ranges"], timeline.strings
    rows = np.flatnonzero(ranges["kind"] == strings.find("work"))
    found = [
        (strings[int(ranges["request"][row])], int(ranges["start"][row]), int(ranges["end"][row]))
        for row in rows
    ]
    return sorted(found, key=lambda span: span[1])


@pytest.mark.parametrize(
    ("code", "requests"), [(EXECUTOR, "ABCDE"), (ANYIO, "ABC"), (THREADS, "AB")]
)
def test_every_piece_of_work_is_one_span_of_its_request(
    tmp_path: Path, code: str, requests: str
) -> None:
    if code is ANYIO:
        pytest.importorskip("anyio", reason="anyio's own pool is not there")
    work = _work(trace_code(tmp_path, code).timeline())
    assert [id for id, _, _ in work] == list(requests)
    # One after the other: no worker's life covers what it did for others, nor its idle time.
    assert all(one[2] <= other[1] for one, other in pairwise(work))


BUSY = """
import concurrent.futures, time
from rca_llm import request, span
def compute():
    with span("piece", kind="compute"):
        time.sleep(0.2)
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    with request("A"):
        first = pool.submit(compute)
    with request("B"):
        pool.submit(compute).result()
"""


@pytest.mark.clocks
def test_a_request_waits_for_the_worker_that_computes_for_another(tmp_path: Path) -> None:
    rows = Trace([trace_code(tmp_path, BUSY).timeline()]).attribute().summary["requests"]
    (parts,) = [row["parts"] for row in rows if row["id"] == "B"]
    assert 150 * MS <= parts["scheduling.queue"] <= 250 * MS, parts
    assert 150 * MS <= parts["compute.cpu"] <= 250 * MS, parts
