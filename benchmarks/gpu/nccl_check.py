"""Compares recordings of the NCCL benchmark with what its program says it did.

    python nccl_check.py sizes --truth folder run.rca

What is compared with is `truth-RANK.json` of `nccl_work.py`, which reads no trace. Prints JSON:
`checks` that hold or not, each with what was found and wanted, and `facts`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rca_llm import align, readers
from rca_llm.attribute import clocks
from rca_llm.attribute import job as jobs
from rca_llm.attribute.collective_names import PAIRWISE
from rca_llm.attribute.collective_parts import Part
from rca_llm.attribute.collectives import Collective, summary_row
from rca_llm.attribute.job import Job
from rca_llm.report import build
from rca_llm.table import NO_TEXT, UNKNOWN, Table, known
from rca_llm.trace import TABLES, Clock, Timeline, Trace

TOLERANCE = 0.05
NEAR_NS = 5_000
"""How far an offset may be from the true one."""

SHIFT_NS = 3_141_592
"""The artificial offset of the last rank's clock."""

JUDGED_US = 100.0
"""From this time on, inside a graph: below it, what lies between two events besides the collective
(launching, the way to the next kernel) is more than 5 %."""

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "uint8": "uint8",
    "int8": "int8",
}


class Findings:
    """Checks as they are made."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}

    def hold(self, name: str, ok: bool, found: object, wanted: object) -> None:
        """A comparison that must hold."""
        self.checks.append({"name": name, "ok": bool(ok), "found": found, "wanted": wanted})

    def told(self) -> dict[str, Any]:
        """Everything as data."""
        failed = [check["name"] for check in self.checks if not check["ok"]]
        return {"failed": failed, "checks": self.checks, "facts": self.facts}


@dataclass(frozen=True)
class Truth:
    """What one rank says."""

    rank: int
    world: int
    phases: list[dict[str, Any]]

    def phase(self, name: str) -> dict[str, Any]:
        """A phase by name."""
        return next(phase for phase in self.phases if phase["name"] == name)


def truths(folder: Path) -> list[Truth]:
    """What all ranks say, by rank."""
    told = [json.loads(path.read_text()) for path in folder.glob("truth-*.json")]
    told.sort(key=lambda one: one["rank"])
    return [Truth(one["rank"], one["world"], one["phases"]) for one in told]


@dataclass(frozen=True)
class Recording:
    """A recording with its collectives matched between ranks."""

    trace: Trace
    job: Job

    def window(self, rank: int, phase: str) -> tuple[int, int]:
        """When a phase began and ended on a rank, by the range of that name."""
        for recording, partition in self.job.ranks:
            if partition.rank.number != rank:
                continue
            timeline = recording.timeline
            table, code = timeline["ranges"], timeline.strings.find(f"phase {phase}")
            mine = np.isin(table["process"], [*partition.rank.processes, UNKNOWN])
            rows = np.flatnonzero((table["name"] == code) & mine & known(table["end"]))
            if code != NO_TEXT and len(rows):
                return int(table["start"][rows].min()), int(table["end"][rows].max())
        raise LookupError(f"no range 'phase {phase}' of rank {rank}")

    def within(self, rank: int, phase: str) -> list[tuple[Part, Collective]]:
        """A rank's parts in the collectives of a phase, by start."""
        begin, end = self.window(rank, phase)
        found = [
            (part, one)
            for one in self.job.collectives
            for part in one.parts
            if part.rank == rank and begin <= part.start < end
        ]
        return sorted(found, key=lambda pair: pair[0].start)


def recording(paths: Sequence[Path]) -> Recording:
    """Read and match; on the clocks of the inputs, brought together as a report does it."""
    trace = readers.load(*paths)
    trace = align.align(Trace([timeline.copy() for timeline in trace.timelines], trace.findings))
    clocks.refine(trace.timelines, jobs.world_size(trace.timelines))
    return Recording(trace, jobs.attribute(trace.timelines))


# ------------------------------------------------------------------ what was asked for


def side_less(op: str | None) -> str | None:
    """A send and its receive as one operation."""
    return "send_recv" if op in PAIRWISE else op


def compare_calls(
    found: Findings, recorded: Recording, told: Sequence[Truth], sizes_known: bool = True
) -> None:
    """Every phase of every rank: the same operations, sizes and types in the same order."""
    totals: Counter[str] = Counter()
    wrong: list[Any] = []
    for truth in told:
        for phase in truth.phases:
            calls = phase["calls"]
            parts = [part for part, _ in recorded.within(truth.rank, phase["name"])]
            totals["asked"] += len(calls)
            totals["recorded"] += len(parts)
            for (op, size, dtype), part in zip(calls, parts, strict=False):
                totals["op"] += side_less(part.op) == side_less(op)
                totals["bytes"] += part.bytes == size
                totals["dtype"] += part.dtype == DTYPES.get(dtype, dtype)
                totals["algo"] += part.algo is not None
                totals["proto"] += part.proto is not None
                if side_less(part.op) != side_less(op) or part.bytes not in (size, None):
                    wrong.append([phase["name"], truth.rank, op, size, part.op, part.bytes])
            if len(calls) != len(parts):
                wrong.append([phase["name"], truth.rank, len(calls), len(parts)])
    found.facts["calls"] = dict(totals)
    found.facts["wrong"] = wrong[:12]
    found.hold("no call is told wrongly", not wrong, len(wrong), 0)
    for name in ("recorded", "op", *(("bytes", "dtype") if sizes_known else ())):
        found.hold(
            f"every call: {name}", totals[name] == totals["asked"], totals[name], totals["asked"]
        )


def compare_ranks(found: Findings, recorded: Recording, told: Sequence[Truth]) -> None:
    """Every collective of a phase has a part of every rank, and they agree on how it was done."""
    whole = total = agreed = 0
    algos: Counter[str] = Counter()
    for phase in told[0].phases:
        for part, one in recorded.within(0, phase["name"]):
            total += 1
            whole += one.complete
            ways = {(p.algo, p.proto) for p in one.parts}
            agreed += len(ways) == 1
            algos[f"{side_less(part.op)} {part.algo} {part.proto}"] += 1
    found.facts["ways"] = dict(algos)
    found.hold("matched across ranks", whole == total and total > 0, whole, total)
    found.hold("algorithm and protocol alike on all ranks", agreed == total, agreed, total)


def compare_bandwidth(found: Findings, recorded: Recording, told: Sequence[Truth]) -> None:
    """Bus bandwidth by the recording against the program's own events."""
    rows: list[list[Any]] = []
    off: list[float] = []
    by_events = {
        phase["name"]: median(
            min(side) / phase.get("each", 1)
            for side in zip(*(t.phase(phase["name"])["times_us"] for t in told), strict=True)
        )
        for phase in told[0].phases
        if "op" in phase
    }
    for phase in told[0].phases:
        if "op" not in phase:
            continue
        measured = by_events[phase["name"]]
        ours = [one.transfer for _, one in recorded.within(0, phase["name"]) if one.transfer]
        if not ours:
            rows.append([phase["name"], None, measured])
            continue
        speeds = [summary_row(one)["busbw_bytes_s"] for _, one in recorded.within(0, phase["name"])]
        speed = median(int(str(s)) for s in speeds if s) if any(speeds) else None
        ratio = median(ours) / 1000 / measured
        rows.append([phase["name"], median(ours) / 1000, measured, ratio, speed])
        in_graph = by_events.get(f"{phase['op']} {phase['size']} graph", 0.0)
        if in_graph >= JUDGED_US:
            off.append(abs(ratio - 1))
    found.facts["bandwidth"] = rows
    within = sum(value <= TOLERANCE for value in off)
    found.hold("bus bandwidth within 5 %", bool(off) and within == len(off), within, len(off))


def check_sizes(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """Everything about the sweep of sizes."""
    found = Findings()
    compare_calls(found, recorded, told)
    if len(told) > 1:
        compare_ranks(found, recorded, told)
        compare_bandwidth(found, recorded, told)
        compare_offsets(found, recorded)
        compare_sources(found, recorded)
    return found


def compare_sources(found: Findings, recorded: Recording) -> None:
    """The profiler plugin and the NVTX payloads of NCCL say the same where both speak."""
    counts = [timeline.header.extra.get("nccl", {}) for timeline in recorded.trace.timelines]
    found.facts["sources"] = counts
    found.facts["nccl"] = [timeline.header.nccl for timeline in recorded.trace.timelines]
    both, agree = (sum(one.get(key, 0) for one in counts) for key in ("by_both", "agree"))
    found.hold("plugin and NVTX agree on operation and size", agree == both > 0, agree, both)


def check_one(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """One rank: what NCCL's NVTX payloads say of every call, since there need be no kernel."""
    found = Findings()
    found.facts["sources"] = [t.header.extra.get("nccl") for t in recorded.trace.timelines]
    found.facts["nccl"] = [t.header.nccl for t in recorded.trace.timelines]
    timeline = recorded.trace.timelines[0]
    table = timeline["ranges"]
    domain = table["domain"] == timeline.strings.find("NCCL")
    seen: Counter[str] = Counter()
    for phase in told[0].phases:
        begin, end = recorded.window(0, phase["name"])
        rows = np.flatnonzero(domain & (table["start"] >= begin) & (table["start"] < end))
        for row in rows.tolist():
            seen[f"{timeline.text(int(table['name'][row]))} {int(table['bytes'][row])}"] += 1
    asked = Counter(
        f"{op} {size}"
        for phase in told[0].phases
        if phase.get("mode") != "graph"
        for op, size, _ in phase["calls"]
    )
    found.facts["seen"], found.facts["asked"] = dict(seen), dict(asked)
    reduced = {key: count for key, count in asked.items() if key.startswith("all_reduce ")}
    ours = {key: seen[key.replace("all_reduce", "ncclAllReduce")] for key in reduced}
    found.hold("NVTX payloads of every all-reduce", ours == reduced and reduced, ours, reduced)
    found.facts["kernels"] = sum(len(r.timeline["collectives"]) for r in recorded.job.recordings)
    return found


# ------------------------------------------------------------------ clocks


def alone(timeline: Timeline, rank: int, processes: Iterable[int]) -> Timeline:
    """One rank of a timeline as a recording of its own."""
    wanted = [*processes]
    own = timeline.copy()
    own.tables = {
        name: table.take(np.flatnonzero(np.isin(table["process"], wanted)))
        if "process" in table
        else table
        for name, table in timeline.tables.items()
        if name not in ("batch", "requests", "tokens")
    }
    own.header.rank = rank
    own.header.host = f"host {rank}"
    own.clock = Clock(rank, None, None)
    return own


def shift_times(timeline: Timeline) -> None:
    """Move every time of a timeline, as if its clock were off."""
    for name, table in timeline.tables.items():
        moved = {
            column: np.where(known(values), values + SHIFT_NS, values)
            for column, values in table.known.items()
            if TABLES[name][column] == "time"
        }
        timeline.tables[name] = table.with_columns(**moved)


def compare_offsets(found: Findings, recorded: Recording) -> None:
    """Ranks of one host, taken for ranks on clocks of their own: 0, and what was added."""
    for shift in (0, SHIFT_NS):
        split: list[Timeline] = []
        for member, partition in recorded.job.ranks:
            own = alone(member.timeline, partition.rank.number, partition.rank.processes)
            if partition is recorded.job.ranks[-1][1] and shift:
                shift_times(own)
            split.append(own)
        clocks.refine(split, len(split))
        offset, unsure = split[-1].clock.offset_ns, split[-1].clock.uncertainty_ns
        error = None if offset is None else offset + shift
        found.facts[f"offset {shift}"] = {"offset_ns": offset, "uncertainty_ns": unsure}
        name = "offset on one host" if not shift else "artificial offset recovered"
        found.hold(
            f"{name} within 5 us", error is not None and abs(error) <= NEAR_NS, offset, -shift
        )


# ------------------------------------------------------------------ waiting


def waits_of(recorded: Recording, phase: str, rank: int) -> list[int]:
    """How long a rank waited for the last one in each collective of a phase, ns."""
    return [
        one.arrived - part.start if one.arrived is not None else 0
        for part, one in recorded.within(rank, phase)
    ]


def first_waits(recorded: Recording, phase: str, rank: int, steps: int) -> list[int]:
    """The waiting in the first collective of each step; all steps have equally many.

    A delay before a step shows there as it is. In those that follow, a rank that launches kernel
    by kernel also shows how long that takes, since the others have launched everything meanwhile.
    """
    waits = waits_of(recorded, phase, rank)
    return waits[:: max(len(waits) // steps, 1)]


def check_model(recorded: Recording, told: Sequence[Truth], sizes_known: bool = True) -> Findings:
    """The model's collectives, and the waiting for the steps that began late."""
    found = Findings()
    compare_calls(found, recorded, told, sizes_known)
    if len(told) > 1:
        compare_ranks(found, recorded, told)
        compare_offsets(found, recorded)
    for phase in told[0].phases if len(told) > 1 else ():
        check_late(found, recorded, told, phase["name"])
    return found


STEPS = 10
"""Steps of a request, as in `nccl_work.py`."""


def check_late(found: Findings, recorded: Recording, told: Sequence[Truth], name: str) -> None:
    """The steps of a request that began late on the last rank."""
    phase = told[-1].phase(name)
    delayed = phase["delays"]
    for truth in told[:-1]:
        first = first_waits(recorded, name, truth.rank, STEPS)
        waited = [first[step] for step in phase["late"]]
        total = sum(waits_of(recorded, name, truth.rank))
        found.facts[f"wait {name} {truth.rank}"] = {"first": first, "total": total}
        close = all(abs(w / d - 1) <= TOLERANCE for w, d in zip(waited, delayed, strict=True))
        found.hold(f"waiting in {name} within 5 %", close, waited, delayed)


def cut(timeline: Timeline, begin: int, end: int) -> Timeline:
    """What began in a stretch of time, as a recording of its own."""
    own = timeline.copy()
    own.tables = {}
    for name, table in timeline.tables.items():
        column = next((c for c in ("start", "t") if TABLES[name].get(c) == "time"), None)
        if name in ("batch", "requests", "tokens"):
            continue
        own.tables[name] = table if column is None else _between(table, column, begin, end)
    return own


def _between(table: Table, column: str, begin: int, end: int) -> Table:
    times = table[column]
    return table.take(np.flatnonzero((times >= begin) & (times < end)))


def piece(recorded: Recording, told: Sequence[Truth], phase: str) -> dict[str, Any]:
    """The summary of one phase alone."""
    sides = [recorded.window(truth.rank, phase) for truth in told]
    begin, end = min(side[0] for side in sides), max(side[1] for side in sides)
    pieces = [cut(timeline, begin, end) for timeline in recorded.trace.timelines]
    return build(Trace(pieces)).summary


def check_delays(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """Clean windows name nobody; injected delays are found, with rank, size and cause."""
    found = Findings()
    compare_calls(found, recorded, told)
    compare_ranks(found, recorded, told)
    check_clean(found, recorded, told)
    for phase in told[0].phases:
        if "cause" in phase:
            check_cause(found, recorded, told, phase["name"])
    return found


UNEVEN = 0.10
"""A window is not clean if by the ranks' own clocks one's host lost more of it than this."""


def check_clean(found: Findings, recorded: Recording, told: Sequence[Truth]) -> None:
    """Windows in which nobody is delayed on purpose, and by the ranks' own clocks nobody was."""
    windows = [phase["name"] for phase in told[0].phases if phase["name"].startswith("clean")]
    named = {name: late_rank(recorded, told, name) for name in windows}
    uneven = {name: lost_most(told, name) for name in windows}
    found.facts["named in clean windows"] = {k: v for k, v in named.items() if v is not None}
    found.facts["share of a window that a host lost"] = {k: v[1] for k, v in uneven.items()}
    clean = [name for name in windows if uneven[name][1] <= UNEVEN]
    quiet = sum(named[name] is None for name in clean)
    silent = sum(rank is None for rank in named.values())
    found.facts["windows"] = {"all": len(windows), "all quiet": silent, "clean": len(clean)}
    enough = len(clean) > 0 and quiet >= 0.95 * len(clean)
    found.hold("clean windows without a straggler", enough, quiet, len(clean))
    right = [named[name] in (None, uneven[name][0]) for name in windows if name not in clean]
    wanted = len(right)
    found.hold("a rank named in another window is the slow one", all(right), sum(right), wanted)


def late_rank(recorded: Recording, told: Sequence[Truth], name: str) -> int | None:
    """The rank that a window's report says the others wait for."""
    hints = {hint["id"]: hint for hint in piece(recorded, told, name)["hints"]}
    return hints["R05"]["evidence"]["rank"] if "R05" in hints else None


def lost_most(told: Sequence[Truth], name: str) -> tuple[int, float]:
    """The rank whose host took longest beyond the others, and that time as part of the window."""
    phases = [truth.phase(name) for truth in told]
    steps = list(zip(*(phase["host_ns"] for phase in phases), strict=True))
    lost = [sum(step[rank] - min(step) for step in steps) for rank in range(len(phases))]
    rank = max(range(len(lost)), key=lambda rank: lost[rank])
    return told[rank].rank, lost[rank] / (phases[rank]["end"] - phases[rank]["begin"])


EXPECTED = {"sleep": ("scheduling.host", "scheduling.other"), "gc": ("scheduling.gc",)}
EXPECTED["hog"] = ("scheduling.cpu_wait",)
FIRST = {"sleep": "R05", "gc": "R08", "hog": "R07"}
"""The rule that must be among the hints for each cause."""


def check_cause(found: Findings, recorded: Recording, told: Sequence[Truth], name: str) -> None:
    """One injected cause: who waited how long, for whom, and why."""
    first, last = told[0].phase(name), told[-1].phase(name)
    cause = last["cause"]
    summary = piece(recorded, told, name)
    hints = {hint["id"]: hint for hint in summary["hints"]}
    evidence = hints["R05"]["evidence"] if "R05" in hints else {}
    stood = first["end"] - first["begin"] - sum(first["host_ns"])
    waited = sum(first_waits(recorded, name, 0, len(last["delays"])))
    injected = sum(b - a for a, b in zip(first["delays"], last["delays"], strict=True))
    found.facts[name] = {
        "injected_ns": injected,
        "waited at the start of steps": waited,
        "rank 0 stood in synchronisation": stood,
        "R05": {key: evidence.get(key) for key in ("wait_ns", "carried_ns", "in_collectives_ns")},
        "communication.wait": summary["parts"].get("communication.wait", 0),
        "hints": [[id, hint["title"]] for id, hint in hints.items()],
        "late_rank_does": [evidence.get("late_rank_does"), evidence.get("late_rank_does_share")],
    }
    if cause != "hog":  # whose launching is slow as well
        near(found, f"{name}: waiting at the start of steps", waited, injected)
    near(found, f"{name}: R05's waiting", evidence.get("wait_ns", 0), stood)
    rank = evidence.get("rank")
    found.hold(f"{name}: rank named", rank == told[-1].rank, rank, told[-1].rank)
    does = evidence.get("late_rank_does")
    ok = FIRST[cause] in hints and (does in EXPECTED[cause] or cause == "hog")
    found.hold(f"{name}: cause", ok, [does, *hints], [FIRST[cause], *EXPECTED[cause]])
    if cause == "hog":  # whose thread runs half of the time that it is late
        away = last["end"] - last["begin"] - sum(last["cpu_ns"])
        ready = hints["R07"]["evidence"]["charged_ns"] if "R07" in hints else 0
        near(found, "ready but not running", ready, away)


def near(found: Findings, name: str, value: float, wanted: float) -> None:
    """A time that must be within the tolerance of another one."""
    close = bool(wanted) and abs(value / wanted - 1) <= TOLERANCE
    found.hold(f"{name} within 5 %", close, value, wanted)


# ------------------------------------------------------------------ contention


def check_contention(recorded: Recording, told: Sequence[Truth]) -> Findings:
    """All-reduces beside peer copies: R24, with the slow-down that the events show."""
    found = Findings()
    compare_calls(found, recorded, told)
    compare_ranks(found, recorded, told)

    def measured(mode: str) -> float:
        sides = [truth.phase(f"contention {mode}")["times_us"] for truth in told]
        return median(min(side) for side in zip(*sides, strict=True))

    usual = (measured("alone") + measured("alone again")) / 2
    slower = measured("copies") / usual
    summary = build(recorded.trace).summary
    hint = next((hint for hint in summary["hints"] if hint["id"] == "R24"), None)
    evidence = hint["evidence"] if hint else {}
    ratio = evidence["median_with_copies_ns"] / evidence["median_without_ns"] if evidence else None
    copies = [
        sum(part.contended_ns or 0 for part, _ in recorded.within(truth.rank, "contention copies"))
        for truth in told
    ]
    found.facts["contention"] = {
        "alone_us": [measured("alone"), measured("alone again")],
        "copies_us": measured("copies"),
        "overlap_ns": copies,
        "hint": hint and hint["title"],
        "evidence": evidence,
    }
    found.hold("R24 names the contention", hint is not None or slower < 1.3, bool(hint), slower)
    close = ratio is not None and abs(ratio / slower - 1) <= TOLERANCE
    found.hold("R24: slow-down within 5 %", close or (hint is None and slower < 1.3), ratio, slower)
    return found


CHECKS: dict[str, Callable[[Recording, Sequence[Truth]], Findings]] = {
    "sizes": check_sizes,
    "tp": check_model,
    "tp-names": lambda recorded, told: check_model(recorded, told, sizes_known=False),
    "one": check_one,
    "delays": check_delays,
    "contention": check_contention,
}


def main() -> None:
    """Check one recording and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--expect", action="append", default=[], help="ALGO=RING, PROTO=LL …")
    parser.add_argument("recording", type=Path, nargs="+")
    arguments = parser.parse_args()
    told, recorded = truths(arguments.truth), recording(arguments.recording)
    found = CHECKS[arguments.check](recorded, told)
    for wanted in arguments.expect:
        expect(found, recorded, told, *wanted.split("="))
    print(json.dumps(found.told()))


def expect(
    found: Findings, recorded: Recording, told: Sequence[Truth], what: str, value: str
) -> None:
    """That NCCL did all collectives by the way that it was told to."""
    ways = Counter(
        getattr(part, what.lower())
        for phase in told[0].phases
        for part, _ in recorded.within(0, phase["name"])
        if part.op not in PAIRWISE
    )
    found.hold(f"{what} as forced", set(ways) == {value}, dict(ways), value)


if __name__ == "__main__":
    main()
