"""The matrix of injected causes on the CPU: is the true one named first, and is its share right?

    python benchmarks/injection.py [--causes gc,queue] [--seeds 5] [--clean 20] [--write]

A process serves with a cause in three sizes, under a trace, and before and after each the same
load, seed and work without it. The stretch of every size is reported and compared with its truth;
what it took longer than the stretches before and after is compared with what the replay predicts
to be saved without the cause. Clean runs have a process each. Rows go to `DIR/rows.jsonl` as they
come, so that a run that was interrupted goes on where it was; `--write` puts the tables into
docs/accuracy.md.
Sixty processes of some 13 s and twenty of 4 s make about a quarter of an hour.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from matrix import tables, whatif_figures, whatif_table  # noqa: E402

from rca_llm.inject import turns  # noqa: E402
from rca_llm.inject.arithmetic import PRODUCTS, Arithmetic  # noqa: E402
from rca_llm.inject.catalogue import CAUSES  # noqa: E402
from rca_llm.inject.verdict import Row, figures, judged  # noqa: E402
from rca_llm.inject.windows import between  # noqa: E402
from rca_llm.readers import load  # noqa: E402
from rca_llm.report import Report  # noqa: E402
from rca_llm.trace import Trace  # noqa: E402
from rca_llm.whatif import DERIVED, whatif  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
NOT_RUN = "not run"
SHARING = ("cpu_quota", "cpu_hog", "tokeniser")
"""Causes in which threads share CPUs, which they do not when they run before all else."""

RCA_LLM = (sys.executable, "-m", "rca_llm")
SLACK_NS = 300_000
"""Runs of a process are further apart than this; a request arrives a little before it says so."""


def main() -> None:
    """Run what is missing, then tabulate."""
    given = _given()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ[PRODUCTS] = str(unit(given.out / "unit"))
    rows = kept(given.out / "rows.jsonl")
    done = {(row.cause, row.magnitude, row.seed) for row in rows}
    for cause, sizes, seed in plan(given):
        missing = [size for size in sizes if (cause, size, seed) not in done]
        if not missing:
            continue
        begun = time.monotonic()
        run = clean(seed, given) if cause == "clean" else in_turns(cause, missing, seed, given)
        with (given.out / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row.document()) + "\n" for row in run)
        rows += run
        _tell(run, time.monotonic() - begun)
    print(json.dumps(figures(rows) | whatif_figures(rows), indent=1))
    if given.write:
        write(rows, given)


def _given() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    cpu = [cause.name for cause in CAUSES.values() if not cause.gpu and cause.name != "clean"]
    parser.add_argument("--causes", default=",".join(cpu))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("injection"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--realtime", action="store_true", help="run before all else (chrt -f 10)")
    return parser.parse_args()


def _tell(run: list[Row], seconds: float) -> None:
    """A line for every row, and how long they took together."""
    for row in run:
        print(row.cause, row.magnitude, row.seed, row.rank, row.hints[:4], row.truth, row.said)
        if row.predicted_ns is not None and row.with_ns is not None and row.without_ns:
            without = [round(ns / 1e6) for ns in row.without_ns]
            said, measured = round(row.predicted_ns / 1e6), round(row.with_ns / 1e6)
            print(f"  predicted {said} ms; with {measured}, without {without} ms")
    print(*(row.note for row in run if row.note), f"  {seconds:.1f} s", flush=True)


def unit(path: Path) -> int:
    """The products that make a unit of work, the same for every run, also of one that goes on."""
    if not path.exists():
        arithmetic = Arithmetic()
        arithmetic.warm_up()
        path.write_text(f"{arithmetic.products}\n", encoding="ascii")
    return int(path.read_text(encoding="ascii"))


def plan(given: argparse.Namespace) -> list[tuple[str, tuple[float, ...], int]]:
    """Every process, seeds outermost, so that what drifts concerns all causes alike."""
    wanted = [name for name in given.causes.split(",") if name]
    runs: list[tuple[str, tuple[float, ...], int]] = [
        (name, CAUSES[name].magnitudes, seed) for seed in range(given.seeds) for name in wanted
    ]
    return runs + [("clean", (1.0,), seed) for seed in range(given.clean)]


def kept(path: Path) -> list[Row]:
    """The rows of an earlier run; what did not run then is tried again."""
    if not path.exists():
        return []
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return [row for row in rows if not row.note.startswith(NOT_RUN)]


def clean(seed: int, given: argparse.Namespace) -> list[Row]:
    """One run of a process with no cause in it."""
    average, target = os.getloadavg()[0], given.out / "with.rca"
    call = [*RCA_LLM, "inject", "clean", "--seed", str(seed), "-o", str(target)]
    failed = called(call, target, first=given.realtime)
    path = target / "truth.json"
    if failed or not path.exists():
        return [_not_run("clean", 1.0, seed, failed, average)]
    report, truth = load(target).attribute(), json.loads(path.read_text())
    return [judged(report.summary, truth, load=average, with_ns=truth["latency_ns"])]


def in_turns(cause: str, sizes: Sequence[float], seed: int, given: argparse.Namespace) -> list[Row]:
    """A process that serves with every size and, before and after each, without the cause."""
    average, target, truths = os.getloadavg()[0], given.out / "with.rca", given.out / "truths"
    shutil.rmtree(truths, ignore_errors=True)
    call = [sys.executable, "-m", "rca_llm.inject", cause, "--seed", str(seed)]
    call += ["--in-turns", ",".join(map(str, sizes)), "--truth", str(truths)]
    if CAUSES[cause].family == "ranks":  # they write what they did themselves
        call += ["--folder", str(truths)]
    else:
        call = [*RCA_LLM, "trace", "--force", "-o", str(target), "--", *call]
    failed = called(call, target, first=given.realtime and cause not in SHARING)
    found = {turn.truth["magnitude"]: turn for turn in turns.found(truths)}
    missed = [_not_run(cause, size, seed, failed, average) for size in sizes if size not in found]
    if not found:
        return missed
    whole = None if CAUSES[cause].family == "ranks" else load(target)
    return [_row(turn, whole, truths, average) for turn in found.values()] + missed


def _row(turn: turns.Turn, whole: Trace | None, truths: Path, average: float) -> Row:
    """What a report of one run with the cause says of it."""
    truth = turn.truth
    if whole is None:
        part = load(truths / f"turn-{turn.number}")
    else:
        window = truth["window"]
        start, end = window["monotonic_start_ns"], window["monotonic_end_ns"]
        part = between(whole, start - SLACK_NS, end + SLACK_NS)
    report = part.attribute()
    return judged(
        report.summary,
        truth,
        load=average,
        with_ns=truth["latency_ns"],
        without_ns=tuple(one["latency_ns"] for one in turn.without),
        predicted_ns=predicted(report, truth),
    )


def _not_run(cause: str, size: float, seed: int, failed: str, average: float) -> Row:
    note = f"{NOT_RUN}: {failed or 'it left no truth'}"
    return Row(cause, size, seed, None, [], None, None, [], note=note, load=average)


def called(call: list[str], target: Path, *, first: bool) -> str:
    """Run a command, `first` before other programs; what went wrong, or nothing."""
    shutil.rmtree(target, ignore_errors=True)
    before, env = ["chrt", "-f", "10"] if first else [], {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [*before, *call], env=env, capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return "took more than five minutes"
    return f"status {done.returncode} {done.stderr[-200:].strip()}" if done.returncode else ""


def predicted(report: Report, truth: dict[str, Any]) -> float | None:
    """What the replay says that removing the cause saves, summed over the requests, ns.

    None where it says nothing: of a queue also where a hint only knows the most that it can be.
    """
    if any(part in DERIVED for part in truth["parts"]):
        own = [row for row in report.summary["hints"] if row["id"] in truth["hints"]]
        told = own and own[0]["evidence"].get("larger_batches_considered", True)
        saving: float | None = own[0]["saving_ns"] if told else None
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

Predicted by the replay, and measured beside the same load and seed without the cause, served in
the same process right before and right after; latencies summed over the requests, medians over
the seeds. *Clean against clean* is 1.48 times the median difference of those two runs without the
cause. Where the saving is not more than three times that, nothing can be said of the prediction:
it is listed and not judged. Pairs without a prediction, as where the engine with a queue cannot be
given back within 10 %, are counted above and left out here.
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
