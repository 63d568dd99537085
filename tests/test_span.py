"""`span`, `record`, `probe`, `request` and `step`, in a trace and outside."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rca_llm
from rca_llm.table import UNKNOWN
from rca_llm.trace import Timeline
from tests.traced import environment, texts, trace_code

_USES = """
import asyncio
from rca_llm import probe, record, request, span, step

@probe
def plain(x): return x + 1

@probe("named", kind="compute")
def other(): return "other"

@probe(name="keyword")
def keyword(*, a): return a

class Model:
    @probe
    def forward(self, x): return (self, x)
    @probe
    @staticmethod
    def static(): return "static"
    @classmethod
    @probe
    def made(cls): return cls

@probe
async def later(x):
    await asyncio.sleep(0.01)
    return x

@probe
def numbers(n):
    got = []
    for i in range(n):
        got.append((yield i))
    return got

@probe
async def stream(n):
    try:
        for i in range(n):
            sent = yield i
            if sent is not None: yield ("sent", sent)
    finally:
        closed.append(True)

closed = []

def drive():
    assert plain(1) == 2 and other() == "other" and keyword(a=3) == 3
    model = Model()
    assert model.forward(5) == (model, 5) and Model.static() == "static" and Model.made() is Model
    assert asyncio.run(later(7)) == 7
    it = numbers(2)
    assert next(it) == 0 and it.send("x") == 1
    try: it.send("y")
    except StopIteration as stop: assert stop.value == ["x", "y"]
    async def consume():
        assert [i async for i in stream(3)] == [0, 1, 2]
        it = stream(2)
        assert await it.__anext__() == 0
        assert await it.asend("hey") == ("sent", "hey")
        await it.aclose()
        it = stream(2)
        await it.__anext__()
        try: await it.athrow(KeyError("k"))
        except KeyError: pass
        else: raise AssertionError
        assert closed == [True, True, True]
    asyncio.run(consume())
    try:
        with span("fails"): raise ValueError
    except ValueError: pass
    import inspect
    assert plain.__name__ == "plain" and inspect.iscoroutinefunction(later)
    assert inspect.isgeneratorfunction(numbers) and inspect.isasyncgenfunction(stream)
    print("driven")
drive()
"""


def test_decorated_functions_behave_as_before_and_are_recorded(tmp_path: Path) -> None:
    done = trace_code(tmp_path, _USES)
    assert (done.status, done.stdout, done.stderr) == (0, "driven\n", "")
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    kinds = dict(zip(names, texts(timeline, "ranges", "kind"), strict=True))
    expected = {
        "plain": 1,
        "named": 1,
        "keyword": 1,
        "Model.forward": 1,
        "Model.static": 1,
        "Model.made": 1,
        "later": 1,
        "numbers": 1,
        "stream": 3,
        "fails": 1,
    }
    assert {name: names.count(name) for name in expected} == expected
    assert (kinds["named"], kinds["plain"]) == ("compute", "host")
    # What can be suspended is not said to occupy its thread.
    threads = dict(zip(names, timeline["ranges"]["thread"].tolist(), strict=True))
    assert threads["later"] == threads["stream"] == threads["numbers"] == UNKNOWN
    assert threads["plain"] != UNKNOWN


def test_the_same_code_runs_outside_a_trace(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_USES)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("driven\n", "")


def test_outside_a_trace_a_probe_is_the_function_itself() -> None:
    def function() -> None: ...

    assert rca_llm.probe(function) is function
    assert rca_llm.probe("name")(function) is function


def test_span_details_are_recorded(tmp_path: Path) -> None:
    code = (
        "from rca_llm import record, span\n"
        "with span('load', 'file', request='A', step=3, bytes=4096, path='/w/x'): pass\n"
        "with span('plain'): pass\n"
        "record('sched_start')\n"
        "record('queue', request='B', waiting=3, usage=0.25)\n"
    )
    timeline = trace_code(tmp_path, code).timeline()
    ranges = timeline["ranges"]
    names = texts(timeline, "ranges", "name")
    row, plain = names.index("load"), names.index("plain")
    columns = ("name", "kind", "request", "path", "domain")
    assert [timeline.text(int(ranges[c][row])) for c in columns] == [
        "load",
        "file",
        "A",
        "/w/x",
        "probe",
    ]
    assert [int(ranges[c][row]) for c in ("step", "bytes")] == [3, 4096]
    assert [int(ranges[c][plain]) for c in ("step", "bytes", "path", "request")] == [
        UNKNOWN,
        UNKNOWN,
        -1,
        -1,
    ]
    assert texts(timeline, "marks", "name") == ["sched_start", "queue"]
    assert texts(timeline, "marks", "request") == [None, "B"]
    assert _samples(timeline, "queue.") == {"queue.waiting": 3.0, "queue.usage": 0.25}


def _samples(timeline: Timeline, prefix: str) -> dict[str, float]:
    metrics = texts(timeline, "samples", "metric")
    values = timeline["samples"]["value"].tolist()
    pairs = zip(metrics, values, strict=True)
    return {str(metric): value for metric, value in pairs if str(metric).startswith(prefix)}


_FOLLOW = """
import asyncio, multiprocessing, os, threading
from concurrent.futures import ThreadPoolExecutor
from rca_llm import request, span

def work(name):
    with span(name): pass

async def task(name):
    await asyncio.sleep(0.001)
    work(name)

async def serve(id):
    with request(id):
        await asyncio.gather(task(f"task {id}"), asyncio.to_thread(work, f"to_thread {id}"))
        await asyncio.get_running_loop().run_in_executor(None, work, f"executor {id}")

async def main():
    await asyncio.gather(serve("A"), serve("B"))

asyncio.run(main())
with request("C"):
    thread = threading.Thread(target=work, args=["thread C"]); thread.start(); thread.join()
    with ThreadPoolExecutor(1) as pool: pool.submit(work, "pool C").result()
    pid = os.fork()
    if pid == 0: work("fork C"); os._exit(0)
    os.waitpid(pid, 0)
    with request("D"): work("inner D")
    work("again C")
work("outside None")

def child(id):
    with request(id): work("child E")

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child, args=["E"])
    process.start(); process.join()
"""


def test_request_scopes_follow_tasks_threads_and_processes(tmp_path: Path) -> None:
    done = trace_code(tmp_path, _FOLLOW)
    assert (done.status, done.stderr) == (0, "")
    timeline = done.timeline()
    names, kinds, requests = (texts(timeline, "ranges", key) for key in ("name", "kind", "request"))
    # Other kinds are what the probes see of Python itself, which depends on the machine.
    rows = zip(names, kinds, requests, strict=True)
    spans = {str(name): request for name, kind, request in rows if kind == "host"}
    assert len(spans) >= 12
    assert {name: str(request) for name, request in spans.items()} == {
        name: name.split()[1] for name in spans
    }


def test_request_events_become_a_request(tmp_path: Path) -> None:
    code = (
        "from rca_llm import request\n"
        "r = request('A', prompt_tokens=12)\n"
        "r.client_submit(); r.arrival(); r.queued(); r.scheduled(); r.first_token()\n"
        "r.preempted(); r.resumed(); r.token(); r.token(2)\n"
        "r.finish(output_tokens=4)\n"
        "request('B').arrival(); request('B').abort()\n"
        "with request('C') as c: c.output_tokens = 1\n"
        "request('D').arrival()\n"
    )
    timeline = trace_code(tmp_path, code).timeline()
    table = timeline["requests"]
    ids = texts(timeline, "requests", "id")
    rows = {name: {c: int(table[c][i]) for c in table.schema} for i, name in enumerate(ids)}
    status = dict(zip(ids, texts(timeline, "requests", "status"), strict=True))
    assert status == {"A": "finished", "B": "aborted", "C": "finished", "D": None}
    first = rows["A"]
    times = [first[c] for c in ("client_submit", "arrival", "scheduled", "first_token", "finished")]
    assert times == sorted(times)
    assert len(set(times)) == 5
    assert (first["prompt_tokens"], first["output_tokens"]) == (12, 4)
    assert rows["D"]["finished"] == UNKNOWN
    assert rows["C"]["arrival"] < rows["C"]["finished"]
    assert texts(timeline, "tokens", "request") == ["A", "A", "A"]
    marks = list(
        zip(texts(timeline, "marks", "name"), texts(timeline, "marks", "request"), strict=True)
    )
    assert marks == [
        ("queued", "A"),
        ("scheduled", "A"),
        ("preempted", "A"),
        ("resumed", "A"),
        ("aborted", "B"),
    ]


def test_steps_hold_their_batch(tmp_path: Path) -> None:
    code = (
        "from rca_llm import step\n"
        "with step(7, {'A': ('prefill', 512), 'B': ('decode', 1)}, mode='eager'): pass\n"
        "with step(8, {'B': ('recompute', None)}) as s: s.mode = 'graph'\n"
        "with step(9): pass\n"
    )
    timeline = trace_code(tmp_path, code).timeline()
    steps, batch = timeline["steps"], timeline["batch"]
    assert steps["id"].tolist() == [7, 8, 9]
    assert texts(timeline, "steps", "mode") == ["eager", "graph", None]
    assert steps["batch"].tolist() == [2, 1, 0]
    assert batch["step"].tolist() == [0, 0, 1]
    assert texts(timeline, "batch", "request") == ["A", "B", "B"]
    assert texts(timeline, "batch", "phase") == ["prefill", "decode", "recompute"]
    assert batch["tokens"].tolist() == [512, 1, UNKNOWN]


def test_names_that_are_known_are_recorded_as_new_ones_are(tmp_path: Path) -> None:
    """The first step and event of a name go through Python, those behind them through C."""
    code = (
        "import os\n"
        "from rca_llm import request, step\n"
        "batch = {'A': ('prefill', 512), 'B': ('decode', 1), 'C': ('odd', 1 << 70)}\n"
        "for number in range(3):\n"
        "    with step(number, batch, mode='eager') as s:\n"
        "        s.mode = 'graph'\n"
        "        request('A').token(3); request('B').token(1 << 70)\n"
        "        if not os.fork(): s.__exit__(None, None, None); os._exit(0)\n"
        "        os.wait()\n"
        "with step(1 << 70, batch): pass\n"
    )
    timeline = trace_code(tmp_path, code).timeline()
    steps, batch = timeline["steps"], timeline["batch"]
    assert steps["id"].tolist() == [0, 1, 2, -1]
    assert texts(timeline, "steps", "mode") == ["graph", "graph", "graph", None]
    assert (steps["start"] < steps["end"]).all()
    assert texts(timeline, "batch", "request") == ["A", "B", "C"] * 4
    assert texts(timeline, "batch", "phase") == ["prefill", "decode", None] * 4
    assert batch["tokens"].tolist() == [512, 1, UNKNOWN] * 4
    assert texts(timeline, "tokens", "request") == ["A"] * 3 + ["B"] * 3


def test_garbage_collections_are_spans(tmp_path: Path) -> None:
    code = "import gc\nkeep = [[] for _ in range(300_000)]\ngc.collect()\n"
    timeline = trace_code(tmp_path, code).timeline()
    rows = zip(texts(timeline, "ranges", "name"), texts(timeline, "ranges", "kind"), strict=True)
    assert {name for name, kind in rows if kind == "gc"} == {"gc"}


@pytest.mark.parametrize("name", ["probe", "span", "record", "request", "step"])
def test_public_names_have_docs(name: str) -> None:
    assert inspect.getdoc(getattr(rca_llm, name))


def test_scopes_outside_a_trace_do_nothing() -> None:
    with rca_llm.request("A", prompt_tokens=3) as request, rca_llm.step(1, {"A": ("decode", 1)}):
        request.first_token()
        request.finish(output_tokens=2)
    assert (request.prompt_tokens, request.output_tokens) == (3, 2)

    async def use() -> None:
        async with asyncio.timeout(5) if sys.version_info >= (3, 11) else asyncio.Lock():
            with rca_llm.span("x"):
                await asyncio.sleep(0)

    asyncio.run(use())
