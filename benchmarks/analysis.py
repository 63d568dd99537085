"""Measures `rca-llm report` as a process on large inputs: seconds, CPU seconds and peak memory.

The inputs are built here, by repeating a recorded trace with its ids and times moved on: Kineto
files of 0.25, 1.08 and 4 million events (`.json.gz`), and an Nsight Systems SQLite export of
344,000 kernels, 580,000 API calls and 1.7 million NVTX ranges. Prints a Markdown table of medians;
memory is the largest sum of the resident sets of the process and its children, sampled.

    python benchmarks/analysis.py --kineto TRACE.json.gz --nsys EXPORT.sqlite [--repeats N]
    python benchmarks/analysis.py --hints [--repeats N]

`--hints` measures only what hints and a replay cost on top of attribution (`hints.py`), on a made
service of a million records, in this process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rca_llm.readers.jsontext import split_events

EVENTS = (250_000, 1_080_000, 4_000_000)
KERNELS, CALLS, RANGES = 344_000, 580_000, 1_700_000

_TIME = rb'"ts": ?(\d+)'
_ID = rb'"(?:correlation|External id|external id|id)": ?(\d+)'
_MOVED = re.compile(rb'("ts": ?|"(?:correlation|[Ee]xternal id|id)": ?)(\d+)')

_SHAPES = ", sizes = [[8, 4096], [4096, 11008], [11008]], strides = [[4096, 1], [1, 4096], [1]]"
"""What makes the names of ranges as long as PyTorch's NVTX ranges with shapes are."""

_SAMPLED_S = 0.005


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


@dataclass(frozen=True)
class Row:
    """One line of the table: an input and the medians over its runs."""

    input: str
    size_mb: float
    events: int
    cost: Cost


def repeated_kineto(trace: Path, events: int, target: Path) -> int:
    """Write a Kineto file that repeats a trace until it has this many events; the exact number."""
    text = _unpacked(trace)
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    body = text[begin:end].strip()
    chunks = [chunk for _, chunk in split_events(body)]
    chunks[-1] += b",\n"
    steps = _steps(body)
    copies, rest = divmod(events, len(chunks))
    shares = [chunks] * copies + [chunks[:rest]] * bool(rest)
    with gzip.open(target, "wb", 6) as out:
        out.write(text[:begin])
        for copy, share in enumerate(shares):
            moved = _moved(b"".join(share), *(copy * step for step in steps))
            out.write(moved if copy < len(shares) - 1 else moved.rstrip(b", \n"))
        out.write(b"\n" + text[end:])
    return events


def _steps(body: bytes) -> tuple[int, int]:
    """How far times and ids must be moved for a copy to follow: beyond the span of each."""
    times = sorted(map(int, re.findall(_TIME, body)))
    span = times[-1] - times[len(times) // 100]  # a few times of 0 may be among them
    return span + 1_000_000, max(map(int, re.findall(_ID, body))) + 1


def _moved(body: bytes, time_step: int, id_step: int) -> bytes:
    """The text of events with every time and id moved on."""

    def move(match: re.Match[bytes]) -> bytes:
        key, number = match.groups()
        step = time_step if key.startswith(b'"ts"') else id_step
        return b"%s%d" % (key, int(number) + step)

    return _MOVED.sub(move, body)


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def repeated_nsys(export: Path, target: Path) -> int:
    """Write an Nsight Systems export that repeats another one's device work; its row count."""
    target.write_bytes(_unpacked(export))
    with sqlite3.connect(target) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("DELETE FROM NVTX_EVENTS")
        kernels = _count(database, "CUPTI_ACTIVITY_KIND_KERNEL")
        copies = math.ceil(KERNELS / kernels)
        _thin_calls(database, CALLS // copies)
        _add_ranges(database, RANGES // copies)
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            _repeat(database, table, copies)
        tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
        return sum(_count(database, table) for table in tables)


def _count(database: sqlite3.Connection, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _thin_calls(database: sqlite3.Connection, kept: int) -> None:
    """Keep this many API calls, those that launched a kernel first."""
    database.execute(
        """DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE rowid NOT IN (
            SELECT rowid FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY correlationId NOT IN (
                SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL), start LIMIT ?)""",
        (kept,),
    )


def _add_ranges(database: sqlite3.Connection, wanted: int) -> None:
    """Nest NVTX ranges around the API calls, as many as are wanted."""
    calls = _count(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
    for depth in range(math.ceil(wanted / calls)):
        database.execute(
            """INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)
            SELECT start - ?1, end + ?1, 59,
                'model.layers.' || (rowid % 64) || '.block.' || ?2 || ', op_id = ' || (rowid % 4096)
                || ?4, globalTid, 0 FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start LIMIT ?3""",
            (depth + 1, depth, min(wanted - depth * calls, calls), _SHAPES),
        )


def _repeat(database: sqlite3.Connection, table: str, copies: int) -> None:
    """Repeat the rows of a table with their times and correlations moved on."""
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    moved = {"start": "? + start", "end": "? + end", "correlationId": "? + correlationId"}
    values = ", ".join(moved.get(name, f'"{name}"') for name in columns)
    last = _count(database, table)
    steps = {"start": 10**10, "end": 10**10, "correlationId": 10**7}
    for copy in range(1, copies):
        arguments = [copy * steps[name] for name in columns if name in moved]
        query = f"INSERT INTO {table} SELECT {values} FROM {table} WHERE rowid <= ?"
        database.execute(query, (*arguments, _row_limit(database, table, last)))


def _row_limit(database: sqlite3.Connection, table: str, rows: int) -> int:
    """The highest rowid of the first rows of a table."""
    query = f"SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET ?"
    return int(database.execute(query, (rows - 1,)).fetchone()[0])


def measured(command: Sequence[str]) -> Cost:
    """Run a command to its end."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = [0.0]
    sampler = threading.Thread(target=_sample, args=(process, peak))
    sampler.start()
    error = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    sampler.join()
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}: {error.decode()[-500:]}")
    own = usage.ru_maxrss / 1024
    return Cost(seconds, usage.ru_utime + usage.ru_stime, max(peak[0], own))


def _sample(process: subprocess.Popen[bytes], peak: list[float]) -> None:
    """Keep the largest resident size of a process tree, MiB, until the process has ended."""
    while process.returncode is None:
        peak[0] = max(peak[0], sum(_resident_mb(pid) for pid in _tree(process.pid)))
        time.sleep(_SAMPLED_S)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(name: str, path: Path, events: int, repeats: int) -> Row:
    """The medians of several reports on a file."""
    with tempfile.TemporaryDirectory() as folder:
        page, summary = Path(folder, "report.html"), Path(folder, "summary.json")
        command = [sys.executable, "-m", "rca_llm", "report", str(path)]
        command += ["-o", str(page), "--json", str(summary), "--force"]
        costs = [measured(command) for _ in range(repeats)]
    return Row(
        name,
        path.stat().st_size / 1e6,
        events,
        Cost(
            median(cost.seconds for cost in costs),
            median(cost.cpu_seconds for cost in costs),
            median(cost.peak_mb for cost in costs),
        ),
    )


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Build each input in a folder, measure it and delete it."""
    if arguments.kineto:
        for wanted in arguments.events:
            path = folder / f"kineto-{wanted}.json.gz"
            events = repeated_kineto(arguments.kineto, wanted, path)
            yield measure("Kineto .json.gz", path, events, arguments.repeats)
            path.unlink()
    if arguments.nsys:
        path = folder / "export.sqlite"
        events = repeated_nsys(arguments.nsys, path)
        yield measure("Nsight Systems .sqlite", path, events, arguments.repeats)


def table(measured_rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| input | size, MB | events | seconds | CPU s | peak, MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.input} | {row.size_mb:.0f} | {row.events:,} | {row.cost.seconds:.2f} "
        f"| {row.cost.cpu_seconds:.2f} | {row.cost.peak_mb:.0f} |"
        for row in measured_rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kineto", type=Path, help="a recorded Kineto trace to repeat")
    parser.add_argument("--nsys", type=Path, help="a recorded Nsight Systems export to repeat")
    parser.add_argument("--hints", action="store_true", help="hints and what-if alone")
    parser.add_argument("--events", type=int, nargs="*", default=EVENTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args()
    if arguments.hints:
        import hints

        print(hints.table(hints.service(1_000_000), arguments.repeats))
        return
    if not (arguments.kineto or arguments.nsys):
        parser.error("name a trace to repeat: --kineto FILE, --nsys FILE or both; or --hints")
    folder = Path(tempfile.mkdtemp(prefix="rca-llm-bench-"))
    try:
        found = list(rows(arguments, folder))
    finally:
        shutil.rmtree(folder)
    print(table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
