"""Measures `rca-llm report` on many ranks: seconds, CPU seconds and peak memory, rank by rank.

A recorded Kineto trace of one rank is repeated to as many events as wanted, and given to as many
ranks as wanted, each with its own number. For every number of ranks the same command runs on local
processes, and with `--dask` on a Dask cluster of as many workers, which must give the same bytes.
Prints a Markdown table. *Of linear* is the time over (ranks x one rank / processes), one rank being
the same command on one rank and one process; memory is the largest sum of the resident sets of the
command and its children, sampled.

    python benchmarks/ranks.py --kineto RANK0.json.gz [--events N] [--ranks 8 16 64] [--dask]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis import Cost, measured, repeated_kineto

_HEAD = 1 << 20
_INFO = re.compile(rb'"distributedInfo": ?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\},?\s*')


@dataclass(frozen=True)
class Row:
    """One line of the table; `same` says whether Dask gave the same bytes, None if not asked."""

    ranks: int
    events: int
    jobs: int
    cost: Cost
    of_linear: float
    same: bool | None


class Body:
    """A repeated trace whose head is left out: every rank has its own."""

    def __init__(self, trace: Path, events: int, folder: Path) -> None:
        whole = folder / "whole.json.gz"
        self.events = repeated_kineto(trace, events, whole)
        with gzip.open(whole) as stream:
            head = stream.read(_HEAD)
            place = head.index(b"[", head.index(b'"traceEvents"')) + 1
            self.head = _INFO.sub(b"", head[:place])
            self.packed = folder / "body.gz"
            with gzip.open(self.packed, "wb", 4) as out:
                out.write(head[place:])
                shutil.copyfileobj(stream, out, _HEAD)
        whole.unlink()

    def write(self, target: Path, rank: int, ranks: int) -> None:
        """The trace of one rank: two gzip members, its own head and what all have in common."""
        info = {"rank": rank, "world_size": ranks, "backend": "nccl"}
        said = b'"distributedInfo": ' + json.dumps(info).encode() + b", "
        opening = self.head.index(b"{") + 1
        with target.open("wb") as out, self.packed.open("rb") as packed:
            out.write(gzip.compress(self.head[:opening] + said + self.head[opening:]))
            shutil.copyfileobj(packed, out, _HEAD)


def command(folder: Path, target: Path, *way: str) -> list[str]:
    """The report on a folder of ranks."""
    run = [sys.executable, "-m", "rca_llm", "report", str(folder), "--json", str(target)]
    return [*run, "--quiet", "--force", *way]


def rows(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Measure one rank, and then each number of ranks."""
    body = Body(arguments.kineto, arguments.events, folder)
    target, jobs = folder / "summary.json", arguments.jobs
    one: Cost | None = None
    for ranks in (1, *arguments.ranks):
        inputs = folder / f"ranks{ranks}"
        inputs.mkdir()
        for rank in range(ranks):
            body.write(inputs / f"rank{rank}.json.gz", rank, ranks)
        used = 1 if one is None else jobs
        cost = measured(command(inputs, target, "--jobs", str(used)))
        one = one or cost
        same = _same(inputs, target, jobs) if arguments.dask and ranks > 1 else None
        linear = ranks * one.seconds / used
        yield Row(ranks, body.events * ranks, used, cost, cost.seconds / linear, same)
        shutil.rmtree(inputs)


def _same(inputs: Path, target: Path, jobs: int) -> bool:
    """Whether a Dask cluster gives the bytes that local processes gave."""
    other = target.with_suffix(".dask")
    with cluster(jobs) as address:
        measured(command(inputs, other, "--scheduler", address))
    return other.read_bytes() == target.read_bytes()


@contextlib.contextmanager
def cluster(workers: int) -> Generator[str]:
    """The address of a local Dask cluster."""
    import distributed

    local: Any = distributed.LocalCluster
    with local(n_workers=workers, threads_per_worker=1, dashboard_address=None) as found:
        yield str(found.scheduler_address)


def table(found: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| ranks | events | processes | seconds | CPU s | peak, MiB | of linear | Dask equal |",
        "|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    said = {None: "not asked", True: "yes", False: "NO"}
    lines += [
        f"| {row.ranks} | {row.events:,} | {row.jobs} | {row.cost.seconds:.1f}"
        f" | {row.cost.cpu_seconds:.1f} | {row.cost.peak_mb:.0f} | {row.of_linear:.2f}"
        f" | {said[row.same]} |"
        for row in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kineto", type=Path, required=True, help="a recorded trace of one rank")
    parser.add_argument("--events", type=int, default=1_000_000, help="of each rank")
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 16, 64])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dask", action="store_true", help="compare with a Dask cluster too")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rca-llm-bench-"))
    found: list[Row] = []
    try:
        for row in rows(arguments, folder):
            found.append(row)
            print(table(found[-1:]).splitlines()[-1], flush=True)
    finally:
        shutil.rmtree(folder)
    print(table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
