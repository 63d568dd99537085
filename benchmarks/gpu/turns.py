"""Programs that are alive side by side and work in turns, each under a tracer of its own.

Times on a shared machine drift by more than what a tracer costs. So every program is started and
warmed up first; then they work one after another, round by round, in an order that moves on with
each round: a drift meets all of them, and the ratios within a round are pairs. While one works the
others wait at a socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector import FLOOR_ALL, FLOOR_KERNELS, NATIVE, ROOT, Session, nsys_program
from seat import NAME, SOCKET
from stages import end_group, left

FLOOR_GRAPH = "51," + FLOOR_KERNELS
"""Graph replays in one piece, enabled before anything else."""

LAST_WORDS = 600
ENDING_S = 15.0
"""Left before the deadline when the last round is over: tracers end, recordings are read."""
PATIENCE_S = 45.0
"""How long programs may take to end: tracers write what they have."""
HASTE_S = 5.0
"""The same where the stage has failed."""


@dataclass
class Tracer:
    """How a program is started under a tracer: words before its command, and variables."""

    prefix: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    run: Path | None = None
    """The run directory of ours, the report's stem of Nsight Systems."""


@dataclass
class Player:
    """A started program."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    tracer: Tracer
    file: Any = None
    """The connection, once the program is ready."""

    def words(self) -> str:
        """The end of what it said."""
        return self.log.read_text("utf-8", "replace")[-LAST_WORDS:] if self.log.exists() else ""


Answers = dict[str, dict[str, Any] | None]
"""What every program answered in a round; None from one that is gone."""


class Gone(Exception):
    """A program that ended or did not answer in time."""


class Turns:
    """Starts programs, asks them, and ends them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.players: dict[str, Player] = {}
        self.lost: dict[str, str] = {}
        path = session.work / f"turns-{os.getpid()}.sock"
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._path = path

    def start(self, name: str, command: list[str], tracer: Tracer, **env: str) -> None:
        """Start a program; it is ready once `ready` has seen it."""
        log = self.session.work / f"{name}.log"
        whole = os.environ | tracer.env | env | {SOCKET: str(self._path), NAME: name}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*tracer.prefix, *command], env=whole, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, cwd=self.session.work, start_new_session=True,
            )  # fmt: skip
        self.players[name] = Player(name, process, log, tracer)

    def ready(self, limit: float) -> float:
        """Wait for all that were started; seconds it took. Who does not come is given up."""
        begun = time.monotonic()
        limit = left(limit)
        while any(player.file is None for player in self.players.values()):
            self._drop_ended()
            still = begun + limit - time.monotonic()
            if still <= 0:
                break
            self._socket.settimeout(min(still, 1.0))
            with contextlib.suppress(TimeoutError):
                self._seat(self._socket.accept()[0])
        for player in [p for p in self.players.values() if p.file is None]:
            self._give_up(player, f"not ready after {limit:.0f} s")
        return round(time.monotonic() - begun, 1)

    def _seat(self, connection: socket.socket) -> None:
        connection.settimeout(5.0)
        file = connection.makefile("rw", encoding="utf-8")
        name = json.loads(file.readline())["seat"]
        self.players[name].file = (connection, file)

    def _drop_ended(self) -> None:
        for player in list(self.players.values()):
            if player.file is None and player.process.poll() is not None:
                self._give_up(player, f"ended with {player.process.returncode}")

    def _give_up(self, player: Player, why: str) -> None:
        self.lost[player.name] = f"{why}: {player.words()}"
        print(f"-- lost {player.name}: {why}", flush=True)
        del self.players[player.name]
        end(player, 2.0)

    def ask(self, name: str, limit: float = 60.0, **message: Any) -> dict[str, Any] | None:
        """Have one work; its answer, None (and the program given up) where there is none."""
        player = self.players.get(name)
        if player is None:
            return None
        connection, file = player.file
        connection.settimeout(limit)
        try:
            file.write(json.dumps(message) + "\n")
            file.flush()
            line = file.readline()
        except OSError as error:
            line, message["error"] = "", str(error)
        if not line:
            self._give_up(player, f"no answer to {message}")
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def rounds(
        self, count: int, names: list[str], limit: float, /,
        each: Callable[[list[Answers]], None] = lambda found: None, **message: Any,
    ) -> list[Answers]:  # fmt: skip
        """Answers by name, a dictionary a round; the order moves on by one each round.

        Ends early at `limit` seconds, so that what was found is not lost; `each` is told after
        every round what there is so far.
        """
        if not names:
            raise Gone(f"no program is ready: {', '.join(self.lost) or 'none was started'}")
        begun, found = time.monotonic(), list[Answers]()
        limit = left(limit + ENDING_S) - ENDING_S
        for number in range(count):
            at = number % len(names)
            answers = {name: self.ask(name, **message) for name in [*names[at:], *names[:at]]}
            found.append(answers)
            each(found)
            if time.monotonic() - begun > limit and number + 1 < count:
                print(f"-- ended after {number + 1} of {count} rounds", flush=True)
                break
        return found

    def close(self, patience: float) -> None:
        """Let all programs end, at once; by force who has not after so many seconds."""
        for player in self.players.values():
            with contextlib.suppress(OSError, TypeError, ValueError):
                player.file[1].write('{"do": "quit"}\n')
                player.file[1].flush()
        until = time.monotonic() + patience
        for player in self.players.values():
            end(player, max(until - time.monotonic(), 0.1))
        self._socket.close()
        self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def turns(session: Session) -> Iterator[Turns]:
    """Programs in turns, all of them ended afterwards."""
    found, patience = Turns(session), HASTE_S
    try:
        yield found
        patience = PATIENCE_S
    finally:
        found.close(left(patience))


def end(player: Player, patience: float) -> None:
    """Wait for a program's end, and end its process group where it does not come."""
    try:
        player.process.wait(patience)
    except subprocess.TimeoutExpired:
        end_group(player.process)
        player.process.wait()


# ------------------------------------------------------------------ tracers


def make_path(session: Session) -> str:
    """A folder with our package alone, for PYTHONPATH: the tree holds folders of common names."""
    folder = session.work / "path"
    folder.mkdir(exist_ok=True)
    link = folder / "rca_llm"
    if not link.exists():
        link.symlink_to(ROOT / "rca_llm")
    install(session)
    return str(folder)


def install(session: Session) -> None:
    """Put the collector beside the probes, where the launcher looks, unless it is there and new."""
    native = NATIVE / session.collector.name
    sources = max(path.stat().st_mtime for path in NATIVE.glob("*.[ch]"))
    if native.exists() and native.stat().st_mtime >= sources:
        return
    if session.collector.exists():
        draft = native.with_suffix(".draft")
        draft.write_bytes(session.collector.read_bytes())
        draft.replace(native)


def launched(session: Session, name: str, *options: str, **env: str) -> Tracer:
    """Under `rca-llm trace`, as a user starts it."""
    run = session.work / f"{name}.rca"
    prefix = [sys.executable, "-m", "rca_llm", "trace", "--force", "-o", str(run), *options, "--"]
    return Tracer(prefix, env, run)


def collected(session: Session, name: str, **variables: str) -> Tracer:
    """The collector alone: no launcher, no Python probes."""
    run, env = session.traced(name, **variables)
    return Tracer([], env, run)


def floored(session: Session, kinds: str, attributes: str = "") -> Tracer:
    """CUPTI with nobody reading."""
    env = {"CUDA_INJECTION64_PATH": str(session.floor), "BARE_KINDS": kinds}
    return Tracer([], env | {"BARE_ATTRIBUTES": attributes})


def nsys(session: Session, name: str, graph: str = "node") -> Tracer:
    """Nsight Systems; raises where there is none."""
    program = nsys_program()
    if program is None:
        raise FileNotFoundError("no nsys on this machine")
    report = session.work / name
    for old in session.work.glob(f"{name}.*"):
        if old.suffix in (".qdstrm", ".nsys-rep", ".sqlite"):
            old.unlink()
    prefix = [str(program), "profile", "-t", "cuda,nvtx", f"--cuda-graph-trace={graph}"]
    prefix += ["-s", "none", "--cpuctxsw=none", "-o", str(report), "-f", "true"]
    return Tracer(prefix, {}, report)


def tracers(session: Session) -> dict[str, Callable[[str], Tracer]]:
    """Every tracer by name; called with a program's name, it says how to start that."""
    return {
        "none": lambda name: Tracer(),
        "trace-kernels": lambda name: launched(session, name),
        "trace-full": lambda name: launched(session, name, "--gpu", "full"),
        "trace-graph": lambda name: launched(session, name, "--cuda-graph", "graph"),
        "trace-paused": lambda name: launched(
            session, name, "--start", "paused", RCA_LLM_PAUSE="gate"
        ),
        "trace-rest": lambda name: launched(
            session, name, "--start", "paused", RCA_LLM_PAUSE="rest"
        ),
        "kernels": lambda name: collected(session, name, RCA_LLM_GPU="kernels"),
        "full": lambda name: collected(session, name, RCA_LLM_GPU="full"),
        "launches": lambda name: collected(session, name, RCA_LLM_GPU="launches"),
        "graph": lambda name: collected(
            session, name, RCA_LLM_GPU="kernels", RCA_LLM_GRAPH="graph"
        ),
        "floor-kernels": lambda name: floored(session, FLOOR_KERNELS),
        "floor-all": lambda name: floored(session, FLOOR_ALL),
        "floor-graph": lambda name: floored(session, FLOOR_GRAPH),
        "nsys": lambda name: nsys(session, name),
        "nsys-graph": lambda name: nsys(session, name, "graph"),
    }


# ------------------------------------------------------------------ what the rounds say


def quartiles(values: list[float], digits: int = 4) -> list[float]:
    """First quartile, median, third quartile."""
    if not values:
        return []
    cuts = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return [round(value, digits) for value in cuts]


def ratios(
    rounds: list[dict[str, Any]], of: Callable[[Any], float], base: list[str]
) -> dict[str, dict[str, Any]]:
    """By program: quartiles of its value over the mean of the base programs' in the same round.

    `ms` are the quartiles of the value itself (ns in). Rounds without a base are left out.
    """
    names = list(dict.fromkeys(name for answers in rounds for name in answers))
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        pairs = [(of(a[name]), [of(a[b]) for b in base if a.get(b)]) for a in rounds if a.get(name)]
        whole = [(value, statistics.mean(bases)) for value, bases in pairs if bases]
        found[name] = {
            "ratio": quartiles([value / under for value, under in whole]),
            "ms": quartiles([value / 1e6 for value, _ in pairs], 3),
            "rounds": len(whole),
        }
    return found
