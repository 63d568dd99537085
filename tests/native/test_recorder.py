"""The C fast paths of spans write what the Python ones write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from rca_llm.probes import format as layout
from tests.native.conftest import COMPILER, HERE, NATIVE, compile_c
from tests.native.segments import Segment, read_run

PROBES = NATIVE.parent
INCLUDE = Path(sysconfig.get_paths()["include"])

SCRIPT = """
import gc, os, sys, threading, time
gc.disable()
probes = sys.modules["_rca_llm_probes"]
span, record, request, probe = probes.span, probes.record, probes.request, probes.probe
def work(count):
    for i in range(count):
        with span("plain"):
            with span("kind", "file"):
                record("instant")
        with span(f"name {i % 9}", kind="gc", request="asked"):
            pass
    with request("scope"):
        with span("inside"), span("other", request="asked"):
            record("marked"); record("numbers", tokens=3, share=0.5); record("named", request="x")
        with span("rich", step=7, bytes=100, path="/p"):
            pass
    try:
        with span("failed"):
            raise ValueError
    except ValueError:
        pass
    with span(name="keyword"), span("positional", "host", "asked", None):
        span("never entered")
@probe
def decorated():
    return 1
work(3000); decorated()
others = [threading.Thread(target=work, args=(50,)) for _ in range(3)]
[t.start() for t in others]; [t.join() for t in others]
outer = span("left in the parent"); outer.__enter__()
if os.fork() == 0:
    outer.__exit__(None, None, None)
    with span("child"):
        record("child mark")
    probes.recorder.close()
    os._exit(0)
os.wait()
outer.__exit__(None, None, None)
print(probes.recorder.fast is not None, type(span).__name__)
"""


@pytest.fixture(scope="module")
def fast_probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the probes with the extension built for this Python."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C compiler ({COMPILER})")
    if not INCLUDE.joinpath("Python.h").exists():
        pytest.skip("no Python.h")
    return compile_recorder(copy_probes(tmp_path_factory.mktemp("fast")))


def compile_recorder(probes: Path, *more: str) -> Path:
    """Build the extension into a copy of the probes, which is given back."""
    out = probes / "native" / f"_recorder{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ("-shared", "-fvisibility=hidden", f"-I{INCLUDE}")
    quiet = ("-Wno-cast-function-type", "-Wno-missing-field-initializers")
    compile_c(out, [NATIVE / "_recorder.c"], *flags, *quiet, *more)
    return probes


@pytest.fixture(scope="module")
def slow_probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the probes without it."""
    return copy_probes(tmp_path_factory.mktemp("slow"))


def copy_probes(folder: Path) -> Path:
    """A copy of the probes with nothing compiled."""
    probes = folder / "probes"
    shutil.copytree(PROBES, probes, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return probes


def run(
    probes: Path, folder: Path, code: str = SCRIPT, gate: bytes = b"\1", **variables: str
) -> tuple[str, Path]:
    """Run a script under the probes; what it printed and its run directory."""
    (folder / "segments").mkdir(parents=True)
    (folder / "control").write_bytes(gate.ljust(layout.CONTROL_BYTES, b"\0"))
    env = os.environ | {"RCA_LLM_RUN": str(folder), "PYTHONPATH": str(probes / "bootstrap")}
    env.pop("NVTX_INJECTION64_PATH", None)
    env |= variables
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, folder


def contents(segment: Segment) -> Counter[tuple[object, ...]]:
    """Records by what they say, their times left out.

    So are collections of the interpreter while it starts: a busy machine makes one long enough.
    """
    names = segment.names
    found: Counter[tuple[object, ...]] = Counter()
    for cell in segment.cells:
        if names.get(cell.e) in ("gc", "collected", "generation"):
            continue
        if cell.kind == layout.SPAN:
            texts = (names.get(cell.c), names.get(cell.d), names[cell.e])
            key = ("span", cell.flags, *texts, cell.a > 0, cell.b >= cell.a)
            found[key] += 1
        elif cell.kind == layout.MARK:
            found["mark", cell.flags, names.get(cell.c), names[cell.e], cell.a > 0] += 1
        elif cell.kind == layout.NUMBER:
            found["number", cell.flags, cell.b, names[cell.e]] += 1
    return found


def everything(folder: Path) -> Counter[tuple[object, ...]]:
    """The records of all segments of a run."""
    found: Counter[tuple[object, ...]] = Counter()
    for segment in read_run(folder):
        found += contents(segment)
    return found


def test_both_write_the_same_records(fast_probes: Path, slow_probes: Path, tmp_path: Path) -> None:
    said, fast = run(fast_probes, tmp_path / "fast")
    assert said == "True builtin_function_or_method\n"
    said, slow = run(slow_probes, tmp_path / "slow")
    assert said == "False function\n"
    assert everything(fast) == everything(slow)
    assert sum(everything(fast).values()) > 12000


def test_a_span_left_in_a_forked_child_stays_the_parents(fast_probes: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "span = sys.modules['_rca_llm_probes'].span\n"
        "for name in ('first', 'outer'):\n"
        "    with span(name): pass\n"
        "outer = span('outer'); outer.__enter__()\n"
        "if os.fork() == 0:\n"
        "    outer.__exit__(None, None, None); os._exit(0)\n"
        "os.wait(); os._exit(0)"
    )
    _, folder = run(fast_probes, tmp_path / "run", code)
    spans = [cell for segment in read_run(folder) for cell in segment.of(layout.SPAN)]
    assert sorted(cell.b > 0 for cell in spans) == [False, True, True]


def test_a_shut_gate_keeps_spans_out(fast_probes: Path, tmp_path: Path) -> None:
    _, folder = run(fast_probes, tmp_path / "run", gate=b"\0")
    # The gate is looked at once in 32 cells, and after a new name.
    assert sum(everything(folder).values()) < 1000


def test_wrong_calls_raise_as_in_python(
    fast_probes: Path, slow_probes: Path, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "span = sys.modules['_rca_llm_probes'].span\n"
        "for a, k in (((), {}), (('x',), {'what': 1}), (('x', 'host', None, 1, 2, '', 3), {})):\n"
        "    try:\n        span(*a, **k)\n    except TypeError as error:\n"
        "        print(type(error).__name__)\n"
        "with span(5): pass\n"
        "with span('x', kind=None): pass\n"
    )
    fast, _ = run(fast_probes, tmp_path / "fast", code)
    slow, _ = run(slow_probes, tmp_path / "slow", code)
    assert fast == slow == "TypeError\n" * 3


@pytest.mark.clocks
def test_times_are_those_of_the_one_clock_and_never_go_back(
    fast_probes: Path, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from time import perf_counter_ns as now, sleep\n"
        "span = sys.modules['_rca_llm_probes'].span\n"
        "around = []\n"
        "for i in range(20000):\n"
        "    before = now()\n"
        "    with span('timed'): pass\n"
        "    around.append((before, now()))\n"
        "    if i % 4000 == 0: sleep(0.02)\n"
        "print(around)"
    )
    said, folder = run(fast_probes, tmp_path / "run", code)
    (segment,) = read_run(folder)
    names = segment.names
    spans = [cell for cell in segment.of(layout.SPAN) if names[cell.e] == "timed"]
    around: list[tuple[int, int]] = json.loads(said.replace("(", "[").replace(")", "]"))
    assert len(spans) == len(around) == 20000
    told = [time for cell in spans for time in (cell.a, cell.b)]
    assert told == sorted(told)
    outside = sorted(
        max(before - cell.a, cell.b - after, 0)
        for cell, (before, after) in zip(spans, around, strict=True)
    )
    # Times between two looks at the clock are calculated: nearly all lie between its own.
    assert outside[len(outside) * 99 // 100] <= 100


def test_a_span_is_a_context_manager_in_every_way(
    fast_probes: Path, slow_probes: Path, tmp_path: Path
) -> None:
    code = (
        "import contextlib, sys\n"
        "span = sys.modules['_rca_llm_probes'].span\n"
        "with contextlib.ExitStack() as stack:\n"
        "    print(stack.enter_context(span('stack')) is not None)\n"
        "by_hand = span('by hand')\n"
        "print(by_hand.__enter__() is by_hand, by_hand.__exit__(None, None, None))\n"
        "of_type = span('of the type')\n"
        "print(type(of_type).__enter__(of_type) is of_type)\n"
        "print(type(of_type).__exit__(of_type, None, None, None))\n"
        "with contextlib.suppress(KeyError), span('raised'):\n"
        "    {}[1]\n"
        "try:\n"
        "    @span('no decorator')\n"
        "    def function(): pass\n"
        "except TypeError: print('TypeError')\n"
        "for name in ('closed twice', 'closed twice'):\n"
        "    twice = span(name)\n"
        "    with twice: pass\n"
        "    with twice: pass\n"
    )
    fast, in_c = run(fast_probes, tmp_path / "fast", code)
    slow, in_python = run(slow_probes, tmp_path / "slow", code)
    assert fast == slow == "True\nTrue None\nTrue\nNone\nTypeError\n"
    assert everything(in_c) == everything(in_python)


@pytest.mark.clocks
def test_the_clock_by_the_counter_is_the_clock_also_after_a_sleep(tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C compiler ({COMPILER})")
    program = tmp_path / "counter_clock"
    compile_c(program, [HERE / "counter_clock.c"], f"-I{NATIVE}")
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        went_back, outside_ns = map(int, line.split())
        assert went_back == 0
        assert outside_ns <= 100
    assert len(said.splitlines()) == 2
