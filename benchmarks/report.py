"""Measures the page of a large trace: making it after attribution, and opening it in Chromium.

The trace is built here, by arithmetic: half kernels, half the calls that launched them, with
requests, steps and samples (`tests/sample_trace.py`). Memory is the peak of the resident set while
the page is made, less what was resident before. Opening is taken from the browser's own clock in a
fresh profile: first contentful paint, the load event, tables and first timeline usable, and every
plot drawn. Prints a Markdown table of medians with lowest and highest.

    python benchmarks/report.py [--events N] [--repeats N] [--keep FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rca_llm.exporters import html
from rca_llm.report import Report
from tests.browser import chromium, opening
from tests.sample_trace import Shape, trace

KERNELS_A_STEP = 250
OPENED = {
    "paint": ("first contentful paint", "≤ 2 s"),
    "load": ("load event", "≤ 2 s"),
    "ready": ("tables and timeline usable", "≤ 2 s"),
    "plots": ("every plot drawn at once, which scrolling does one by one", "–"),
}
"""What is measured of opening, in the order in which it happens, and its goal."""


@dataclass(frozen=True)
class Made:
    """What making one page took."""

    seconds: float
    peak_mb: float
    size_mb: float


def traced(events: int) -> tuple[Report, int]:
    """The report of a trace with at least so many events, and how many it has."""
    steps = -(-events // (2 * KERNELS_A_STEP + 6))
    found = trace(Shape(steps=steps, kernels=KERNELS_A_STEP, requests=max(steps // 8, 1)))
    count = sum(len(table) for line in found.timelines for table in line.tables.values())
    return found.attribute(), count


def made(report: Report, target: Path) -> Made:
    """Make the page once, and say what it took."""
    gc.collect()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # The peak begins anew.
    start = time.perf_counter()
    html.write(report, target)
    seconds = time.perf_counter() - start
    return Made(seconds, _resident("VmHWM") - before, target.stat().st_size / 1e6)


def _resident(key: str) -> float:
    """A figure of the process's resident set, MB."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(key))


def row(name: str, values: Sequence[float], unit: str, goal: str) -> str:
    """A line of the table."""
    low, middle, high = min(values), median(values), max(values)
    return f"| {name} | {middle:.2f} ({low:.2f}–{high:.2f}) {unit} | {goal} |"


def lines(pages: Sequence[Made], opens: Sequence[Mapping[str, float]]) -> list[str]:
    """The table's lines."""
    return [
        row("making the page, after attribution", [p.seconds for p in pages], "s", "≤ 3 s"),
        row("memory beyond that of the report", [p.peak_mb for p in pages], "MB", "≤ 300 MB"),
        row("size of the file", [p.size_mb for p in pages], "MB", "≤ 8 MB"),
        *(
            row(f"opening: {about}", [o[key] / 1e3 for o in opens], "s", goal)
            for key, (about, goal) in OPENED.items()
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    options = _parser().parse_args(argv)
    report, count = traced(options.events)
    with tempfile.TemporaryDirectory() as folder:
        target = options.keep or Path(folder) / "report.html"
        pages = [made(report, target) for _ in range(options.repeats)]
        with chromium() as browser:
            opens = [opening(browser, target) for _ in range(options.repeats)]
    print(f"{count:,} events, {options.repeats} repeats: median (lowest–highest)\n")
    print("| what | measured | goal |\n|---|---|---|")
    print("\n".join(lines(pages, opens)))
    if options.json:
        found = {"events": count, "pages": [vars(page) for page in pages], "opens": opens}
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure the page of a large trace.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="Where the page is kept.")
    parser.add_argument("--json", type=Path, help="Where the single figures are written.")
    return parser


if __name__ == "__main__":
    main()
