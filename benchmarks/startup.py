"""Measures what starting costs: the import, the help, and the probes in every traced Python.

The programs take turns, so that a machine that speeds up and slows down treats them alike. Prints a
Markdown table of wall times in ms (median, quartiles, lowest), and what each adds to the bare
interpreter in the same round.

    python benchmarks/startup.py [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

import rca_llm.probes

BOOTSTRAP = Path(rca_llm.probes.__file__).parent / "bootstrap"
PYTHON = sys.executable

PROGRAMS: dict[str, tuple[Sequence[str], bool]] = {
    "`python -c pass`": ((PYTHON, "-c", "pass"), False),
    "`import rca_llm`": ((PYTHON, "-c", "import rca_llm"), False),
    "`from rca_llm import span`": ((PYTHON, "-c", "from rca_llm import span"), False),
    "`rca-llm --help`": ((PYTHON, "-m", "rca_llm", "--help"), False),
    "`python -c pass` in a trace": ((PYTHON, "-c", "pass"), True),
}
"""What is started, and whether under the probes' bootstrap; the first is the yardstick."""


def traced(run: Path) -> dict[str, str]:
    """The environment of a traced process that records into `run`."""
    (run / "segments").mkdir(parents=True, exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(BOOTSTRAP), "RCA_LLM_RUN": str(run)}


def wall_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """How long a command takes from its start to its end."""
    begin = time.perf_counter_ns()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter_ns() - begin) / 1e6


def measure(rounds: int) -> dict[str, list[float]]:
    """Wall times of every program in every round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        under = traced(Path(folder) / "run")
        for number in range(rounds + 1):
            for name, (command, probes) in PROGRAMS.items():
                taken = wall_ms(command, under if probes else os.environ)
                if number:
                    times[name].append(taken)
    return times


def row(name: str, times: Sequence[float], bare: Sequence[float]) -> str:
    """The table's line of a program."""
    low, _, high = quantiles(times, n=4)
    added = median(time - least for time, least in zip(times, bare, strict=True))
    return (
        f"| {name} | {median(times):.1f} ({low:.1f}–{high:.1f}) | {min(times):.1f} | {added:.1f} |"
    )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="What starting costs.")
    parser.add_argument("--rounds", type=int, default=21)
    times = measure(parser.parse_args().rounds)
    bare = next(iter(times.values()))
    print("| program | ms, median (quartiles) | lowest | added to bare Python |")
    print("|---|---|---|---|")
    for name, taken in times.items():
        print(row(name, taken, bare))


if __name__ == "__main__":
    main()
