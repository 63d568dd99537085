"""What a probe costs: `span`, `record` and `probe` in and out of a trace, beside other tools.

    python benchmarks/probes.py [--rounds N] [--json FILE]

Each column is a process of its own: outside a trace; in a trace with the fast path of this tree,
compiled here where a C compiler is found; in a trace in pure Python; and that with an NVTX tool
listening (nvtx_tool.c, which does nothing). In a process all rows take turns, round by round, so
that a machine that speeds up and slows down does so for all of them. A figure is ns of processor
time for one use (a busy machine makes a process wait, which is nobody's cost), the empty loop taken
off: the median over the rounds, with the quartiles; under the table the same against the goals, as
the ratio of each round, and the least. About half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NATIVE = ROOT / "probes" / "native"
USES = 10_000
FAST = "in a trace, C"
GOALS = {"rca_llm.span": (120, "nvtx.annotate"), "rca_llm.record": (60, "perf_counter_ns")}
"""ns at most by the C path, and what each is paired with."""

Row = Callable[[int], None]


def floors() -> dict[str, Row]:
    """What Python itself asks for: the least that a span could cost."""

    class Empty:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    empty = Empty()
    words = memoryview(bytearray(8 * 4)).cast("q")

    def loop(n: int) -> None:
        for _ in range(n):
            pass

    def empty_with(n: int) -> None:
        for _ in range(n):
            with empty:
                pass

    def stores(n: int) -> None:
        for _ in range(n):
            words[0] = perf_counter_ns()
            words[1] = perf_counter_ns()
            words[3] = 1

    def clock(n: int) -> None:
        for _ in range(n):
            perf_counter_ns()

    return {
        "(loop)": loop,
        "perf_counter_ns": clock,
        "empty with": empty_with,
        "2 clock reads, 3 stores": stores,
    } | in_c()


def in_c() -> dict[str, Row]:
    """The least that C can do; nothing where span_floor.c is not compiled."""
    try:
        import span_floor  # type: ignore[import-not-found]  # compiled by `columns`
    except ImportError:
        return {}
    idle, bare, timed, mark = (
        getattr(span_floor, name) for name in ("idle", "bare", "timed", "mark")
    )

    def usual(n: int) -> None:
        for _ in range(n):
            with idle("x"):
                pass

    def unbound(n: int) -> None:
        for _ in range(n):
            with bare("x"):
                pass

    def two_reads(n: int) -> None:
        for _ in range(n):
            with timed("x"):
                pass

    def one_read(n: int) -> None:
        for _ in range(n):
            mark("x")

    return {
        "empty context manager in C": usual,
        "the same without bound methods": unbound,
        "C that reads the clock twice": two_reads,
        "C function that reads the clock": one_read,
    }


def ours() -> dict[str, Row]:
    """Our own calls, as a program imports them."""
    from rca_llm import probe, record, span

    @probe
    def probed() -> None: ...

    @probe
    async def probed_coroutine() -> None: ...

    async def coroutine() -> None: ...

    @probe
    def probed_generator() -> Iterator[None]:
        yield

    def generator() -> Iterator[None]:
        yield

    def plain() -> None: ...

    def spans(n: int) -> None:
        for _ in range(n):
            with span("x"):
                pass

    def spans_of_kind(n: int) -> None:
        for _ in range(n):
            with span("x", "file"):
                pass

    def spans_with_bytes(n: int) -> None:
        for _ in range(n):
            with span("x", "file", bytes=4096, path="/weights"):
                pass

    def marks(n: int) -> None:
        for _ in range(n):
            record("x")

    def marks_with_number(n: int) -> None:
        for _ in range(n):
            record("x", waiting=3)

    def calls(n: int) -> None:
        for _ in range(n):
            probed()

    def plain_calls(n: int) -> None:
        for _ in range(n):
            plain()

    return {
        "function call": plain_calls,
        "rca_llm.probe": calls,
        "coroutine": awaited(coroutine),
        "rca_llm.probe of a coroutine": awaited(probed_coroutine),
        "generator": exhausted(generator),
        "rca_llm.probe of a generator": exhausted(probed_generator),
        "rca_llm.span": spans,
        "rca_llm.span kind=": spans_of_kind,
        "rca_llm.span bytes=, path=": spans_with_bytes,
        "rca_llm.record": marks,
        "rca_llm.record one number": marks_with_number,
    }


def awaited(function: Callable[[], Coroutine[Any, Any, None]]) -> Row:
    """Runs coroutines to their end, without an event loop."""

    def row(n: int) -> None:
        for _ in range(n):
            for _ in function().__await__():
                pass

    return row


def exhausted(function: Callable[[], Iterator[None]]) -> Row:
    """Runs generators to their end."""

    def row(n: int) -> None:
        for _ in range(n):
            for _ in function():
                pass

    return row


def in_requests() -> dict[str, Row]:
    """The same inside a request scope, whose id goes into every record."""
    from rca_llm import record, request, span

    def loop(n: int) -> None:
        for _ in range(n):
            pass

    def spans(n: int) -> None:
        with request("A"):
            for _ in range(n):
                with span("x"):
                    pass

    def marks(n: int) -> None:
        with request("A"):
            for _ in range(n):
                record("x")

    return {
        "(loop)": loop,
        "rca_llm.span in a request": spans,
        "rca_llm.record in a request": marks,
    }


def rivals() -> dict[str, Row]:
    """The same done with other tools, those that are installed."""
    rows: dict[str, Row] = {}
    for add in (_nvtx, _opentelemetry, _viztracer):
        try:
            rows.update(add())
        except ImportError as error:
            print(f"left out: {error}", file=sys.stderr)
    return rows


def _nvtx() -> dict[str, Row]:
    import nvtx

    def annotations(n: int) -> None:
        for _ in range(n):
            with nvtx.annotate("x"):
                pass

    return {"nvtx.annotate": annotations}


def _opentelemetry() -> dict[str, Row]:
    from opentelemetry.sdk.trace import TracerProvider

    class Drop:
        """Ends spans like a batch processor whose queue is full: no export is measured."""

        def on_start(self, *_: Any, **__: Any) -> None: ...
        def on_end(self, *_: Any) -> None: ...
        def _on_ending(self, *_: Any) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self, *_: Any) -> bool:
            return True

    provider = TracerProvider()
    provider.add_span_processor(Drop())  # type: ignore[arg-type]  # it is called, never checked
    tracer = provider.get_tracer("x")

    def spans(n: int) -> None:
        for _ in range(n):
            with tracer.start_as_current_span("x"):
                pass

    return {"OpenTelemetry SDK span": spans}


def _viztracer() -> dict[str, Row]:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0, tracer_entries=200_000, log_sparse=True)

    def events(n: int) -> None:
        tracer.start()
        for _ in range(n):
            with tracer.log_event("x"):
                pass
        tracer.stop()
        tracer.clear()

    return {"viztracer log_event": events}


def measure(rounds: int) -> dict[str, list[float]]:
    """ns a use for every row, one figure a round, the loop taken off."""
    # Request scopes last: from the first one on, every span looks for its request.
    found = _measure({**floors(), **rivals(), **ours()}, rounds)
    return {**found, **_measure(in_requests(), rounds)}


def _measure(rows: dict[str, Row], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(rounds + 1):
        for name, row in rows.items():
            began = thread_time_ns()
            row(USES)
            spent = (thread_time_ns() - began) / USES
            if number:  # the first round only warms up
                found[name].append(spent)
    loop = found.pop("(loop)")
    return {
        name: [spent - empty for spent, empty in zip(times, loop, strict=True)]
        for name, times in found.items()
    }


def in_child(
    rounds: int, wrapper: list[str], env: dict[str, str], folder: Path
) -> dict[str, list[float]]:
    """`measure` in a process of its own."""
    command = [*wrapper, sys.executable, __file__, "--measure", "--rounds", str(rounds)]
    # -m looks for rca_llm in the current folder first, which must not be this checkout.
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, check=True)
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


def compile_c(source: Path, out: Path, *flags: str) -> bool:
    """Compile a shared library; whether there is a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return False
    command = [compiler, "-shared", "-fPIC", "-O2", "-std=c11", "-D_GNU_SOURCE", "-pthread"]
    subprocess.run([*command, "-o", out, source, *flags], check=True)
    return True


def for_python(source: Path, folder: Path) -> bool:
    """Compile an extension module into a folder; whether that is possible here."""
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        return False
    out = folder / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"
    return compile_c(source, out, f"-I{include}", f"-I{NATIVE}", "-fvisibility=hidden", "-DNDEBUG")


def copy(folder: Path) -> Path:
    """The packages without anything compiled for Python."""
    for name in ("rca_llm", "probes", "exporters"):
        leave = shutil.ignore_patterns("_*.so", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=leave)
    return folder


def columns(rounds: int) -> dict[str, dict[str, list[float]]]:
    """The figures of every column."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RCA_LLM_")}
    trace = [sys.executable, "-m", "rca_llm", "trace", "--force"]
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [*trace, "-o", str(folder / "run"), "--"]
        pure, fast = copy(folder / "pure"), copy(folder / "fast")
        for_python(HERE / "span_floor.c", folder)
        paths = [str(folder), *filter(None, [env.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join([str(fast), *paths])
        found["outside"] = in_child(rounds, [], env, fast)
        if for_python(NATIVE / "_recorder.c", fast / "probes" / "native"):
            found[FAST] = in_child(rounds, command, env, fast)
        env["PYTHONPATH"] = os.pathsep.join([str(pure), *paths])
        found["in a trace, Python"] = in_child(rounds, command, env, pure)
        tool = folder / "libnvtxtool.so"
        if compile_c(HERE / "nvtx_tool.c", tool):
            env["NVTX_INJECTION64_PATH"] = str(tool)
            found["Python, with NVTX"] = in_child(rounds, command, env, pure)
        else:
            print("left out: C, and an NVTX tool (no C compiler)", file=sys.stderr)
    return found


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """A Markdown table: median (quartiles) in ns."""
    names = list(dict.fromkeys(name for column in found.values() for name in column))
    lines = ["| ns a use | " + " | ".join(found) + " |", "|---|" + "---:|" * len(found)]
    for name in names:
        cells = [_cell(column.get(name, [])) for column in found.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(times: list[float]) -> str:
    if len(times) < 2:
        return "–"
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.0f} ({low:.0f}–{high:.0f})"


def goals(found: dict[str, list[float]]) -> str:
    """Each goal with its figure, its least, and its ratio to what it is paired with."""
    lines: list[str] = []
    for name, (most, other) in GOALS.items():
        times, paired = found[name], found.get(other)
        line = f"{name}: goal {most} ns, median {_cell(times)}, least {min(times):.0f}"
        if paired is not None:
            ratios = [ours / theirs for ours, theirs in zip(times, paired, strict=True)]
            cuts = statistics.quantiles(ratios, n=4)
            line += f"; over {other} {cuts[1]:.2f} ({cuts[0]:.2f}–{cuts[2]:.2f})"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.rounds)))
        return
    found = columns(options.rounds)
    machine = (
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors"
    )
    print(f"{machine}; median (quartiles) of {options.rounds} rounds of {USES} uses\n")
    print(table(found))
    if FAST in found:
        print("\n" + goals(found[FAST]))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine, "ns": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
