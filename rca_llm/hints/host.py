"""Causes on the host: collections, locks, CPU quotas, work between steps, paging, logs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.codes import ALLOC, SYNC
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints import lead, records
from rca_llm.hints.case import Case, Loss, Spans, rank_rows, used
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.records import Span
from rca_llm.hints.wording import name, percent, plural, time
from rca_llm.summary.ranges import marked
from rca_llm.summary.stats import percentile
from rca_llm.table import Ints, Mask, Table, known

_GENERATION = re.compile(r"gen(?:eration)?\W{0,3}(\d)", re.I)


@rule(
    "R08",
    "GC-PAUSE",
    "scheduling",
    Stage.HOST,
    disproof="device work, or a thread of its own that launches, during the collection",
)
def garbage_collection(case: Case) -> Hint | None:
    """Python's garbage collector stops the thread that launches.

    Symptom: a collection of at least `pause_ns` during which the device is idle, or peers wait,
    for at least `idle_share` of it, and all such are `latency_share` of the latency. Source:
    threads C24-C26. Disproof: device work meanwhile.
    """
    limits = case.limits("R08")
    long = [span for span in records.spans_of(case, "gc") if span.ns >= limits["pause_ns"]]
    idle = case.felt(("scheduling.gc",), records.as_spans(long)).tolist()
    felt = [s for s, ns in zip(long, idle, strict=True) if ns >= limits["idle_share"] * s.ns]
    if not felt:
        return None
    charge = case.charge(("scheduling.gc",), records.as_spans(felt))
    if (charge.share or 0) < limits["latency_share"]:
        return None
    worst = max(_costliest(felt), key=lambda span: span.ns)
    rank, every = records.rank_of(case, worst.process, worst.recording), _period(felt)
    where = "the process" if rank is None else f"rank {rank}"
    often = f", every {time(every)}" if every else ""
    return Hint(
        f"Python GC stopped {where} for {time(worst.ns)}{often}",
        "high",
        charge,
        {
            "longest_pause_ns": worst.ns,
            "pauses": len(felt),
            "pauses_total_ns": sum(span.ns for span in felt),
            "period_ns": every,
            "rank": rank,
            "process": worst.process,
            "generation": _generation(worst),
            "growing": _growing(felt),
        },
    )


def _costliest(found: list[Span]) -> list[Span]:
    """The pauses of the process that was stopped longest in all."""
    total: dict[tuple[int, int], int] = {}
    for span in found:
        owner = (id(span.recording), span.process)
        total[owner] = total.get(owner, 0) + span.ns
    owner = max(total, key=lambda key: total[key])
    return [span for span in found if (id(span.recording), span.process) == owner]


def _period(found: list[Span]) -> int | None:
    """The median time from one pause to the next, None of fewer than two."""
    starts = sorted(span.start for span in found)
    return percentile(sorted(np.diff(np.array(starts)).tolist()), 50)


def _generation(span: Span) -> int | None:
    match = _GENERATION.search(span.name)
    return int(match.group(1)) if match else None


def _growing(found: list[Span]) -> bool | None:
    """Whether the last third of the pauses is twice as long as the first; None of under 6."""
    if len(found) < 6:
        return None
    ordered = [span.ns for span in sorted(found, key=lambda span: span.start)]
    third = len(ordered) // 3
    return sum(ordered[-third:]) > 2 * sum(ordered[:third])


@rule(
    "R07",
    "CPU-STARVED",
    "scheduling",
    Stage.HOST,
    disproof="a thread that runs, or is blocked, in the time named",
)
def cpu_starved(case: Case) -> Hint | None:
    """The launching thread, or one that serves a request, is ready to run but gets no CPU.

    Symptom: it is runnable or throttled, with the device idle, for `step_share` of the steps, or
    without steps of the requests; or the cgroup was throttled for `throttled_share` of the wall
    time; less than `least_ns` in all is nobody's cause. Source: threads C27, C28, C36. Disproof:
    scheduler data without run-queue delay.
    """
    limits, parts = case.limits("R07"), ("scheduling.cpu_wait",)
    loss, charge = case.of_service(parts), case.charge(parts)
    throttled, wall = _throttled(case)
    quota = wall > 0 and throttled > limits["throttled_share"] * wall
    if not (quota or loss.share >= limits["step_share"]):
        return None
    seen = charge.ns >= limits["least_ns"]
    ns = charge.ns if seen else throttled
    waited = charge.told if seen else time(throttled)
    if ns < limits["least_ns"]:
        return None
    rivals = _rivals(case)
    why = "CPU quota" if quota or _was_throttled(case) else "noisy neighbours"
    return Hint(
        ("Threads that serve requests were" if _served_apart(case, loss) else _LAUNCHING)
        + f" ready but not running for {waited} ({why})",
        "high" if seen else "low",
        charge,
        {
            "waiting_ns": loss.ns,
            f"{loss.of}_ns": loss.total,
            f"{loss.of}_share": loss.share,
            "cgroup_throttled_ns": throttled if wall else None,
            "wall_ns": wall or None,
            "competing_threads": ", ".join(rivals[:5]) or None,
        },
        unjudged=not seen,
    )


_LAUNCHING = "The launching thread was"


def _served_apart(case: Case, loss: Loss) -> bool:
    """Whether what was lost is that of requests which threads of their own serve."""
    return loss.of == "request" and any(life.alone for life in case.lives)


def _throttled(case: Case) -> tuple[int, int]:
    """How much the cgroup's throttled time grew, and over what time, ns."""
    values = records.samples(case, "cpu.throttled_ns")
    if len(values) < 2:
        return 0, 0
    grown = sum(max(b - a, 0) for (_, a), (_, b) in itertools.pairwise(values))
    return int(grown), values[-1][0] - values[0][0]


def _was_throttled(case: Case) -> bool:
    return any(
        bool((r.timeline["states"]["state"] == code).any())
        for r in case.job.recordings
        if (code := r.timeline.strings.find("throttled")) >= 0
    )


def _rivals(case: Case) -> list[str]:
    """Threads that ran while others of their recording waited for a CPU, the longest first.

    And processes outside of the recording, which are sampled once a second while threads wait.
    """
    found: dict[str, int] = {}
    for recording in case.job.recordings:
        states, strings = recording.timeline["states"], recording.timeline.strings
        waits = among(states["state"], [strings.find("runnable"), strings.find("throttled")])
        waiting = intervals.union(states["start"][waits], states["end"][waits])
        running = np.flatnonzero(states["state"] == strings.find("running"))
        if not len(waiting[0]) or not len(running):
            continue
        for (process, thread), rows in _by_thread(states, running).items():
            own = intervals.union(states["start"][rows], states["end"][rows])
            ns = intervals.common(own, waiting)
            if ns:
                who = _thread_name(recording, process, thread)
                found[who] = found.get(who, 0) + ns
    for who, cpus in records.outsiders(case, "cpu.neighbour"):
        found[who] = found.get(who, 0) + round(cpus * 1e9)  # of a second each
    return sorted(found, key=lambda who: -found[who])


def _by_thread(table: Table, rows: Ints) -> dict[tuple[int, int], Ints]:
    """Rows of a table by process and thread."""
    pairs = np.stack([table["process"][rows], table["thread"][rows]], axis=1)
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    number = number.reshape(-1)
    return {
        (int(pair[0]), int(pair[1])): rows[number == place] for place, pair in enumerate(distinct)
    }


def _thread_name(recording: Recording, process: int, thread: int) -> str:
    table = recording.timeline["threads"]
    mine = np.flatnonzero((table["process"] == process) & (table["thread"] == thread))
    told = recording.timeline.text(int(table["name"][mine[0]])) if len(mine) else None
    return f"thread {thread}" if told is None else f"{name(told)} (thread {thread})"


@rule(
    "R09",
    "HOST-STEP-OVERHEAD",
    "scheduling",
    Stage.HOST,
    idle=True,
    disproof="a launching thread that is blocked, or not on the CPU, between the steps",
)
def host_between_steps(case: Case) -> Hint | None:
    """The engine works on the CPU between the device work of two steps.

    Symptom: host work from the last kernel of a step to the first of the next takes `step_share` of
    the time from step to step, and nothing else explains it. Source: threads C16, C17, C33.
    Disproof: a thread that waits.
    """
    limits = case.limits("R09")
    found = [_between_steps(case, number) for number in range(len(case.job.ranks))]
    best = max(found, key=lambda one: one.share, default=None)
    if best is None or best.steps < limits["steps"] or best.share < limits["step_share"]:
        return None
    spans = best.spans
    charge = case.charge(("scheduling.host", "scheduling.other"), spans)
    if not charge.ns:
        return None
    inside = _ranges_inside(case, spans, best.total // best.steps)
    what = ", ".join(f"{who} {time(ns / best.steps)}" for who, ns in inside[:3])
    return Hint(
        f"The engine spends {time(best.ns / best.steps)} per step on the CPU between GPU steps"
        + (f": {what}" if what else ""),
        "medium" if best.told >= 0.5 else "low",
        charge,
        {
            "between_ns": best.ns,
            "steps": best.steps,
            "period_ns": best.total,
            "step_share": best.share,
            "told_share": best.told,
            "ranges": what or None,
            "async_scheduling": case.settings.get("async_scheduling"),
        },
    )


class _Between:
    """Host work between the device work of neighbouring steps of one rank.

    `told` is the fraction of it that spans, operators or thread states show as work.
    """

    def __init__(self, ns: int, told_ns: int, total: int, steps: int, spans: Spans) -> None:
        self.ns, self.total, self.steps, self.spans = ns, total, steps, spans
        self.share = ns / total if total else 0.0
        self.told = told_ns / ns if ns else 0.0


def _between_steps(case: Case, number: int) -> _Between:
    recording, partition = case.job.ranks[number]
    first, last = records.first_and_last_work(recording, partition.step_of)
    places = case.steady(number)
    places = places[last[partition.steps[places]] > 0]
    if len(places) < 2:
        return _Between(0, 0, 0, 0, records.NO_SPANS)
    pairs = (np.diff(places) == 1) & case.followed(number)[places[:-1]]
    rows, following = partition.steps[places[:-1]][pairs], partition.steps[places[1:]][pairs]
    begin, end = last[rows], first[following]
    period = int((end - first[rows]).sum())
    idle = end > begin
    spans = begin[idle], end[idle]
    told = int(case.in_windows(number, ("scheduling.host",), spans).sum())
    other = int(case.in_windows(number, ("scheduling.other",), spans).sum())
    return _Between(told + other, told, period, len(rows), spans)


_WHOLE_STEP = 0.8
"""Ranges that last so much of a step, or begin with one, are the step itself."""


def _ranges_inside(case: Case, spans: Spans, most: int) -> list[tuple[str, int]]:
    """What ranges shorter than `most` say of some time: their names, the longest first, ns."""
    found: dict[str, int] = {}
    within = intervals.union(*spans)
    for recording in case.job.recordings:
        ranges, strings = recording.timeline["ranges"], recording.timeline.strings
        rows = marked(recording.timeline)
        rows = rows[known(ranges["start"][rows]) & known(ranges["end"][rows])]
        rows = rows[intervals.touching(ranges["start"][rows], ranges["end"][rows], within)]
        short = ranges["end"][rows] - ranges["start"][rows] < _WHOLE_STEP * most
        whole = np.isin(ranges["start"][rows], recording.steps.start)
        rows = rows[(ranges["name"][rows] >= 0) & short & ~whole]
        inner = intervals.innermost_wins(ranges["start"][rows], ranges["end"][rows])
        pieces = inner.relabel(ranges["name"][rows])
        for code in np.unique(pieces.label).tolist():
            mine = pieces.label == code
            ns = intervals.common(intervals.union(pieces.start[mine], pieces.end[mine]), within)
            if ns:
                found[name(strings[code], 40)] = ns
    return sorted(found.items(), key=lambda item: -item[1])


@rule(
    "R10",
    "GIL-CONTENTION",
    "scheduling",
    Stage.HOST,
    disproof="a launching thread that never waits for the lock",
)
def lock_contention(case: Case) -> Hint | None:
    """The launching thread, or one that serves a request, waits for Python's interpreter lock.

    Symptom: such waits, with the device idle, take `step_share` of the steps, or without steps of
    the requests. Source: threads C16, C23. Disproof: no wait for the lock.
    """
    limits = case.limits("R10")
    loss, charge = case.of_service(("scheduling.gil",)), case.charge(("scheduling.gil",))
    if not loss.ns or loss.share < limits["step_share"]:
        return None
    holder = _holder(case)
    by = f" held by {holder}" if holder else ""
    apart = _served_apart(case, loss)
    return Hint(
        f"{'Threads that serve requests' if apart else 'The loop thread'} waited"
        f" {charge.told if loss.of == 'request' else time(loss.ns)} for the GIL{by}",
        "high",
        charge,
        {
            "gil_wait_ns": loss.ns,
            f"{loss.of}_ns": loss.total,
            f"{loss.of}_share": loss.share,
            "holder": holder,
        },
    )


def _holder(case: Case) -> str | None:
    """The thread that ran most while another thread of its process waited for the lock."""
    best: tuple[int, str] | None = None
    for recording in case.job.recordings:
        waits, states = _lock_waits(recording), recording.timeline["states"]
        running = states["state"] == recording.timeline.strings.find("running")
        for (process, thread), rows in _by_thread(states, np.flatnonzero(running)).items():
            others = [w for (p, t), w in waits.items() if p == process and t != thread]
            if others:
                own = intervals.union(states["start"][rows], states["end"][rows])
                ns = intervals.common(own, intervals.union(*records.joined(others)))
                if ns and (best is None or ns > best[0]):
                    best = ns, _thread_name(recording, process, thread)
    return None if best is None else best[1]


def _lock_waits(recording: Recording) -> dict[tuple[int, int], Spans]:
    """When each thread waited for the lock, by process and thread."""
    code = recording.timeline.strings.find("gil")
    found: dict[tuple[int, int], list[Spans]] = {}
    for name_, column in (("states", "state"), ("ranges", "kind")):
        table = recording.timeline[name_]
        rows = np.flatnonzero((table[column] == code) & (code >= 0))
        for key, mine in _by_thread(table, rows).items():
            found.setdefault(key, []).append((table["start"][mine], table["end"][mine]))
    return {key: intervals.union(*records.joined(spans)) for key, spans in found.items()}


@rule(
    "R11",
    "TOKENISE-DETOKENISE",
    "scheduling",
    Stage.HOST,
    disproof="text that leaves when its tokens do",
)
def tokenising(case: Case) -> list[Hint]:
    """Turning text into tokens, or tokens into text, takes much of the latency.

    Symptom: tokenising before the first token is `share` of the time to it, or detokenising after
    it of the time after it, over the requests that it touches; where most of it lies on the other
    side, or no first token is known, of their whole latency. Detokenising is at least
    `latency_share` of the latency. Source: threads C18-C22. Disproof: text sent with its tokens.
    """
    return [hint for hint in (_tokenise(case), _detokenise(case)) if hint is not None]


def _tokenise(case: Case) -> Hint | None:
    charge = case.charge(("scheduling.tokenize",))
    of = _of_text(case, charge, before=True)
    if not of.ns or of.share < case.limits("R11")["share"]:
        return None
    count = len(charge.requests)
    what = "to the first token" if of.one_side else "per request"
    return Hint(
        f"Tokenising takes {time(of.ns / count)} of {time(of.total / count)} {what}",
        "high",
        charge,
        {"tokenize_ns": of.ns}
        | (
            {"ttft_ns": of.total, "ttft_share": of.share}
            if of.one_side
            else {"latency_ns": of.total, "latency_share": of.share}
        ),
    )


def _detokenise(case: Case) -> Hint | None:
    limits = case.limits("R11")
    charge = case.charge(("scheduling.detokenize",))
    of = _of_text(case, charge, before=False)
    if not of.ns or of.share < limits["share"]:
        return None
    if charge.ns < limits["latency_share"] * charge.total:
        return None
    each = time(of.ns / len(charge.requests))
    return Hint(
        f"Text leaves {each} after its tokens: detokenising takes {percent(of.share)} of the time"
        " after the first token"
        if of.one_side
        else f"Detokenising takes {each} per request, {percent(of.share)} of the latency",
        "high",
        charge,
        {
            "detokenize_ns": of.ns,
            "after_first_token_ns" if of.one_side else "latency_ns": of.total,
            "share": of.share,
        },
    )


@dataclass(frozen=True)
class _OfText:
    """Time of turning text into tokens or back, and the time of the same stretches it is of, ns.

    `one_side` says whether these lie on one side of the first token, rather than being whole lives.
    """

    ns: int
    total: int
    one_side: bool

    @property
    def share(self) -> float:
        """The fraction of that time."""
        return self.ns / self.total if self.total else 0.0


def _of_text(case: Case, charge: Charge, *, before: bool) -> _OfText:
    """What a charge in one part is judged against: where most of it lies; requests alone are."""
    if not charge.requests:
        return _OfText(0, 0, one_side=False)
    ns = total = 0
    for id in charge.requests:
        row = case.request_rows[id]
        early: Mapping[str, int] | None = row["ttft_parts"]
        if early is None:
            continue
        for part, whole in row["parts"].items():
            own = early.get(part, 0) if before else whole - early.get(part, 0)
            total += own
            ns += own if part in charge.parts else 0
    if 2 * ns >= charge.ns:
        return _OfText(ns, total, one_side=True)
    return _OfText(charge.ns, charge.total, one_side=False)


@rule(
    "R38",
    "ALLOC-CHURN",
    "scheduling",
    Stage.HOST,
    disproof="no allocation calls once the engine is warm",
)
def allocation_churn(case: Case) -> Hint | None:
    """Device memory is allocated or freed in the hot path.

    Symptom: in steady state at least `calls` such calls a step, or one over `long_ns`, while the
    device is idle. Without steps, those while requests are served are judged: at least `calls` a
    request, or one over `long_ns`, and `latency_share` of the requests' time; without requests, all
    after start-up. Stream-ordered allocations do not count. Charged are the calls and, where they
    let the device run out of work, the time until what is launched next comes. Source: threads
    C32, C37. Disproof: a steady state without them.
    """
    limits = case.limits("R38")
    found = [_allocations(case, number) for number in range(len(case.job.ranks))]
    best = max(found, key=lambda one: int(one.lasting.sum()), default=None)
    if best is None:
        return None
    lasting, steps = best.lasting, best.steps
    longest = int(lasting.max(initial=0))
    often = best.turns > 0 and len(lasting) >= limits["calls"] * best.turns
    if not (often or longest > limits["long_ns"]):
        return None
    idle = case.charge(_ALLOCATING[:1], best.spans).ns
    charge = case.charge(_ALLOCATING, best.within(case))
    if not idle:
        return None
    if not steps and (charge.share or 0) < limits["latency_share"]:
        return None
    return Hint(
        f"Allocations of device or pinned memory in the hot path: {charge.told} in"
        f" {plural(len(lasting), 'call')}",
        "high" if steps else "medium" if often else "low",
        charge,
        {
            "calls": len(lasting),
            "steps": steps,
            "calls_per_step": len(lasting) / steps if steps else None,
            "calls_per_request": len(lasting) / best.requests if best.requests else None,
            "longest_ns": longest,
            "total_ns": int(lasting.sum()),
            "idle_in_calls_ns": idle,
        },
    )


_ALLOCATING = ("scheduling.alloc", "scheduling.launch", "scheduling.host", "scheduling.other")
"""What allocations, and the idle time that they leave behind, can be charged as."""


@dataclass(frozen=True)
class _Allocations:
    """When a rank (an index) allocated in steps, and the thread of each in its host records.

    `lasting` is how long each took in steady steps, ns, and `steps` how many those are. Without
    steps all while any of `requests` is served, else all since the service began.
    """

    number: int
    spans: Spans
    thread: Ints
    lasting: Ints
    steps: int = 0
    requests: int = 0

    @property
    def turns(self) -> int:
        """How many steps, or else requests, they are spread over; 0 where neither tells."""
        return self.steps or self.requests

    def within(self, case: Case) -> Spans:
        """When they are charged: with what they left behind, where it is known what was service."""
        member, left = case.job.ranks[self.number], records.NO_SPANS
        if self.turns:
            left = lead.lost(member, lead.of_rank(case, self.number), self.spans, self.thread)
        return lead.within(member, self.spans, _ALLOCATING[:1], left)


def _allocations(case: Case, number: int) -> _Allocations:
    member = case.job.ranks[number]
    _, partition = member
    start, end, thread = _allocation_times(case, member)
    if not len(partition.steps):
        warm, served = start >= case.warm_since, len(case.served[0])
        if served:
            warm = intervals.touching(start, end, case.served)
        spans = start[warm], end[warm]
        requests = len(case.lives) if served else 0
        return _Allocations(number, spans, thread[warm], (end - start)[warm], requests=requests)
    steady = partition.steps[case.steady(number)]
    inside, warm = (_touching(member, rows, start, end) for rows in (partition.steps, steady))
    spans = start[inside], end[inside]
    return _Allocations(number, spans, thread[inside], (end - start)[warm], steps=len(steady))


def _allocation_times(case: Case, member: Member) -> tuple[Ints, Ints, Ints]:
    """When the allocating calls and spans of a rank ran, and their threads in its host records.

    Stream-ordered allocations are left out.
    """
    recording, partition = member
    api, strings = recording.timeline["api"], recording.timeline.strings
    names = used(api["name"])
    ordered = [code for code in names if "Async" in strings[code]]
    rows = (recording.calls == ALLOC) & rank_rows(member, api) & ~among(api["name"], ordered)
    spans = case.spans(recording, "alloc")
    spans = spans.take(among(spans["process"], [*partition.rank.processes]))
    number = {pair: place for place, pair in enumerate(recording.host.threads)}
    pairs = zip(spans["process"].tolist(), spans["thread"].tolist(), strict=True)
    whose = np.array([number[pair] for pair in pairs], np.int64)
    return (
        np.concatenate([api["start"][rows], spans["start"]]),
        np.concatenate([api["end"][rows], spans["end"]]),
        np.concatenate([recording.host.api_thread[rows], whose]),
    )


def _touching(member: Member, steps: Ints, start: Ints, end: Ints) -> Mask:
    """Which intervals lie in some steps, at least in part."""
    recording, partition = member
    spans = intervals.union(recording.steps.start[steps], partition.step_end[steps])
    return intervals.touching(start, end, spans)


@rule(
    "R45",
    "SPIN-NOT-BUSY",
    "scheduling",
    Stage.SYMPTOM,
    disproof="a thread that is off the CPU while it synchronises",
)
def spinning(case: Case) -> Hint | None:
    """A thread spins in a synchronisation while the device works, or a device only looks busy.

    Symptom: a thread is on the CPU for `on_cpu` of synchronisations that take `sync_share` of the
    window with the device busy; or NVML reports `utilization` with kernels in under `busy` of the
    window. No bottleneck: it costs nothing. Source: threads C73, C74.
    """
    limits = case.limits("R45")
    for member in case.job.ranks:
        spun, window = _spun(member, limits["on_cpu"])
        if window and spun >= limits["sync_share"] * window:
            return Hint(
                f"A core spins in synchronisation for {time(spun)} while the GPU works; it is not"
                " the bottleneck",
                "medium",
                Charge(0, window, population="one rank"),
                {"spinning_ns": spun, "window_ns": window},
                unjudged=True,
            )
    return _only_looks_busy(case)


def _spun(member: Member, least: float) -> tuple[int, int]:
    """How long a rank's threads spun in calls under device work, and its window, ns."""
    recording, partition = member
    api, activity = recording.timeline["api"], partition.activity
    rows = np.flatnonzero((recording.calls == SYNC) & rank_rows(member, api))
    busy = intervals.union(activity.start, activity.end)
    spun = 0
    for thread in np.unique(api["thread"][rows]).tolist():
        mine = rows[api["thread"][rows] == thread]
        calls = intervals.union(api["start"][mine], api["end"][mine])
        process = int(api["process"][mine[0]])
        running = records.state_spans(recording, process, thread, ["running"])
        lasting = int((calls[1] - calls[0]).sum())
        if running is not None and intervals.common(calls, running) >= least * lasting:
            spun += intervals.common(calls, busy)
    return spun, partition.rank.span


def _only_looks_busy(case: Case) -> Hint | None:
    limits = case.limits("R45")
    for row in case.summary["devices"]:
        values = [value for _, value in records.samples(case, "gpu.utilization", row["device"])]
        scale = 100 if max(values, default=0) > 1 else 1
        low = row["utilization"] is not None and row["utilization"] < limits["busy"]
        if values and low and float(np.median(values)) / scale >= limits["utilization"]:
            return Hint(
                f"NVML calls device {row['device']} busy, but kernels run only"
                f" {percent(row['utilization'])} of the time; it is not the bottleneck",
                "medium",
                Charge(0, row["span_ns"], population=f"device {row['device']}"),
                {"reported": float(np.median(values)) / scale, "busy_share": row["utilization"]},
                unjudged=True,
            )
    return None


@rule(
    "R48",
    "SERIALISATION",
    "communication",
    Stage.DATA,
    disproof="messages that leave at once",
)
def serialisation(case: Case) -> Hint | None:
    """Serialising messages takes part of the latency.

    Symptom: `share` of the latency of the requests that it touches. Source: proposal; thread C33.
    Disproof: messages that leave at once.
    """
    charge = case.charge(("communication.serialization",))
    if not charge.ns or (charge.share or 0) < case.limits("R48")["share"]:
        return None
    each = len(charge.requests) or 1
    return Hint(
        f"Serialisation takes {time(charge.ns / each)} of {time(charge.total / each)}"
        + (" per request" if charge.requests else ""),
        "high",
        charge,
        {"serialize_ns": charge.ns, "latency_ns": charge.total, "latency_share": charge.share},
    )
