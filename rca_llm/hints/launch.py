"""Causes in how work is launched: one by one, outside graphs, late, one stream at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import GRAPH_CAPTURE, GRAPH_LAUNCH, LAUNCH, SYNC
from rca_llm.attribute.host import launch_counts, main_thread
from rca_llm.attribute.job import Member
from rca_llm.attribute.partition import Recording
from rca_llm.attribute.parts import CLASS_OF, CLASSES, PARTS, codes
from rca_llm.hints import records
from rca_llm.hints.case import Case, Loss, Spans, jit_calls, launches_of, rank_rows
from rca_llm.hints.drains import WITHOUT_CALLS
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.wording import name, percent, plural, time
from rca_llm.intervals import Pieces
from rca_llm.table import Array, Ints, Mask, known
from rca_llm.trace import GRAPH, KERNEL

LAUNCHING = ("scheduling.launch", "scheduling.host", "scheduling.other")
"""What the gap before a kernel is charged as while the host gets it launched."""


@rule(
    "R03",
    "LAUNCH-BOUND",
    "scheduling",
    Stage.LAUNCH,
    idle=True,
    disproof="launches that were queued long before their kernels start",
)
def launch_bound(case: Case) -> Hint | None:
    """The device waits for the host, which launches kernels one by one.

    Symptom: in steady steps (without steps, while there is work) idle for `gap_share`, at least
    `launches` launches a step, a median gap between `gap_low_ns` and `gap_high_ns`, the launching
    thread busy for `on_cpu` of it and in no synchronisation, and kernels not from graphs. Where no
    calls were recorded, kernels are counted instead; states or spans must show the thread at work,
    nothing else explain the gaps, and gaps after copies of a few bytes to the host (R15) are left
    out: whether it launches or runs other code then stays open. Source: threads C32, C33, C77, B41.
    Disproof: launches queued ahead.
    """
    limits = case.limits("R03")
    counted = [(number, *_launches(case, number)) for number in range(len(case.job.ranks))]
    judged = [
        (number, float(np.median(launches)))
        for number, launches, graphs in counted
        if len(launches) and np.median(launches) >= limits["launches"] and not graphs
    ]
    found = [_gaps(case, number, launches) for number, launches in judged]
    best = max(found, key=lambda one: one.loss.ns, default=None)
    if best is None or best.loss.share < limits["gap_share"] or best.busy < limits["on_cpu"]:
        return None
    if best.median is None or not limits["gap_low_ns"] <= best.median <= limits["gap_high_ns"]:
        return None
    if not best.called and best.told < limits["on_cpu"]:
        return None
    idle = f"GPU idle {percent(best.loss.share)}" + ("" if best.loss.steps else " while it is fed,")
    return Hint(
        f"{idle} because the host issues {best.launches:,.0f} launches one by one"
        if best.called
        else f"{idle} because the host launches"
        f" {best.launches:,.0f} kernels one by one, or runs other code between them",
        "medium" if best.called and best.told >= limits["on_cpu"] else "low",
        case.charge(LAUNCHING, best.spans),
        {
            "idle_ns": best.loss.ns,
            "step_ns": best.loss.total,
            "idle_share": best.loss.share,
            "launches_per_step": best.launches,
            "median_gap_ns": best.median,
            "launching_share_of_gaps": best.busy,
            "recorded_share_of_gaps": best.told,
            "steps": best.loss.steps,
            "calls_recorded": best.called,
        },
        advice=None if best.called else WITHOUT_CALLS,
    )


@dataclass(frozen=True)
class _Gaps:
    """The idle time of a rank's devices between kernels of its steady steps.

    `launches` is the median a step; `busy` the fraction of the idle time in which the launching
    thread is on the CPU or, where its states are not known, in nothing that would explain the gap;
    `told` the fraction in which records show it at work. `called`: the calls were recorded, else
    launches are counted by their kernels.
    """

    loss: Loss
    spans: Spans
    launches: float
    median: float | None
    busy: float
    told: float
    called: bool


def _gaps(case: Case, number: int, launches: float) -> _Gaps:
    member = case.job.ranks[number]
    steady, called = case.steady(number), bool(len(launches_of(member)))
    windows, every = _windows(member, steady), _windows(member, np.arange(len(member[1].steps)))
    # Where calls tell of synchronisations, idle time after a tiny copy is the launches' as well.
    left_out = intervals.EMPTY.start if called else records.tiny_copies(member)
    stood = _stood_still(member)
    idle, everywhere = _idle(stood, windows, left_out), _idle(stood, every, left_out)
    gaps = intervals.union(idle.start, idle.end)
    lost = int((gaps[1] - gaps[0]).sum())
    on_cpu = _with_states(member, gaps)
    spent = idle.sums(len(PARTS))
    told = on_cpu if on_cpu is not None else _share(spent, LAUNCHING[:2])
    charged = _share(spent, LAUNCHING)
    return _Gaps(
        Loss(lost, int((windows[1] - windows[0]).sum()), len(steady)),
        (everywhere.start, everywhere.end),
        launches,
        records.median(gaps[1] - gaps[0]),
        charged if on_cpu is None else on_cpu if called else min(on_cpu, charged),
        told,
        called,
    )


PAUSE_NS = 1_000_000
"""Without steps, a device that stands still for longer has nothing to do."""


def _windows(member: Member, places: Ints) -> Spans:
    """Some steps of a rank; where it has none, the stretches in which its devices had work."""
    recording, partition = member
    if not len(partition.steps):
        start, end = intervals.union(partition.activity.start, partition.activity.end + PAUSE_NS)
        return start, end - PAUSE_NS
    rows = partition.steps[places]
    return intervals.union(recording.steps.start[rows], partition.step_end[rows])


def _stood_still(member: Member) -> Pieces:
    """When the devices of a rank stood still, by what that is charged to; unknown time is not."""
    segments = member[1].segments
    seen = CLASS_OF[segments.part] != CLASSES.index("unknown")
    return segments.pieces.take(np.flatnonzero((segments.activity < 0) & seen))


def _idle(stood: Pieces, windows: Spans, left_out: Ints) -> Pieces:
    """When devices stood still within some windows, but for times that begin at instants."""
    idle = intervals.meeting(stood, windows)
    if not len(left_out):
        return idle
    start, end = intervals.union(idle.start, idle.end)
    whole = Pieces(start, end, np.isin(start, left_out).astype(np.int64))
    return idle.take(np.flatnonzero(whole.label[intervals.at(whole, idle.start)] == 0))


def _share(spent: Ints, parts: Sequence[str]) -> float:
    """The fraction of some time, by part, that is charged to some parts."""
    return float(spent[codes(parts)].sum() / spent.sum()) if spent.sum() else 0.0


def _with_states(member: Member, spans: Spans) -> float | None:
    """The fraction of some time that the launching thread is on the CPU and in no synchronisation.

    None where its states were not recorded.
    """
    recording, partition = member
    counts = launch_counts(recording.host, recording.launched_by)
    thread = main_thread(recording.host, counts, partition.rank.processes)
    total = int((spans[1] - spans[0]).sum())
    if thread < 0 or not total:
        return None
    process, number = recording.host.threads[thread]
    running = records.state_spans(recording, process, number, ["running"])
    if running is None:
        return None
    api = recording.timeline["api"]
    rows = (recording.calls == SYNC) & (api["thread"] == number) & rank_rows(member, api)
    waiting = intervals.union(api["start"][rows], api["end"][rows])
    on_cpu = intervals.common(spans, running)
    either = intervals.union(*records.joined([running, waiting]))
    both = on_cpu + intervals.common(spans, waiting) - intervals.common(spans, either)
    return (on_cpu - both) / total


def _launches(case: Case, number: int) -> tuple[Ints, bool]:
    """The launches in each judged step of a rank, and whether graphs are a tenth of them.

    Where no launch was recorded, the kernels that are not of graphs are counted.
    """
    member = case.job.ranks[number]
    recording, partition = member
    rows, steps = launches_of(member), partition.steps
    if len(rows):
        starts = np.sort(recording.steps.start[steps])
        place = np.searchsorted(starts, recording.timeline["api"]["start"][rows], "right")
        steady = case.steady(number) + 1 if len(starts) else np.zeros(1, np.int64)
    else:
        kernels = _own_kernels(member)
        place = partition.step_of[kernels] if len(steps) else np.zeros(len(kernels), np.int64)
        place = place[place >= 0]
        steady = steps[case.steady(number)] if len(steps) else np.zeros(1, np.int64)
    counts = np.bincount(place, minlength=int(steady.max(initial=0)) + 1)
    graphs = int((recording.calls[rows] == GRAPH_LAUNCH).sum())
    return counts[steady], _from_graphs(recording, graphs, len(rows))


def _own_kernels(member: Member) -> Ints:
    """Rows of `gpu` that are kernels of a rank and not of a replayed graph."""
    gpu = member[0].timeline["gpu"]
    single = (gpu["kind"] == KERNEL) & ~known(gpu["graph_node"])
    return np.flatnonzero(single & rank_rows(member, gpu))


def _from_graphs(recording: Recording, graphs: int, launches: int) -> bool:
    """Whether a tenth of the kernels, or of the launches, come from graphs."""
    gpu = recording.timeline["gpu"]
    kernels = int(np.count_nonzero(gpu["kind"] == KERNEL))
    nodes = int(np.count_nonzero(known(gpu["graph_node"]) | (gpu["kind"] == GRAPH)))
    return bool(graphs * 10 >= launches > 0 and graphs) or nodes * 10 >= max(kernels, 1)


@rule(
    "R04",
    "GRAPH-MISS",
    "scheduling",
    Stage.LAUNCH,
    disproof="a graph replay of a batch as large as the eager ones",
)
def graph_miss(case: Case) -> Hint | None:
    """Batches above a size run without CUDA graphs.

    Symptom: decode steps come as graph replays and eager, every eager one has a larger batch than
    any graph one, and the median eager step lasts at least `ratio` times the median graph step.
    Source: thread C31. Disproof: a graph replay of such a batch.
    """
    limits = case.limits("R04")
    excess: dict[tuple[int, int], int] = {}
    shown: dict[str, float] = {}
    for number in range(len(case.job.ranks)):
        groups = _by_mode(case, number)
        if groups is None:
            continue
        eager, graph, largest, smallest = groups
        usual, slow = float(np.median(list(graph.values()))), float(np.median(list(eager.values())))
        if slow < limits["ratio"] * usual or smallest <= largest:
            continue
        place = _recording_number(case, number)
        lost = {(place, row): max(round(ns - usual), 0) for row, ns in eager.items()}
        if sum(lost.values()) > sum(excess.values()):
            excess = lost
            shown = {
                "largest_graph_batch": largest,
                "smallest_eager_batch": smallest,
                "median_graph_step_ns": round(usual),
                "median_eager_step_ns": round(slow),
                "eager_steps": len(eager),
                "graph_steps": len(graph),
            }
    if not excess:
        return None
    more = shown["median_eager_step_ns"] - shown["median_graph_step_ns"]
    return Hint(
        f"Batches above {shown['largest_graph_batch']} run without CUDA graphs:"
        f" +{time(more)} per step",
        "high",
        case.charge_steps(excess, records.step_time(case)),
        shown,
    )


def _by_mode(case: Case, number: int) -> tuple[dict[int, int], dict[int, int], int, int] | None:
    """Eager and graph decode steps with durations; the largest graph, smallest eager batch."""
    member = case.job.ranks[number]
    recording, partition = member
    steps = recording.steps
    mode = _modes(member)
    rows = partition.steps[case.steady(number)]
    decodes = (steps.prefill_tokens[rows] <= 0) & (steps.size[rows] > 0)
    rows = rows[decodes]
    eager, graph = rows[mode[rows] == "eager"], rows[mode[rows] == "graph"]
    if not len(eager) or not len(graph):
        return None
    lasting = partition.step_end - steps.start
    return (
        dict(zip(eager.tolist(), lasting[eager].tolist(), strict=True)),
        dict(zip(graph.tolist(), lasting[graph].tolist(), strict=True)),
        int(steps.size[graph].max()),
        int(steps.size[eager].min()),
    )


def _modes(member: Member) -> Array:
    """How every step of the recording ran, as text: told, or from its launches on this rank."""
    recording, partition = member
    steps = recording.steps
    told = [recording.timeline.text(int(code)) for code in steps.mode]
    rows = launches_of(member)
    owner = partition.work.of_call[rows]
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    graph = recording.calls[rows] == GRAPH_LAUNCH
    every = np.bincount(owner, minlength=len(steps))
    graphs = np.bincount(owner[graph], minlength=len(steps))
    seen = np.where(every == 0, "", np.where(graphs > 0, "graph", "eager"))
    return np.array([text or guess for text, guess in zip(told, seen, strict=True)], object)


def _recording_number(case: Case, number: int) -> int:
    recording, _ = case.job.ranks[number]
    return next(n for n, one in enumerate(case.job.recordings) if one is recording)


@rule(
    "R12",
    "JIT-WARMUP",
    "scheduling",
    Stage.HOST,
    disproof="the same delay on a second request of the same shape",
)
def late_compilation(case: Case) -> Hint | None:
    """Kernels are compiled, loaded or captured while requests wait.

    Symptom: a compile, autotune or module-load span of `span_ns`, a graph capture as long, or a
    first launch that takes `first_ratio` times the median of its kernel and `span_ns`, with the
    device idle, inside a request. Source: threads C29, C30. Disproof: the same delay again.
    """
    limits = case.limits("R12")
    spans, what, count = _compilations(case, limits["span_ns"])
    parts = ("scheduling.jit", "scheduling.graph_capture")
    charge = case.charge(parts, spans)
    first, kernels = _first_launches(case, limits)
    late = case.charge(("scheduling.launch",), first)
    if not charge.ns and not late.ns:
        return None
    if not charge.ns:
        charge, spans, what, count = late, first, "first launch", kernels
    if charge.ns < limits["span_ns"]:
        return None
    shape = _first_shape(case, charge)
    did = f"compiled or loaded {plural(count, 'module')}"
    if spans is first:
        did = f"launched {plural(count, 'kernel')} slowly, as loading or compiling does"
    return Hint(
        f"{'First use of ' + shape if shape else 'First use'} {did}:"
        f" +{time(charge.ns / max(len(charge.requests), 1))} once",
        "high" if case.lives else "low",
        charge,
        {
            "compile_ns": charge.ns,
            "spans": count,
            "longest_ns": int((spans[1] - spans[0]).max(initial=0)),
            "what": what,
            "first_launches_slow": kernels,
        },
    )


def _compilations(case: Case, least: float) -> tuple[Spans, str, int]:
    """Long compile spans and calls, captures included: their times, a name, and how many."""
    found: list[Spans] = []
    names: list[str] = []
    for recording in case.job.recordings:
        api, spans = recording.timeline["api"], case.spans(recording, "jit")
        calls = np.concatenate([jit_calls(recording), _capture_calls(recording)])
        for table, rows in ((api, calls), (spans, np.arange(len(spans)))):
            start, end = table["start"][rows], table["end"][rows]
            long = (end - start >= least) & (start >= case.warm_since)
            found.append((start[long], end[long]))
            texts = table["name"][rows[long]][:1].tolist()
            names += [recording.timeline.strings[code] for code in texts]
    joined = records.joined(found)
    return joined, name(names[-1]) if names else "", len(joined[0])


def _capture_calls(recording: Recording) -> Ints:
    return np.flatnonzero(recording.calls == GRAPH_CAPTURE)


def _first_launches(case: Case, limits: Mapping[str, float]) -> tuple[Spans, int]:
    """First launches of kernels that take far longer than the later ones: times and count."""
    found: list[Spans] = []
    for recording in case.job.recordings:
        api = recording.timeline["api"]
        slow = (recording.calls == LAUNCH) & (api["end"] - api["start"] >= limits["span_ns"])
        slow &= api["start"] >= case.warm_since
        calls = _slow_firsts(recording, slow, limits["first_ratio"]) if slow.any() else []
        found += [(api["start"][[call]], api["end"][[call]]) for call in calls]
    return records.joined(found), len(found)


def _slow_firsts(recording: Recording, slow: Mask, ratio: float) -> list[int]:
    """The slow calls that launch a kernel first, and take `ratio` times its later ones' median."""
    gpu, called = recording.timeline["gpu"], recording.links.api_row
    api = recording.timeline["api"]
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & (called >= 0))
    rows = rows[np.argsort(gpu["name"][rows], kind="stable")]
    calls: set[int] = set()
    for run in intervals.runs(gpu["name"][rows]):
        own = called[rows[run]]
        first, later = int(own[0]), own[own != own[0]]
        if slow[first] and len(later):
            lasting = api["end"][first] - api["start"][first]
            usual = np.median(api["end"][later] - api["start"][later])
            if lasting >= ratio * usual:
                calls.add(first)
    return sorted(calls)


def _first_shape(case: Case, charge: Charge) -> str | None:
    """What was new: the batch of the first request that paid."""
    if not charge.requests:
        return None
    row = case.request_rows.get(charge.requests[0])
    tokens = row["prompt_tokens"] if row else None
    return f"a prompt of {tokens:,} tokens" if tokens is not None else None


@rule(
    "R42",
    "STREAM-SERIALISED",
    "scheduling",
    Stage.LAUNCH,
    disproof="kernels of different streams that run at one time",
)
def serialised_streams(case: Case) -> Hint | None:
    """Several streams are used but never run at one time, because every launch waits.

    Symptom: two or more streams share less than `overlap` of the least busy one's time, and
    `blocking` of the launches return only after their kernel has ended, as with launch blocking.
    Source: proposal. Disproof: overlap.
    """
    limits = case.limits("R42")
    for member in case.job.ranks:
        blocking = _blocking_launches(member)
        if blocking < limits["blocking"]:
            continue
        streams, overlap = _overlap_of_streams(member)
        if streams < 2 or overlap >= limits["overlap"]:
            continue
        return Hint(
            f"{streams} streams never overlap: launches wait for their kernels, as with"
            " CUDA_LAUNCH_BLOCKING",
            "medium",
            case.charge(("scheduling.launch", "scheduling.host", "scheduling.other")),
            {
                "streams": streams,
                "overlap_share": overlap,
                "blocking_launch_share": blocking,
            },
        )
    return None


def _overlap_of_streams(member: Member) -> tuple[int, float]:
    """How many streams run kernels, and the time two do together over that of the least busy."""
    recording, _ = member
    gpu = recording.timeline["gpu"]
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & rank_rows(member, gpu) & known(gpu["start"]))
    streams = np.unique(gpu["stream"][rows]).tolist()
    busy: list[int] = []
    for stream in streams:
        mine = rows[gpu["stream"][rows] == stream]
        busy.append(intervals.length(gpu["start"][mine], gpu["end"][mine]))
    together = sum(busy) - intervals.length(gpu["start"][rows], gpu["end"][rows])
    least = min((ns for ns in busy if ns), default=0)
    return len(streams), together / least if least else 1.0


def _blocking_launches(member: Member) -> float:
    """The fraction of kernel launches that return only after their kernel has ended."""
    recording, _ = member
    gpu, api, linked = recording.timeline["gpu"], recording.timeline["api"], recording.links
    rows = np.flatnonzero((gpu["kind"] == KERNEL) & (linked.api_row >= 0) & rank_rows(member, gpu))
    if not len(rows):
        return 0.0
    returned = api["end"][linked.api_row[rows]]
    return float(np.mean(returned >= gpu["end"][rows]))
