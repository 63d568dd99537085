"""The matrix of injected causes on the CPU: is the true one named first, and is its share right?

    python benchmarks/injection.py [--causes gc,queue] [--seeds 5] [--clean 20] [--write]

Every cause runs in three sizes with every seed, traced by `rca-llm inject`; each run is reported
and compared with its `truth.json`. Then the cause is removed for real (`--without`, same load and
seed, in turns), and what that saves is compared with what the replay had predicted. Rows go to
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from matrix import tables, whatif_table  # noqa: E402

from rca_llm.inject.catalogue import CAUSES  # noqa: E402
from rca_llm.inject.verdict import Row, figures, judged  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
FIXED = {"queue": None}
"""Causes whose parts follow from others: what is predicted is the hint's own saving."""


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
    done = kept(given.out / "rows.jsonl")
    for cause, size, seed in plan(given):
        if (cause, size, seed) in done:
            continue
        row = one(cause, size, seed, given.out, first=given.realtime)
        done[cause, size, seed] = row
        with (given.out / "rows.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row.document()) + "\n")
        print(
            row.cause,
            row.magnitude,
            row.seed,
            row.rank,
            row.hints[:4],
            row.truth,
            row.said,
            row.note,
            flush=True,
        )
    rows = list(done.values())
    print(json.dumps(figures(rows), indent=1))
    if given.write:
        write(rows, given)


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
    """The rows of an earlier run."""
    if not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in path.read_text().splitlines()]
    return {(row.cause, row.magnitude, row.seed): row for row in rows}


def one(cause: str, size: float, seed: int, out: Path, *, first: bool) -> Row:
    """One run with the cause and one without; `first`: on a busy machine, before other programs."""
    from rca_llm.readers import load

    before = ["chrt", "-f", "10"] if first and not cause.startswith("cpu_") else []
    status, truth = inject(before, cause, size, seed, out / "with.rca")
    if truth is None:
        note = f"not run: status {status[0]} {status[1]}"
        return Row(cause, size, seed, None, [], None, None, [], note=note)
    report = load(out / "with.rca").attribute()
    more: dict[str, Any] = {}
    if cause != "clean":
        _, other = inject(before, cause, size, seed, out / "without.rca", "--without")
        if other is not None:
            more["measured_ns"] = truth["latency_ns"] - other["latency_ns"]
        more["predicted_ns"] = predicted(report, truth)
    return judged(report.summary, truth, **more)


def inject(
    before: list[str], cause: str, size: float, seed: int, target: Path, *options: str
) -> tuple[tuple[int, str], dict[str, Any] | None]:
    """Run a cause traced; its status, and its truth where there is one."""
    shutil.rmtree(target, ignore_errors=True)
    call = [sys.executable, "-m", "rca_llm", "inject", cause, "--magnitude", str(size)]
    call += ["--seed", str(seed), "-o", str(target), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*before, *call], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    path = target / "truth.json"
    told = json.loads(path.read_text()) if path.exists() else None
    return (done.returncode, done.stderr[-200:].strip()), told


def predicted(report: Any, truth: dict[str, Any]) -> float | None:
    """What the replay says that removing the cause saves, summed over the requests, ns."""
    from rca_llm.whatif import DERIVED, whatif

    if any(part in DERIVED for part in truth["parts"]):
        own = [row for row in report.summary["hints"] if row["id"] in truth["hints"]]
        return own[0]["saving_ns"] if own else None
    answer = whatif(report, dict.fromkeys(truth["parts"], 0.0))
    return sum(row["latency_ns"] - row["new_latency_ns"] for row in answer["requests"])


def write(rows: list[Row], given: argparse.Namespace) -> None:
    """Put the tables between the marks of the page."""
    begin, end = "<!-- injection: begin -->", "<!-- injection: end -->"
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    found = figures(rows)
    told = "\n".join(f"| {name} | {_shown(value)} |" for name, value in found.items())
    day = time.strftime("%Y-%m-%d", time.gmtime())
    machine = f"{os.cpu_count()}-core {platform.machine()} VM"
    call = f"`python benchmarks/injection.py --seeds {given.seeds} --clean {given.clean}"
    call += " --realtime`" if given.realtime else "`"
    about = f"{machine}, {day}, {call}."
    body = (
        f"{about}\n\n| figure | value |\n|---|---|\n{told}\n\n{tables(rows)}\n{whatif_table(rows)}"
    )
    PAGE.write_text(f"{head}{begin}\n\n{body}\n{end}{tail}", encoding="utf-8")


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
