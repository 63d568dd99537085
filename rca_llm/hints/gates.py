"""Gates: what is wrong with the data, before anything is concluded from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import pauses
from rca_llm.attribute.calls import operation
from rca_llm.attribute.codes import GRAPH_LAUNCH, LAUNCH
from rca_llm.attribute.job import Member
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, rank_rows, used
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.wording import name, percent, plural, readable, time
from rca_llm.intervals import Pieces
from rca_llm.summary.findings import CUT_INPUT, PARTIAL_INPUT
from rca_llm.table import NO_TEXT, Ints, Mask, known
from rca_llm.trace import BY_INTENT, HOST_RECORDS, KERNEL


def _findings(case: Case, *codes: str) -> list[dict[str, Any]]:
    return [row for row in case.summary["quality"] if row["code"] in codes]


def _count(rows: Sequence[dict[str, Any]]) -> int:
    return sum(int(row["count"]) for row in rows)


def _nothing(case: Case, part: str | None = None) -> Charge:
    """The charge of a gate: the time it makes unknown, if any."""
    return case.charge((part,)) if part else Charge(0, 0)


@rule(
    "G1",
    "NO-GPU-ACTIVITY",
    "unknown",
    Stage.GATE,
    disproof="device records of that process in another capture of the same run",
)
def not_traced(case: Case) -> Hint | None:
    """A process launched work, or a rank is expected, but no device record tells of it.

    Symptom: launches without any kernel, a busy device without kernels, a rank without a file.
    Source: threads A01-A22. Effect: ranks are not compared.
    """
    missing = _findings(case, "missing_rank")
    blind = [row for row in _findings(case, "not_traced") if row["detail"] not in _EXPLAINED]
    busy = _busy_without_kernels(case)
    if not (blind or missing or busy is not None):
        return None
    places = [str(row["where"]) for row in (*blind, *missing)]
    first = places[0] if places else f"device {busy}"
    if blind:
        title = f"{first[:1].upper()}{first[1:]} launched work but none was recorded"
        title += "; its GPU is not idle - it was not traced"
    elif missing:
        title = f"{plural(_count(missing), 'rank')} of this job left no data"
    else:
        title = f"Device {busy} was busy, but no kernel was recorded"
    return Hint(
        title,
        "high",
        _nothing(case, "unknown.not_traced"),
        {
            "ranks_not_traced": _count(blind),
            "ranks_missing": _count(missing),
            "where": "; ".join(places[:8]),
        },
        unjudged=True,
        blocks=True,
    )


_EXPLAINED = (CUT_INPUT, PARTIAL_INPUT)
"""Why ranks are without device records that were traced all the same."""


def _busy_without_kernels(case: Case) -> int | None:
    """A device that reports use while the whole trace has no kernel."""
    if case.summary["totals"]["kernels"] or case.summary["totals"]["graph_launches"]:
        return None
    limit = case.limits("G1")["utilization"]
    for recording in case.job.recordings:
        table = recording.timeline["samples"]
        rows = table["metric"] == recording.timeline.strings.find("gpu.utilization")
        for device in np.unique(table["device"][rows]).tolist():
            values = [value for _, value in records.samples(case, "gpu.utilization", device)]
            scale = 100 if max(values, default=0) > 1 else 1
            if values and np.median(values) / scale > limit:
                return int(device)
    return None


@rule(
    "G2",
    "RECORDS-LOST",
    "unknown",
    Stage.GATE,
    disproof="as many kernels as launches, and as many graph nodes in every replay",
)
def records_lost(case: Case) -> Hint | None:
    """Work was not recorded, or its records are missing: that of devices, or of the host alone.

    Symptom: an input that ends early; dropped records; over `launch_share` launches without a
    kernel; graph replays with less than `graph_share` of their median kernels, or under `covered`
    of all replays complete.
    Source: threads A24-A26, A36-A41, B62. Effect: no hint reads idle time; where records were
    dropped but launches and replays are complete, such hints are less sure. Where an input ends
    early, ranks are not compared either. Where only records of the host were lost, what devices did
    is complete, and time that nothing explains may be work whose record was lost.
    """
    limits = case.limits("G2")
    told = [row for row in _findings(case, "dropped_records") if _is_loss(row)]
    dropped = _count(told)
    cut = [member[1].rank.number for member in case.job.ranks if member[1].rank.cut]
    launches = bare = replays = thin = empty = 0
    for member in case.job.ranks:
        if member[1].rank.traced and not member[1].rank.cut:
            one, two = _bare_launches(member)
            launches, bare = launches + one, bare + two
            three, four, five = _thin_replays(member, limits["graph_share"])
            replays, thin, empty = replays + three, thin + four, empty + five
    covered = 1 - (thin + empty) / replays if replays else None
    lost = bare > limits["launch_share"] * launches
    uncovered = covered is not None and covered < limits["covered"]
    if not (cut or dropped or lost or thin or uncovered):
        return None
    seen = bool(cut or lost or thin or uncovered)
    certain = seen or not all("might" in row["detail"] for row in told)
    host = [row for row in told if row["detail"].startswith(HOST_RECORDS)]
    device = [row for row in told if row not in host]
    words = _loss_in_words(device, bare if lost else 0, launches, thin + empty, replays)
    titles = (_loss_title(cut, words, certain=certain) if cut or words else "", _host_loss(host))
    return Hint(
        ". ".join(filter(None, titles)),
        "high" if certain else "medium",
        case.charge(
            ("unknown.not_recorded", *(["unknown.not_traced"] if _only_cut(case) else [])),
            _unpaused(case),
        ),
        {
            "inputs_cut": len(cut),
            "dropped_records": dropped,
            **({"dropped_host_records": _count(host)} if host else {}),
            "launches": launches,
            "launches_without_kernel": bare,
            "graph_replays": replays,
            "replays_with_too_few_kernels": thin,
            "replays_without_kernels": empty,
        },
        unjudged=True,
        blocks=seen,
    )


def _loss_title(cut: Sequence[int], words: str, *, certain: bool) -> str:
    """What is missing of device work, and what that makes unknown."""
    numbers = ", ".join(map(str, cut[:8])) + (" …" if len(cut) > 8 else "")
    whose = f"rank{'s' if len(cut) > 1 else ''} {numbers}"
    early = f"The input of {whose} ends early: device work is missing, and what ran is not known"
    if not words:
        return early
    lost = f"GPU work {'was not' if certain else 'may not have been'} recorded: {words}"
    return (f"{early}. " if cut else "") + f"{lost}; idle time there is unknown"


def _host_loss(told: Sequence[dict[str, Any]]) -> str:
    """What is missing of what the host did, and what that makes of time without a record."""
    if not told:
        return ""
    count, where = _count(told), {str(row["where"]) for row in told}
    whose = next(iter(where)) if len(where) == 1 else f"{len(where):,} processes"
    why = sorted({str(row["detail"]).partition(": ")[2] for row in told} - {""})
    return (
        f"{plural(count, 'record')} of the host {'was' if count == 1 else 'were'} lost, of {whose}"
        + (f" ({name('; '.join(why), 100)})" if why else "")
        + "; time there that nothing explains may be work whose record was lost"
    )


def _only_cut(case: Case) -> bool:
    """Whether no rank is without device records but those whose input ends early."""
    blind = [row["detail"] for row in _findings(case, "not_traced")]
    return bool(blind) and set(blind) == {CUT_INPUT} and not _findings(case, "missing_rank")


_ALL_TIME = (-(2**61), 2**62)
"""All instants that a trace may hold, ns; sums of such times fit into 64 bits."""


def _unpaused(case: Case) -> Spans | None:
    """When the recordings were not paused, as somebody asked for; None where none was."""
    spans = [pauses.pauses_of(recording.timeline) for recording in case.job.recordings]
    start, end = (np.concatenate(times) for times in zip(*spans, strict=True))
    if not len(start):
        return None
    return intervals.complement(*intervals.union(start, end), *_ALL_TIME)


def _is_loss(finding: dict[str, Any]) -> bool:
    """Whether something was dropped that could have been of a device, and not on purpose."""
    detail = finding["detail"]
    ranges = "NVTX" in detail and "CUDA" not in detail
    return "type" not in finding["where"] and detail not in BY_INTENT and not ranges


def _loss_in_words(
    told: Sequence[dict[str, Any]], bare: int, launches: int, thin: int, replays: int
) -> str:
    """What is missing. What the recorder says may count records, bytes or warnings: as it says."""
    texts = [
        f"{told[0]['count']:,} × {name(told[0]['detail'].rstrip('.'), 100)}" if told else "",
        f"{percent(bare / launches)} of {launches:,} launches left no kernel" if bare else "",
        f"{thin:,} of {replays:,} graph replays were not fully recorded" if thin else "",
    ]
    return ", ".join(filter(None, texts))


def _bare_launches(member: Member) -> tuple[int, int]:
    """How many kernel launches a rank made outside captures, and how many left no kernel."""
    recording, _ = member
    api, gpu = recording.timeline["api"], recording.timeline["gpu"]
    mine = rank_rows(member, api) & (recording.calls == LAUNCH) & known(api["correlation"])
    rows = np.flatnonzero(mine & ~_host_functions(recording) & ~_capturing(recording))
    seen = gpu["correlation"][rank_rows(member, gpu)]
    return len(rows), int(np.isin(api["correlation"][rows], seen, invert=True).sum())


def _host_functions(recording: Recording) -> Mask:
    """Launches of functions that run on the host."""
    api, strings = recording.timeline["api"], recording.timeline.strings
    names = used(api["name"])
    wanted = [code for code in names if "HostFunc" in strings[code]]
    return among(api["name"], wanted)


def _capturing(recording: Recording) -> Mask:
    """Calls made while a stream of their process was being captured: these run nothing."""
    api, strings = recording.timeline["api"], recording.timeline.strings
    found = np.zeros(len(api), bool)
    names = used(api["name"])
    begins = [code for code in names if operation(strings[code]).startswith("StreamBeginCapture")]
    ends = [code for code in names if operation(strings[code]).startswith("StreamEndCapture")]
    if not begins or not ends:
        return found
    for process in np.unique(api["process"]).tolist():
        mine = api["process"] == process
        opened = np.sort(api["start"][mine & among(api["name"], begins)])
        closed = np.sort(api["end"][mine & among(api["name"], ends)])
        place = np.searchsorted(closed, opened, "right")
        opened, place = opened[place < len(closed)], place[place < len(closed)]
        start, end = intervals.union(opened, closed[place])
        spans = Pieces(start, end, np.zeros(len(start), np.int64))
        found |= mine & (intervals.at(spans, api["start"]) >= 0)
    return found


def _thin_replays(member: Member, share: float) -> tuple[int, int, int]:
    """A rank's graph launches, those with far too few kernels, and those without any.

    The last one is left out, since the trace may end within it; a replay recorded as one piece is
    complete.
    """
    recording, _ = member
    api, gpu = recording.timeline["api"], recording.timeline["gpu"]
    rows = np.flatnonzero(rank_rows(member, api) & (recording.calls == GRAPH_LAUNCH))
    rows = rows[np.argsort(api["start"][rows], kind="stable")][:-1]
    if not len(rows):
        return 0, 0, 0
    linked = recording.links.api_row
    work = np.bincount(linked[linked >= 0], minlength=len(api))[rows]
    nodes = (linked >= 0) & (gpu["kind"] == KERNEL)
    kernels = np.bincount(linked[nodes], minlength=len(api))[rows]
    graph = _graph_of(recording, nodes, len(api))[rows]
    thin = sum(
        int(np.count_nonzero(_thin(kernels, graph == one, share)))
        for one in np.unique(graph[kernels > 0]).tolist()
    )
    return len(rows), thin, int((work == 0).sum())


def _thin(kernels: Ints, same: Mask, share: float) -> Mask:
    """Which launches of one graph, in the order of their calls, left far too few kernels.

    The next launch must be of the same graph: where it is not, the few kernels are those of a
    piecewise graph that begins like a whole one.
    """
    usual = float(np.median(kernels[same & (kernels > 0)]))
    followed = np.append(same[1:], same[-1:])
    return same & followed & (kernels > 0) & (kernels < share * usual)


def _graph_of(recording: Recording, nodes: Mask, calls: int) -> Ints:
    """What tells the graphs of launches apart, for every call.

    The upper half of a node's number names its graph. Without numbers graphs are the same if their
    first two kernels and the grids of these are: piecewise graphs share names, not shapes.
    """
    gpu, linked = recording.timeline["gpu"], recording.links.api_row
    rows = np.flatnonzero(nodes)
    rows = rows[np.argsort(linked[rows], kind="stable")]
    first = np.flatnonzero(np.diff(linked[rows], prepend=-1))
    second = np.minimum(first + 1, len(rows) - 1)
    mixed = np.zeros(len(first), np.int64)
    for place in (first, second):
        for column in ("name", "grid_x", "grid_y", "block_x"):
            mixed = mixed * 1_000_003 + gpu[column][rows[place]]
    node = gpu["graph_node"][rows[first]]
    found = np.full(calls, NO_TEXT, np.int64)
    found[linked[rows[first]]] = np.where(known(node), node >> 32, mixed)
    return found


@rule(
    "G3",
    "IMPOSSIBLE-TIMES",
    "unknown",
    Stage.GATE,
    disproof="the same durations in a capture by another tool",
)
def impossible_times(case: Case) -> Hint | None:
    """Records have times that cannot be true, and were repaired.

    Symptom: no start, an end before the start, or a duration that the repair calls impossible.
    Source: threads A40, B15-B26. Effect: the repaired values are used; both stand in `quality`.
    """
    rows = _findings(case, "impossible_duration", "negative_duration", "no_timestamp")
    if not rows:
        return None
    one = _count(rows) == 1
    return Hint(
        f"{plural(_count(rows), 'record')} {'has' if one else 'have'}"
        f" impossible times and {'was' if one else 'were'} repaired:"
        f" {rows[0]['detail']}",
        "medium",
        Charge(0, 0),
        {row["code"]: row["count"] for row in rows},
        unjudged=True,
    )


@rule(
    "G4",
    "CLOCK-SKEW",
    "unknown",
    Stage.GATE,
    disproof="clocks read against each other during the run",
)
def clock_skew(case: Case) -> Hint | None:
    """Host, device or rank clocks differ.

    Symptom: more than `pair_share` of kernels start before their launch, or ends of collectives
    differ between ranks by more than `end_ns`. Source: threads A26, B29-B32, B53-B55. Effect: waits
    below the difference are not judged.
    """
    limits = case.limits("G4")
    early = _count(_findings(case, "launch_after_start"))
    linked = sum(int(np.count_nonzero(r.links.api_row >= 0)) for r in case.job.recordings)
    skew = end_skew(case)
    if early <= limits["pair_share"] * linked and skew <= limits["end_ns"]:
        return None
    parts = [
        f"{early:,} of {linked:,} kernels start before their launch" if early else "",
        f"ends of collectives differ by {time(skew)} between ranks" if skew else "",
    ]
    return Hint(
        f"Clocks differ: {' and '.join(filter(None, parts))}; waits below that are not judged",
        "medium",
        Charge(0, 0),
        {"early_kernels": early, "linked_kernels": linked, "collective_end_skew_ns": skew},
        unjudged=True,
    )


def end_skew(case: Case) -> int:
    """The median difference between clocks of the ends of one collective, ns."""
    spread = [
        max(part.end for part in one.parts) - min(part.end for part in one.parts)
        for one in case.job.collectives
        if one.complete and len({part.clock.number for part in one.parts}) > 1
    ]
    return int(np.median(spread)) if spread else 0


@rule(
    "G5",
    "PERTURBED",
    "unknown",
    Stage.GATE,
    disproof="the same step time without tracing",
)
def perturbed(case: Case) -> Hint | None:
    """Tracing itself slowed the run.

    Symptom: the input tells of tracing work that is over `overhead_share` of the window, or does
    not tell how much it is. Source: threads A34, A37, A45, A46. Effect: hints about the host and
    launching are less sure.
    """
    rows = _findings(case, "tracer_overhead")
    spent = [int(found.group(1)) for row in rows if (found := _NS.match(row["detail"]))]
    span = case.summary["window"]["span_ns"]
    if not rows or (spent and sum(spent) <= case.limits("G5")["overhead_share"] * span):
        return None
    return Hint(
        f"Tracing itself costs time: {readable(rows[0]['detail']) or rows[0]['where']}",
        "medium",
        Charge(0, 0),
        {"findings": _count(rows), "tracing_ns": sum(spent) or None, "window_ns": span},
        unjudged=True,
    )


_NS = re.compile(r"(\d+) ns\b")
"""How a finding about tracing begins that tells its cost."""


@rule(
    "G6",
    "STEP-COVERAGE",
    "unknown",
    Stage.GATE,
    disproof="steps that really had nothing to compute",
)
def step_coverage(case: Case) -> Hint | None:
    """Some steps contain no device work while their neighbours have plenty.

    Symptom: finding `steps_without_gpu`. Source: threads B19, A26. Effect: hints that read idle
    time are less sure.
    """
    rows = _findings(case, "steps_without_gpu")
    if not rows:
        return None
    return Hint(
        f"No device work in {_empty_steps(rows)}: idle time in these says nothing",
        "medium",
        Charge(0, 0),
        {"steps_without_gpu": _count(rows)},
        unjudged=True,
    )


def _empty_steps(rows: Sequence[dict[str, Any]]) -> str:
    """How many steps of how many, and how many on other ranks."""
    first, more = rows[0], _count(rows[1:])
    where = f" on {first['where']} and in {more:,} on other ranks" if more else ""
    return f"{int(first['count']):,} {first['detail']}{where}"
