"""What tracers cost a program on the GPU, as pairs: programs that are alive at once, in turns.

    python benchmarks/gpu/overhead.py --out results --stages rows,four,attributes

`rows` compares our modes, CUPTI's own price (the floor), Nsight Systems, torch.profiler and
cupti-python on eager decode, graph decode, a prefill of 2,048 tokens and 1 µs launches; `four` the
same for four processes that decode at once; `attributes` what CUPTI's settings change; `launches`
(not by default) what it costs to record launches and waits, and nothing else, beside the kernels.
Ratios are over the untraced programs of the same round. Results are in `results/overhead.json`,
written as they come; on one H200 about 90, 80, 70 and 80 seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector import FLOOR_ALL, FLOOR_KERNELS, ROOT, WORKLOAD, Session, build, read
from stages import folders, run_stages
from turns import Answers, Tracer, Turns, floored, make_path, ratios, tracers, turns

PHASES = {"eager": 3, "graph": 5, "prefill": 3, "tiny": 3}
"""Repetitions in a turn, the first of which is not counted."""
ROWS = (
    "none-1,none-2,trace-kernels,trace-full,trace-graph,kernels,full,floor-kernels,floor-all,"
    "floor-graph,nsys,torch.profiler-cuda,torch.profiler-all,cupti-python"
)
FOUR = "none,trace-kernels,trace-graph,floor-kernels,nsys,torch.profiler-cuda"
SLOW = "cupti-python"
SLOW_ROUNDS = 3
ATTRIBUTES: dict[str, dict[str, str]] = {
    "default": {},
    "kernels alone": {"BARE_KINDS": "10"},
    "device buffers of 64 MB, 8 ahead": {"BARE_ATTRIBUTES": "0:67108864:8,6:8:8"},
    "one buffer for all threads": {"BARE_ATTRIBUTES": "9:0:1"},
    "zeroed buffers": {"BARE_ATTRIBUTES": "5:1:1"},
    "pinned host memory": {"BARE_ATTRIBUTES": "8:1:1"},
    "hardware events": {"BARE_HW": "1"},
    "runtime calls": {"BARE_KINDS": FLOOR_KERNELS + ",5"},
    "every call": {"BARE_KINDS": FLOOR_ALL},
    "graphs in one piece": {"BARE_KINDS": "51," + FLOOR_KERNELS},
}
BASE = ["none-1", "none-2"]
NEWER = "a newer libcupti"
LAUNCHES = ("activity", "callbacks", "latency")
"""How `bare_cupti.c` learns of launches: records of those functions alone, a callback of its own at
each, or the times of queueing in kernel records."""


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--stages", default="rows,four,attributes")
    parser.add_argument(
        "--tracers", default="", help="instead of the usual ones of `rows` and `four`"
    )
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--warm", type=float, default=0.3, help="untimed seconds of every turn")
    parser.add_argument("--limit", type=float, default=70, help="seconds for each set of rounds")
    parser.add_argument("--start-limit", type=float, default=100, help="seconds to start in")
    parser.add_argument(
        "--counters", type=Path, default=os.environ.get("RCA_GPU_COUNTERS"),
        help="a folder with cupti-python and its libcupti",
    )  # fmt: skip
    parser.add_argument("--size", default="1b", choices=("tiny", "1b", "7b"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def environment(session: Session) -> dict[str, str]:
    """Where our package lies, which the launcher needs."""
    parts = [make_path(session), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(part for part in parts if part)}


def through_python(session: Session, name: str) -> Tracer:
    """cupti-python, a Python object a record: what records where the collector was not built."""
    folder: Path | None = session.arguments.counters
    if folder is None:
        raise FileNotFoundError("no folder with cupti-python given")
    run, env = session.traced(name, RCA_LLM_GPU="kernels")
    del env["CUDA_INJECTION64_PATH"]
    parts = [str(ROOT / "probes" / "bootstrap"), make_path(session), str(folder)]
    parts.append(os.environ.get("PYTHONPATH", ""))
    return Tracer([], env | {"PYTHONPATH": os.pathsep.join(parts)}, run)


def tracer(session: Session, name: str) -> Tracer:
    """How to start a program by its name: that of a tracer, perhaps with a number."""
    if name == SLOW:
        return through_python(session, name)
    known = tracers(session) | {
        "torch.profiler-cuda": lambda _: Tracer(),
        "torch.profiler-all": lambda _: Tracer(),
    }
    return known[name.rpartition("-")[0] if name[-1].isdigit() else name](name)


def start(
    session: Session, players: Turns, made: dict[str, Callable[[], Tracer]], *more: str
) -> float:
    """Start the workload under each tracer; seconds until all were ready."""
    arguments = session.arguments
    command = [sys.executable, str(WORKLOAD), "--serve", "seat", "--phases", arguments.phases]
    command += ["--size", arguments.size, "--device", arguments.device, *more]
    env = environment(session)
    for name, make in made.items():
        try:
            how = make()
        except FileNotFoundError as error:
            players.lost[name] = str(error)
            continue
        players.start(name, command, how, **(env | how.env))
    took = players.ready(arguments.start_limit)
    for name in list(players.players):
        if name.startswith("torch.profiler"):
            players.ask(name, do="profile", kind=name.rpartition("-")[2])
    return took


def median_of(phase: str) -> Callable[[Any], float]:
    """The median time of a phase in one answer, ns."""
    return lambda answer: float(statistics.median(answer["times"][phase]))


def work(session: Session) -> dict[str, int]:
    """Repetitions in a turn, of the phases that were asked for."""
    return {name: PHASES[name] for name in session.arguments.phases.split(",")}


def tables(rounds: list[dict[str, Any]], phases: dict[str, int], base: list[str]) -> dict[str, Any]:
    """Ratios of every phase."""
    return {phase: ratios(rounds, median_of(phase), base) for phase in phases}


def medians(rounds: list[dict[str, Any]], phases: dict[str, int]) -> list[dict[str, Any]]:
    """The median times in ms of every round, for other ratios than those over the untraced."""
    return [
        {
            name: {phase: round(median_of(phase)(answer) / 1e6, 4) for phase in phases}
            for name, answer in answers.items()
            if answer
        }
        for answers in rounds
    ]


@dataclass
class Measuring:
    """A stage while it is measured: what it found is on disk after every round."""

    session: Session
    stage: str
    players: Turns
    found: dict[str, Any]

    def rounds(
        self, names: list[str], told: Callable[[list[Answers]], dict[str, Any]], **message: Any
    ) -> None:
        """Have programs work in turns; `told` makes the figures of the rounds so far."""
        arguments = self.session.arguments

        def each(done: list[Answers]) -> None:
            self.found |= told(done) | {"lost": self.players.lost}
            self.session.write(self.stage, self.found)

        self.players.rounds(
            arguments.rounds, names, arguments.limit, each=each, do="repeat", **message
        )


def rows(session: Session) -> dict[str, Any]:
    """Every tracer on every phase, in one process each."""
    names = (session.arguments.tracers or ROWS).split(",")
    phases, warm = work(session), session.arguments.warm
    with turns(session) as players:
        made = {name: (lambda name=name: tracer(session, name)) for name in names}
        found: dict[str, Any] = {"start_s": start(session, players, made)}
        seated = [name for name in players.players if name != SLOW]
        base = [name for name in seated if name.startswith("none")]
        Measuring(session, "rows", players, found).rounds(
            seated,
            lambda done: tables(done, phases, base) | {"rounds": medians(done, phases)},
            phases=phases, warm=warm,
        )  # fmt: skip
        if SLOW in players.players and base:
            few = players.rounds(SLOW_ROUNDS, [base[0], SLOW], 40, do="repeat", phases=phases)
            found[SLOW] = tables(few, phases, base[:1])
        found["lost"] = players.lost
    return found


def four(session: Session) -> dict[str, Any]:
    """Four processes that work at once, under each tracer: the time until the last is done."""
    names, phases = (session.arguments.tracers or FOUR).split(","), {"eager": 4}
    with turns(session) as players:
        made = {name: (lambda name=name: tracer(session, name)) for name in names}
        more = ("--workers", "4", "--phases", *phases)
        found: dict[str, Any] = {"start_s": start(session, players, made, *more)}
        Measuring(session, "four", players, found).rounds(
            list(players.players),
            lambda done: {"eager": ratios(done, lambda answer: float(answer["wall"]), ["none"])},
            phases=phases,
        )
        found["lost"] = players.lost
    return found


def asked(session: Session, name: str, variables: dict[str, str]) -> Tracer:
    """CUPTI with nobody reading, and what it answers to its settings in a file."""
    found = floored(session, FLOOR_KERNELS)
    file = session.work / f"answers-{name.replace(' ', '-')}"
    file.unlink(missing_ok=True)
    return Tracer([], found.env | {"BARE_ANSWERS": str(file)} | variables, file)


def answers(players: Turns) -> dict[str, list[str]]:
    """What CUPTI answered to the settings of each floor."""
    files = {name: player.tracer.run for name, player in players.players.items()}
    return {
        name: path.read_text().split("\n")
        for name, path in files.items()
        if path is not None and path.is_file()
    }


def attributes(session: Session) -> dict[str, Any]:
    """CUPTI's own price by the settings that might lower it, nobody reading the records."""
    chosen = dict(ATTRIBUTES)
    folder: Path | None = session.arguments.counters
    newer = (
        next(iter(sorted(folder.glob("nvidia/cu*/lib/libcupti.so.*"))), None) if folder else None
    )
    if newer is not None:
        chosen[NEWER] = {"RCA_LLM_CUPTI": str(newer)}
    phases = {name: count for name, count in work(session).items() if name != "prefill"}

    with turns(session) as players:
        made: dict[str, Callable[[], Tracer]] = dict.fromkeys(BASE, Tracer)
        made |= {name: (lambda n=name, v=v: asked(session, n, v)) for name, v in chosen.items()}
        found: dict[str, Any] = {"start_s": start(session, players, made)}
        Measuring(session, "attributes", players, found).rounds(
            list(players.players),
            lambda done: tables(done, phases, BASE) | {"answers": answers(players)},
            phases=phases,
        )
    return found


def launches(session: Session) -> dict[str, Any]:
    """Whether launches and waits could be recorded by default: our modes, and CUPTI's own price.

    `launches` and `full` over `kernels` say what they add; the goal is at most 3 %.
    """
    phases = {name: count for name, count in work(session).items() if name != "prefill"}
    with turns(session) as players:
        made: dict[str, Callable[[], Tracer]] = dict.fromkeys(BASE, Tracer)
        made |= {
            name: (lambda n=name: tracer(session, n)) for name in ("kernels", "launches", "full")
        }
        made["floor-kernels"] = lambda: asked(session, "floor-kernels", {})
        for how in LAUNCHES:
            name = f"floor-{how}"
            made[name] = lambda n=name, h=how: asked(session, n, {"BARE_LAUNCHES": h})
        found: dict[str, Any] = {"start_s": start(session, players, made)}
        Measuring(session, "launches", players, found).rounds(
            list(players.players),
            lambda done: (
                tables(done, phases, BASE)
                | {"over kernels": tables(done, phases, ["kernels"])}
                | {"rounds": medians(done, phases), "answers": answers(players)}
            ),
            phases=phases, warm=session.arguments.warm,
        )  # fmt: skip
    found["recorded"] = {name: recorded(session, name) for name in ("kernels", "launches", "full")}
    return found


def recorded(session: Session, name: str) -> dict[str, Any]:
    """Kernels and calls in a recording, and bytes of its segments; or why there are none."""
    run = session.work / f"{name}.rca"
    try:
        timeline = read(run)
    except Exception as error:  # what was measured is worth more
        return {"failed": f"{type(error).__name__}: {error}"}
    size = sum(path.stat().st_size for path in run.rglob("*.seg"))
    kernels = int((timeline["gpu"]["kind"] == 0).sum())
    return {"kernels": kernels, "calls": len(timeline["api"]), "bytes": size}


LIMITS = {"rows": 230, "four": 200, "attributes": 200, "launches": 200}
"""Seconds: starting, the rounds, ending."""
STAGES = {"rows": rows, "four": four, "attributes": attributes, "launches": launches}


def show(found: dict[str, Any], depth: str = "  ") -> None:
    """A stage's tables on the screen: median ratio with quartiles, median ms."""
    for key, value in found.items():
        if isinstance(value, dict) and "ratio" in value:
            print(f"{depth}{key:34} {value['ratio']} {value['ms']} {value['rounds']}")
        elif key == "rounds":
            continue
        elif isinstance(value, dict):
            print(f"{depth}{key}")
            show(value, depth + "  ")
        else:
            print(f"{depth}{key}: {str(value)[:400]}")


def main() -> None:
    """Run the stages that were asked for."""
    arguments = options()
    places = folders(arguments.out, "rca-gpu-overhead")
    session = Session(*places, arguments, file="overhead.json", shown=0)
    build(session)

    def told(name: str, _: float) -> None:
        show(session.results.get(name) or {"failed": session.results.get(f"{name} failed")})

    run_stages(session, STAGES, arguments.stages, limits=LIMITS, after=told)


if __name__ == "__main__":
    main()
