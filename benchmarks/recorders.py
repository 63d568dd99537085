"""What two versions of the probes cost, in turns in one process: both meet the same machine.

    python benchmarks/recorders.py FOLDER FOLDER [--rounds N]

Each folder is a checkout that was built: this one, say, and what an earlier commit makes by
`git archive COMMIT | tar x -C FOLDER` and, there, `python setup.py build_ext --inplace`. Figures
are ns of processor time for one use, the empty loop taken off: median (quartiles), least, and the
median of the second over the first, round by round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

USES = 10_000

Row = Callable[[], None]


def load(name: str, folder: Path, run: Path) -> Any:
    """The probes of a folder under a name of their own, recording into a run directory."""
    (run / "segments").mkdir(parents=True)
    (run / "control").write_bytes(b"\1".ljust(4096, b"\0"))
    path = folder / "probes" / "__init__.py"
    spec = spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    assert spec is not None
    module: Any = module_from_spec(spec)
    sys.modules[name] = module
    # It is a trace's own by this name only.
    source = path.read_text().replace('"_rca_llm_probes"', repr(name))
    exec(compile(source, str(path), "exec"), module.__dict__)
    module.recorder.start(str(run))
    return module


def rows(probes: Any) -> dict[str, Row]:
    """What is measured of them."""
    span, record = probes.span, probes.record
    call = probes.probe(_nothing)

    def spans() -> None:
        for _ in range(USES):
            with span("x"):
                pass

    def rich_spans() -> None:
        for _ in range(USES):
            with span("x", "file", bytes=4096, path="/weights"):
                pass

    def marks() -> None:
        for _ in range(USES):
            record("x")

    def marks_with_number() -> None:
        for _ in range(USES):
            record("x", waiting=3)

    def calls() -> None:
        for _ in range(USES):
            call()

    return {
        "span": spans,
        "span bytes=, path=": rich_spans,
        "record": marks,
        "record one number": marks_with_number,
        "probe": calls,
    }


def _nothing() -> None: ...


def loop() -> None:
    """What all rows have in common."""
    for _ in range(USES):
        pass


def clock() -> None:
    """How fast the machine is at that time."""
    for _ in range(USES):
        perf_counter_ns()


def spent(row: Row) -> float:
    """ns of processor time for one use."""
    began = thread_time_ns()
    row()
    return (thread_time_ns() - began) / USES


def measure(first: dict[str, Row], second: dict[str, Row], rounds: int) -> dict[str, list[Any]]:
    """A pair of figures for every row and round; who begins changes from round to round."""
    found: dict[str, list[Any]] = {"perf_counter_ns": [], **{name: [] for name in first}}
    for number in range(rounds + 1):
        empty = spent(loop)
        figures: dict[str, Any] = {"perf_counter_ns": (spent(clock) - empty,) * 2}
        for name in first:
            pair = [first[name], second[name]]
            times = [spent(row) - empty for row in (pair if number % 2 else pair[::-1])]
            figures[name] = tuple(times if number % 2 else times[::-1])
        for name, pair_of_times in figures.items():
            if number:  # the first round only warms up
                found[name].append(pair_of_times)
    return found


def _told(times: tuple[float, ...]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.0f} ({low:.0f}–{high:.0f}), least {min(times):.0f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs=2, type=Path)
    parser.add_argument("--rounds", type=int, default=41)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        both = [
            rows(load(f"_probes_{number}", folder.resolve(), Path(temporary, str(number))))
            for number, folder in enumerate(options.folders)
        ]
        found = measure(both[0], both[1], options.rounds)
    print("| ns a use | first | second | second over first |\n|---|---:|---:|---:|")
    for name, pairs in found.items():
        first, second = zip(*pairs, strict=True)
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"| {name} | {_told(first)} | {_told(second)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
