"""Every cause on a GPU in three sizes and two seeds, against its truth; and what advice brings.

What the hint of the true cause says that would be saved is held against two things that were done
for real: the same service without the cause, and the service that follows the advice. What was
served without the cause before each run is judged as a clean run.

    python benchmarks/gpu/injection.py --out results [--families launching,copies] [--seeds 2]
        [--gpu full|kernels]

One traced process a family runs all its causes one after another; afterwards each run's window is
taken out of the trace and analysed by itself. What a trace of ours does not
hold by itself is asked for: `counters` traces bank conflicts and strided loads with `--counters`
(they need cupti-python and the right to read counters), `shapes` runs the odd matrix products under
`torch.profiler`, which records their shapes, and reads its files. Every family stands alone, has a
time limit, and its rows are written to `results/injection.json` at once; its recording, and the
truths beside it, are kept as `results/FAMILY.tar.zst`, so that a miss can be looked into later.

Work of its own: `--work FAMILY --truths FILE` is the process that is traced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(Path(__file__).resolve().parent)]

import native  # noqa: E402
import stages  # noqa: E402
from matrix import (  # noqa: E402
    saving_figures,
    savings_tables,
    tables,
    with_advice,
    without_cause,
)
from packing import pack  # noqa: E402

from rca_llm.inject.catalogue import CAUSES, Order, workload  # noqa: E402
from rca_llm.inject.verdict import Row, figures, judged  # noqa: E402
from rca_llm.inject.windows import between  # noqa: E402
from rca_llm.trace import Trace  # noqa: E402

FAMILIES = ("launching", "copies", "kernels", "sharing", "counters", "shapes")
APART = {"gemm_shape": "shapes", "bank_conflicts": "counters", "strided_access": "counters"}
"""Causes that need more than the others of their family, and where they run."""
SLACK_NS = 300_000
ANALYSIS_S = 90
REMEDIES = {"launch_bound": {"scheduling.launch": 0.0, "scheduling.host": 0.0}}
"""What a remedy changes in the replay, where it is more or less than the hint says is saved."""
MORE = ("launch_bound",)
"""Causes that brought work of their own, which their hint does not claim: the tiny kernels."""
GROWTH = {"R34": {"span_ns": 1e9, "samples": 5}}
"""Memory growth is judged over half an hour; a run of seconds needs a shorter observation."""


def main() -> None:
    """Run as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=75, help="seconds a family")
    parser.add_argument("--gpu", choices=["full", "kernels"], default="full")
    parser.add_argument("--work")
    parser.add_argument("--truths", type=Path)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.seeds, given.truths)
        return
    native.build()
    session = Session(*stages.folders(given.out, "rca-gpu-injection"), given)
    every = {family: stage(family) for family in FAMILIES}
    limits = dict.fromkeys(FAMILIES, given.limit + ANALYSIS_S)
    stages.run_stages(session, every, given.families, limits=limits)
    print(json.dumps(every_figure(session.rows)))
    for row in session.rows:
        print(json.dumps(row.document()))


@dataclass
class Session(stages.Session):
    """One run of this script."""

    file: str = "injection.json"
    rows: list[Row] = field(default_factory=list[Row])


def every_figure(rows: list[Row]) -> dict[str, Any]:
    """The goals' figures, and how far predicted savings are from what was saved, percent."""
    found: dict[str, Any] = figures(rows)
    found |= saving_figures(rows, "removal", without_cause)
    return found | saving_figures(rows, "advice", with_advice)


def stage(family: str) -> Callable[[Session], str]:
    """The stage that runs and judges a family; it gives back what to note of it."""

    def run(session: Session) -> str:
        rows, note = traced(family, session)
        session.rows += rows
        text = tables(session.rows) + "\n" + savings_tables(session.rows)
        (session.out / "injection.md").write_text(text)
        session.write("figures", every_figure(session.rows))
        session.write("rows", [row.document() for row in session.rows])
        runs = sum(row.cause != "clean" for row in rows)
        return f"{runs} runs {note}"

    return run


def orders(family: str, seeds: int, folder: str) -> list[Order]:
    """All runs of a family."""
    return [
        Order(cause, size, seed, folder, named=True)
        for cause in CAUSES.values()
        if cause.gpu and APART.get(cause.name, cause.family.removeprefix("gpu_")) == family
        for size in cause.magnitudes
        for seed in range(seeds)
    ]


def work(family: str, seeds: int, target: Path) -> None:
    """The process that is traced, or profiles itself: every order's truth, one a line."""
    with target.open("w", encoding="utf-8") as file:
        for number, order in enumerate(orders(family, seeds, str(target.parent))):
            begun, line = time.monotonic(), dict[str, Any]()
            try:
                with profiled(family, target.with_name(f"shapes-{number}.json")) as recorded:
                    line = workload(order.cause)(order).document() | recorded
            except Exception as error:
                line = {"failed": f"{type(error).__name__}: {error}"[:300]}
                line |= {"cause": order.cause.name, "magnitude": order.magnitude}
            line["wall_s"] = round(time.monotonic() - begun, 2)
            file.write(json.dumps(line) + "\n")
            file.flush()


@contextlib.contextmanager
def profiled(family: str, target: Path) -> Iterator[dict[str, Any]]:
    """Record the shapes of operators with torch.profiler where a family needs them."""
    if family != "shapes":
        yield {}
        return
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds, record_shapes=True) as profiler:
        yield {"profile": str(target)}
    profiler.export_chrome_trace(str(target))


def search_path(family: str) -> str:
    """PYTHONPATH of a family: our package, and where `--counters` finds cupti-python."""
    counters = os.environ.get("RCA_GPU_COUNTERS", "") if family == "counters" else ""
    parts = (counters, str(ROOT), os.environ.get("PYTHONPATH", ""))
    return os.pathsep.join(part for part in parts if part)


def traced(family: str, session: Session) -> tuple[list[Row], str]:
    """Trace a family's process, unless it profiles itself, and judge every run of it."""
    given = session.arguments
    folder = session.work / f"{family}-{given.gpu}"
    shutil.rmtree(folder, ignore_errors=True)  # no truth of an earlier run may be judged again
    folder.mkdir(parents=True)
    run, truths = folder / "run.rca", folder / "truths.jsonl"
    trace = [sys.executable, "-m", "rca_llm", "trace", "-o", str(run), "--force"]
    trace += ["--gpu", given.gpu, *(["--counters"] if family == "counters" else []), "--"]
    call = [] if family == "shapes" else trace
    call += [sys.executable, __file__, "--work", family, "--truths", str(truths)]
    call += ["--seeds", str(given.seeds)]
    env = {"PYTHONPATH": search_path(family)}
    note = run_limited(call, env, given.limit)
    text = truths.read_text() if truths.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    failed = {line["cause"]: line["failed"] for line in lines if "failed" in line}
    good = [line for line in lines if "failed" not in line and line["window"]]
    pack(session.out / f"{family}.tar.zst", {path.name: path for path in sorted(folder.iterdir())})
    rows = analyse(None if family == "shapes" else run, good)
    return rows, f"{note} failed: {failed}" if failed else note


def run_limited(call: list[str], env: dict[str, str], limit: float) -> str:
    """Run a command and all it starts for at most `limit` seconds; what to note of it."""
    status, said, seconds = stages.command(call, env, limit, ROOT)
    if status < 0 and seconds >= limit:
        return f"stopped after {limit} s"
    return f"status {status} {said[-400:]}"


_trace: Any = None


def analyse(run: Path | None, truths: list[dict[str, Any]]) -> list[Row]:
    """The row of every run, one after another: each takes a tenth of a second.

    Forked processes would share the trace, but a fork copies the locks of threads that it does not
    copy, and two families of three never came back from it.
    """
    global _trace
    from rca_llm.readers import load

    if run is not None:
        _trace = load(run)
        counts = {name: len(t) for name, t in _trace.timelines[0].tables.items()}
        print(f"{run.parent.name}: {counts}", flush=True)
    cleaned = [clean for truth in truths if (clean := without_cause_of(truth))]
    return [row for row in map(_judge, truths + cleaned) if row]


def without_cause_of(truth: dict[str, Any]) -> dict[str, Any] | None:
    """The truth of what was served before a run, without its cause; None where nothing was."""
    if not truth.get("off_window"):
        return None
    clean: dict[str, Any] = {"cause": "clean", "magnitude": 1.0, "window": truth["off_window"]}
    clean |= {"hints": [], "parts": [], "share": None, "injected_ns": None}
    clean["figures"] = {"before": f"{truth['cause']} {truth['magnitude']:g}"}
    clean["latency_ns"] = sum(truth["off_ns"][0])
    return truth | clean


def _judge(truth: dict[str, Any]) -> Row | None:
    try:
        return judge(truth)
    except Exception as error:
        detail = traceback.format_exc(limit=-3)
        return Row(
            *(truth["cause"], truth["magnitude"], truth["seed"], None, [], None, truth["share"]),
            *(list[str](),),
            note=f"analysis failed: {type(error).__name__}: {error} {detail}"[:500],
        )


def judge(truth: dict[str, Any]) -> Row:
    """Analyse the window of one run."""
    from rca_llm.hints import thresholds

    part = recorded(truth)
    if truth["cause"] == "memory_growth":
        limits = {id: {**rows} for id, rows in thresholds.load().items()}
        for id, rows in GROWTH.items():
            limits[id] |= rows
        report = part.attribute(thresholds=limits)
    else:
        report = part.attribute()
    top = {
        row["id"]: [row["share"], row["confidence"], row["title"]]
        for row in report.summary["hints"][:4]
    }
    shares = {k: round(v / max(truth["latency_ns"], 1), 4) for k, v in _parts(report).items()}
    note = json.dumps({"hints": top, "parts": shares, "figures": truth["figures"]})
    row = judged(report.summary, truth, note=note, **compared(truth))
    if row.cause in MORE and row.rank is not None:
        gone = dict.fromkeys(CAUSES[row.cause].parts, 0.0)
        row = replace(row, removed_ns=replayed(report, gone))
    return row if row.measured_ns is None else replace(row, predicted_ns=predicted(report, row))


def compared(truth: dict[str, Any]) -> dict[str, Any]:
    """What else was served: without the cause, on both sides, and with the advice followed."""
    count, measured = len(truth["requests"]), truth["figures"]
    sides = [statistics.fmean(side) for side in truth.get("off_ns", []) if side]
    if truth["cause"] == "clean":
        return {}
    found: dict[str, Any] = {"with_ns": truth["latency_ns"]}
    found["without_ns"] = tuple(round(side * count) for side in sides)
    if "mended_ns" in measured:
        found["measured_ns"] = (measured["on_ns"] - measured["mended_ns"]) * count
    return found


def recorded(truth: dict[str, Any]) -> Trace:
    """What was recorded while a run was served with its cause."""
    from rca_llm.readers import load

    window = truth["window"]
    if "profile" in truth:  # the profiler's times are UTC
        return between(
            load(truth["profile"]), window["start_ns"] - SLACK_NS, window["end_ns"] + SLACK_NS
        )
    start, end = window["monotonic_start_ns"], window["monotonic_end_ns"]
    return between(_trace, start - SLACK_NS, end + SLACK_NS)


def _parts(report: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in report.summary["requests"]:
        for part, ns in row["parts"].items():
            found[part] = found.get(part, 0) + ns
    return dict(sorted(found.items(), key=lambda item: -item[1])[:6])


def predicted(report: Any, row: Row) -> float | None:
    """What the report says that the remedy saves, summed over the requests, ns."""
    changed = REMEDIES.get(row.cause)
    return row.saving_ns if changed is None else replayed(report, changed)


def replayed(report: Any, changed: dict[str, float]) -> float:
    """What a replay with changed parts saves, summed over the requests, ns."""
    from rca_llm.whatif import whatif

    answer = whatif(report, changed)
    saved: list[int] = [row["latency_ns"] - row["new_latency_ns"] for row in answer["requests"]]
    return sum(saved)


if __name__ == "__main__":
    main()
