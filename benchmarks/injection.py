"""The matrix of injected causes on the CPU: is the true one named first, and is its share right?

    python benchmarks/injection.py [--causes gc,queue] [--seeds 5] [--clean 20] [--write]

Every cause runs in three sizes with every seed, traced by `rca-llm inject`; each run is reported
and compared with its `truth.json`. The cause is also removed for real (`--without`, same load, seed
and work, in turns), and what that saves is compared with what the replay predicts. Rows go to
`DIR/rows.jsonl` as they come, so that a run that was interrupted goes on where it was; `--write`
puts the tables into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from matrix import OWN_LOAD, tables, whatif_figures, whatif_table  # noqa: E402

from rca_llm.inject.arithmetic import PRODUCTS, Arithmetic  # noqa: E402
from rca_llm.inject.catalogue import CAUSES  # noqa: E402
from rca_llm.inject.verdict import Row, figures, judged  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
NOT_RUN = "not run"


def main() -> None:
    """Run what is missing, then tabulate."""
    parser = argparse.ArgumentParser(description=__doc__)
    cpu = [cause.name for cause in CAUSES.values() if not cause.gpu and cause.name != "clean"]
    parser.add_argument("--causes", default=",".join(cpu))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("injection"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--realtime", action="store_true", help="run before all else (chrt -f 10)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ[PRODUCTS] = str(unit(given.out / "unit"))
    done = kept(given.out / "rows.jsonl")
    for cause, size, seed in plan(given):
        if (cause, size, seed) in done:
            continue
        begun = time.monotonic()
        row = one(cause, size, seed, given.out, first=given.realtime)
        done[cause, size, seed] = row
        with (given.out / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.document()) + "\n")
        print(
            *(row.cause, row.magnitude, row.seed, row.rank, row.hints[:4], row.truth, row.said),
            *(row.note, f"{time.monotonic() - begun:.1f} s"),
            flush=True,
        )
    rows = list(done.values())
    print(json.dumps(figures(rows) | whatif_figures(rows), indent=1))
    if given.write:
        write(rows, given)


def unit(path: Path) -> int:
    """The products that make a unit of work, the same for every run, also of one that goes on."""
    if not path.exists():
        arithmetic = Arithmetic()
        arithmetic.warm_up()
        path.write_text(f"{arithmetic.products}\n", encoding="ascii")
    return int(path.read_text(encoding="ascii"))


def plan(given: argparse.Namespace) -> list[tuple[str, float, int]]:
    """Every run, seeds outermost, so that what drifts concerns all causes alike."""
    wanted = [name for name in given.causes.split(",") if name]
    runs = [
        (name, size, seed)
        for seed in range(given.seeds)
        for name in wanted
        for size in CAUSES[name].magnitudes
    ]
    return runs + [("clean", 1.0, seed) for seed in range(given.clean)]


def kept(path: Path) -> dict[tuple[str, float, int], Row]:
    """The rows of an earlier run; what did not run then is tried again."""
    if not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    ran = [row for row in rows if not row.note.startswith(NOT_RUN)]
    return {(row.cause, row.magnitude, row.seed): row for row in ran}


def one(cause: str, size: float, seed: int, out: Path, *, first: bool) -> Row:
    """One run with the cause and one without, in turns which comes first.

    `first`: on a busy machine, before other programs. A cause that changes the load itself is left
    out twice: between the two runs lies what chance makes of the same load.
    """
    from rca_llm.readers import load

    before = ["chrt", "-f", "10"] if first and not cause.startswith("cpu_") else []
    average, clean = os.getloadavg()[0], list[int]()
    place = CAUSES[cause].magnitudes.index(size)
    turns = [] if cause == "clean" else [seed + place] * (2 if cause in OWN_LOAD else 1)
    for _ in [turn for turn in turns if turn % 2]:
        clean += without(before, cause, size, seed, out)
    status, truth = inject(before, cause, size, seed, out / "with.rca")
    for _ in [turn for turn in turns if not turn % 2]:
        clean += without(before, cause, size, seed, out)
    if truth is None:
        note = f"{NOT_RUN}: status {status[0]} {status[1]}"
        return Row(cause, size, seed, None, [], None, None, [], note=note, load=average)
    report = load(out / "with.rca").attribute()
    more: dict[str, Any] = {"with_ns": truth["latency_ns"], "without_ns": tuple(clean)}
    if cause != "clean":
        more["predicted_ns"] = predicted(report, truth)
    return judged(report.summary, truth, load=average, **more)


def without(before: list[str], cause: str, size: float, seed: int, out: Path) -> list[int]:
    """The summed latencies of the same load with the cause removed; nothing where it failed."""
    _, truth = inject(before, cause, size, seed, out / "without.rca", "--without")
    return [] if truth is None else [truth["latency_ns"]]


def inject(
    before: list[str], cause: str, size: float, seed: int, target: Path, *options: str
) -> tuple[tuple[int, str], dict[str, Any] | None]:
    """Run a cause traced; its status, and its truth where there is one."""
    shutil.rmtree(target, ignore_errors=True)
    call = [sys.executable, "-m", "rca_llm", "inject", cause, "--magnitude", str(size)]
    call += ["--seed", str(seed), "-o", str(target), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [*before, *call], env=env, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return (-1, "took more than two minutes"), None
    path = target / "truth.json"
    told = json.loads(path.read_text()) if path.exists() else None
    return (done.returncode, done.stderr[-200:].strip()), told


def predicted(report: Any, truth: dict[str, Any]) -> float | None:
    """What the replay says that removing the cause saves, summed over the requests, ns."""
    from rca_llm.whatif import DERIVED, whatif

    if any(part in DERIVED for part in truth["parts"]):
        own = [row for row in report.summary["hints"] if row["id"] in truth["hints"]]
        saving: float | None = own[0]["saving_ns"] if own else None
        return saving
    answer = whatif(report, dict.fromkeys(truth["parts"], 0.0))
    saved: list[int] = [row["latency_ns"] - row["new_latency_ns"] for row in answer["requests"]]
    return sum(saved)


GOALS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "first": ("at least 0.95", lambda value: value >= 0.95),
    "first_two": ("at least 0.99", lambda value: value >= 0.99),
    "points_median": ("at most 3", lambda value: value <= 3),
    "points_worst": ("at most 8", lambda value: value <= 8),
    "clean_quiet": ("at least 0.95", lambda value: value >= 0.95),
    "whatif_median": ("at most 10 %", lambda value: value <= 10),
    "whatif_worst": ("at most 25 %", lambda value: value <= 25),
}
"""What was set beforehand, in words and as a test."""

ABOUT_REMOVAL = """\
### Removing the cause for real

Predicted by the replay, and measured by running the same load and seed without the cause in a
process of its own, in turns; latencies summed over the requests, medians over the seeds. *Clean
against clean* is 1.48 times the median difference of two runs of one load without the cause. Where
the saving is not more than three times that, nothing can be said of the prediction: it is listed
and not judged.
"""


def write(rows: list[Row], given: argparse.Namespace) -> None:
    """Put the tables between the marks of the page."""
    begin, end = "<!-- injection: begin -->", "<!-- injection: end -->"
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    parts = [_about(rows, given), _goals(rows), tables(rows), ABOUT_REMOVAL, whatif_table(rows)]
    body = "\n".join(part.rstrip() + "\n" for part in parts)
    PAGE.write_text(f"{head}{begin}\n\n{body}\n{end}{tail}", encoding="utf-8")


def _about(rows: list[Row], given: argparse.Namespace) -> str:
    """Which machine, when, which command, and what else the machine did."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    call = f"`python benchmarks/injection.py --seeds {given.seeds} --clean {given.clean}"
    call += " --realtime`" if given.realtime else "`"
    loads = sorted(row.load for row in rows if row.load is not None)
    load = f" Load average {loads[0]:.1f} to {loads[-1]:.1f}." if loads else ""
    machine = f"{os.cpu_count()}-core {platform.machine()} VM"
    return f"{machine}, {day}, {call}.{load}\n"


def _goals(rows: list[Row]) -> str:
    """Every figure, with its goal and whether it is met."""
    lines = ["| figure | value | goal | |", "|---|---|---|---|"]
    for name, value in (figures(rows) | whatif_figures(rows)).items():
        goal, met = GOALS.get(name, ("", None))
        verdict = "" if met is None or value is None else "met" if met(value) else "missed"
        lines.append(f"| {name} | {_shown(value)} | {goal} | {verdict} |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "–" if value is None else str(value)


if __name__ == "__main__":
    main()
