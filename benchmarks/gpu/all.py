"""Runs what is still to be measured on a GPU, the most worthwhile first, and ends in time.

    OUT=results benchmarks/gpu/run.sh all.py --seconds 570 [--bundle FOLDER] [--jobs injection,four]

Each job is one of the scripts beside this one, in a process group of its own with a limit; a job
that would not fit into what is left is left out, and said to be. Afterwards everything that it
started is ended. Few files come of it: `all.json` holds every result (whole at any time),
`all.log` what was said, `kept-JOB.tar` a job's recordings. SIGTERM ends the job at hand and
writes. `--list` prints the jobs and what each needs; `--gpus` says how many there are.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages import DEADLINE, MARGIN_S, Ended, end_descendants, end_group, folders, write

HERE = Path(__file__).resolve().parent
GRACE_S = 6.0
"""Between asking a job to end and making it."""
LEAST = 0.6
"""The share of what a job usually needs without which it is not begun: a part of it tells too."""
LARGEST_KEPT = 16_000_000
LONGEST_LOG = 4_000_000
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans of a job become ours, so that they can be ended."""


@dataclass(frozen=True)
class Job:
    """A script with its words; `needs` are the seconds that it took on an H200, or should."""

    name: str
    words: tuple[str, ...]
    needs: float
    limit: float
    bundle: bool = False
    gpus: int = 1


def job(name: str, needs: float, limit: float, words: str, **more: Any) -> Job:
    """A job, its command as one text."""
    return Job(name, tuple(words.split()), needs, limit, **more)


SCALE = "scale.py --stages counters,ready,many --repeat 3"
JOBS = (
    job("injection", 81, 240, "injection.py --seeds 2"),
    job("launches", 80, 130, "overhead.py --stages launches --limit 45"),
    job("scale", 110, 220, f"{SCALE} --launches 4000000 --replays 22000 --seconds 38"),
    job("generate", 61, 200, "generate.py"),
    job("vllm", 200, 330, "vllm_load.py --stages build,load,default", bundle=True),
    job("burst", 180, 300, "burst.py --size small --tracers none-1,trace-full,nsys", bundle=True),
    job("default-launching", 25, 90, "injection.py --gpu kernels --families launching"),
    job("four", 80, 150, "overhead.py --stages four --limit 45"),
    job("gaps", 40, 110, "gaps.py --gpu full --limit 90"),
    job("markers", 40, 110, "markers.py"),
    job("numa", 50, 110, "numa.py"),
    job("attributes", 70, 130, "overhead.py --stages attributes --limit 45"),
    job("spans", 22, 90, "collector.py --stages spans"),
    job("nccl", 108, 300, "nccl.py --ranks 2 --budget 280", gpus=2),
)
"""In the order of their worth."""


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=570, help="until everything has ended")
    parser.add_argument("--jobs", default="", help="only these, in this order, comma separated")
    parser.add_argument("--without", default="", help="all but these")
    parser.add_argument("--bundle", type=Path, help="a folder with vLLM")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the jobs and end")
    return parser.parse_args(words)


class Runner:
    """Runs jobs one after another, and keeps what came of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.until = time.monotonic() + arguments.seconds
        self.out, self.work = folders(arguments.out, "rca-gpu-all")
        self.found: dict[str, Any] = {}
        self._log = (self.out / "all.log").open("ab")

    def left(self) -> float:
        """Seconds until the end, less what ending a job and keeping its results takes."""
        return self.until - MARGIN_S - time.monotonic()

    def refusal(self, one: Job) -> str | None:
        """Why a job is not begun, if it is not."""
        if one.bundle and self.arguments.bundle is None:
            return "needs --bundle"
        if one.gpus > self.arguments.gpus:
            return f"needs --gpus {one.gpus}"
        if self.left() < one.needs * LEAST:
            return f"{max(self.left(), 0):.0f} s are left, it needs {one.needs:.0f}"
        return None

    def run(self, one: Job) -> None:
        """Run a job, and keep what it leaves."""
        why = self.refusal(one)
        if why is not None:
            self._keep(one, {"left out": why})
            return
        folder = self.work / one.name
        shutil.rmtree(folder, ignore_errors=True)
        begun = time.monotonic()
        told: dict[str, Any] = {"status": None}
        try:
            told["status"] = self._wait(one, folder)
        finally:  # also when we are told to end
            end_descendants()
            told |= {"s": round(time.monotonic() - begun, 1), "needs": one.needs}
            self._keep(one, told | collected(folder))
            pack(folder, self.out / f"kept-{one.name}.tar")

    def _wait(self, one: Job, folder: Path) -> int:
        """The status of a job: that of its end, 128+15 or -9 where it was ended."""
        limit = min(one.limit, self.left())
        words = [sys.executable, str(HERE / one.words[0]), "--out", str(folder), *one.words[1:]]
        words += ["--bundle", str(self.arguments.bundle.resolve())] if one.bundle else []
        # A script must be able to write what it has before it is told to end.
        env = {DEADLINE: str(time.monotonic() + limit + MARGIN_S - GRACE_S)}
        self._say(f"\n##### {one.name}, at most {limit:.0f} s: {' '.join(words)}\n")
        with subprocess.Popen(
            words, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(GRACE_S)
                return -signal.SIGKILL
            except Ended:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S / 2)
                raise
            finally:
                end_group(process)

    def _say(self, text: str) -> None:
        if self._log.tell() > LONGEST_LOG:
            self._log.truncate(0)
        self._log.write(text.encode())
        self._log.flush()

    def _keep(self, one: Job, told: dict[str, Any]) -> None:
        self.found[one.name] = told
        write(self.out / "all.json", self.found)
        if "left out" in told:
            print(f"-- {one.name}: left out: {told['left out']}", flush=True)
            return
        failed = [f"{key}: {str(text)[-200:]}" for key, text in failures(told["results"])]
        print(f"-- {one.name}: status {told['status']}, {told['s']} s", *failed, flush=True)


def collected(folder: Path) -> dict[str, Any]:
    """What a job wrote as JSON, by file."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(ValueError, OSError):
            found[path.name] = json.loads(path.read_text())
    return {"results": found}


def failures(results: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the stages of a job say of those that failed, were left out, or lost a program."""
    for document in results.values():
        if not isinstance(document, dict):
            continue
        for key, value in document.items():
            if key.endswith((" failed", " left out")) or (key == "error" and value):
                yield key, value
            elif isinstance(value, dict) and value.get("lost"):
                yield f"{key} lost", list(value["lost"])
            elif isinstance(value, dict) and value.get("failed"):
                yield f"{key} failed", value["failed"]


def pack(folder: Path, kept: Path) -> None:
    """Put a job's recordings, if any, into one file, smallest first, as far as they fit."""
    files = [path for path in folder.glob("*") if path.is_file() and path.suffix != ".json"]
    files += list(folder.glob("*.stamps.json"))
    total, chosen = 0, list[Path]()
    for path in sorted(files, key=lambda path: path.stat().st_size):
        total += path.stat().st_size + 2048
        if total > LARGEST_KEPT:
            print(f"-- not kept, too large: {path.name}", flush=True)
            continue
        chosen.append(path)
    if chosen:
        with tarfile.open(kept, "w") as archive:
            for path in chosen:
                archive.add(path, path.name)


def adopt_orphans() -> None:
    """Become the parent of whatever a job leaves behind."""
    ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)


def chosen(arguments: argparse.Namespace) -> list[Job]:
    """The jobs to run; a name that there is not ends the program."""
    known = {one.name: one for one in JOBS}
    wanted = [name for name in arguments.jobs.split(",") if name] or list(known)
    without = [name for name in arguments.without.split(",") if name]
    unknown = [name for name in (*wanted, *without) if name not in known]
    if unknown:
        sys.exit(f"no such job: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted if name not in without]


def main() -> None:
    """Run what was asked for."""
    arguments = options()
    jobs = chosen(arguments)
    if arguments.list:
        for one in jobs:
            print(f"{one.name:18} {one.needs:4.0f} s of at most {one.limit:3.0f}  ", *one.words)
        return

    def told_to_end(number: int, frame: object) -> None:
        raise Ended("told to end")

    signal.signal(signal.SIGTERM, told_to_end)
    adopt_orphans()
    runner = Runner(arguments)
    for one in jobs:
        runner.run(one)
    print(f"-- {runner.left() + MARGIN_S:.0f} s are left", flush=True)


if __name__ == "__main__":
    main()
