"""Causes in memory and files: growth, KV blocks nobody can use, paging, logs, reads in steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, used
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.wording import figure, name, percent, plural, size, time
from rca_llm.table import UNKNOWN, Array, Ints, Table, known

HOUR = 3_600_000_000_000


@dataclass(frozen=True)
class _Series:
    """Memory of one process or device over time."""

    what: str
    class_: str
    times: Ints
    values: Array


@rule(
    "R34",
    "MEMORY-GROWTH",
    "scheduling",
    Stage.SYMPTOM,
    disproof="a plateau later in the run",
)
def memory_growth(case: Case) -> list[Hint]:
    """A process's own memory, or a device's, grows steadily.

    Symptom: anonymous and swapped memory, not RSS, or used device memory rises by more than
    `bytes_per_hour` over `span_ns` or longer, in both halves, with R² of `fit`. Source: brief;
    threads C62, C63, C25. Disproof: a plateau later. Class: that of what grows.
    """
    series = [*_process_memory(case), *_device_memory(case)]
    return [hint for one in series if (hint := _growth(case, one)) is not None]


def _growth(case: Case, one: _Series) -> Hint | None:
    limits = case.limits("R34")
    if len(one.times) < limits["samples"] or one.times[-1] - one.times[0] < limits["span_ns"]:
        return None
    slope, fit = _line(one.times, one.values)
    half = len(one.times) // 2
    halves = [
        _line(one.times[part], one.values[part])[0] for part in (slice(half), slice(half, None))
    ]
    if min(slope, *halves) * HOUR <= limits["bytes_per_hour"] or fit < limits["fit"]:
        return None
    lasted = int(one.times[-1] - one.times[0])
    requests = sum(
        1
        for life in case.lives
        if life.request.finished is not None
        and one.times[0] <= life.request.finished <= one.times[-1]
    )
    each = slope * lasted / requests if requests else None
    return Hint(
        f"{one.what} grows {size(slope * HOUR)} an hour"
        + (f" ({size(each)} per request)" if each else ""),
        "high",
        Charge(0, 0, (), int(one.times[0]), int(one.times[-1]), f"{len(one.times)} samples"),
        {
            "bytes_per_hour": round(slope * HOUR),
            "fit": fit,
            "observed_ns": lasted,
            "grown_bytes": round(slope * lasted),
            "bytes_per_request": None if each is None else round(each),
            "requests_finished": requests,
        },
        unjudged=True,
        class_=one.class_,
    )


def _line(times: Ints, values: Array) -> tuple[float, float]:
    """The slope per ns of the least-squares line, and R²."""
    x = (times - times[0]).astype(np.float64)
    x, y = x - x.mean(), np.asarray(values, np.float64) - values.mean()
    across, up, both = float(x @ x), float(y @ y), float(x @ y)
    if not across or not up:
        return 0.0, 0.0
    return both / across, both * both / (across * up)


def _process_memory(case: Case) -> Iterator[_Series]:
    """Anonymous plus swapped memory of every process that was sampled."""
    for recording in case.job.recordings:
        table = recording.timeline["samples"]
        own = _rows(recording, "process.rss_anon_bytes")
        swap = _rows(recording, "process.swap_bytes")
        for process in np.unique(table["process"][own]).tolist():
            rows = own[table["process"][own] == process]
            more = swap[table["process"][swap] == process]
            times: Ints = table["t"][rows]
            yield _Series(
                _process_name(recording, process),
                "scheduling",
                times,
                table["value"][rows] + _latest(table, more, times),
            )


def _latest(table: Table, rows: Ints, times: Ints) -> Array:
    """The latest value of some samples at each time, 0 where there are none."""
    if not len(rows):
        return np.zeros(len(times))
    place = np.maximum(np.searchsorted(table["t"][rows], times, "right") - 1, 0)
    return np.asarray(table["value"][rows][place], np.float64)


def _process_name(recording: Recording, process: int) -> str:
    table = recording.timeline["processes"]
    rows = np.flatnonzero(table["process"] == process)
    told = recording.timeline.text(int(table["name"][rows[0]])) if len(rows) else None
    if process == UNKNOWN:
        return "Process memory"
    return f"Process {process} ({name(told, 40)})" if told else f"Process {process}"


def _device_memory(case: Case) -> Iterator[_Series]:
    for recording in case.job.recordings:
        table, rows = recording.timeline["samples"], _rows(recording, "gpu.memory_used_bytes")
        for device in np.unique(table["device"][rows]).tolist():
            mine = rows[table["device"][rows] == device]
            what = f"Memory of device {device}"
            yield _Series(what, "compute", table["t"][mine], table["value"][mine])


def _rows(recording: Recording, metric: str) -> Ints:
    """The rows of one metric by time."""
    table, code = recording.timeline["samples"], recording.timeline.strings.find(metric)
    rows = np.flatnonzero((table["metric"] == code) & (code >= 0) & known(table["t"]))
    rows = rows[~np.isnan(table["value"][rows])]
    return rows[np.argsort(table["t"][rows], kind="stable")]


@rule(
    "R35",
    "KV-FRAGMENTATION",
    "compute",
    Stage.SYMPTOM,
    disproof="another limit, such as the most sequences, that makes requests wait",
)
def kv_fragmentation(case: Case) -> Hint | None:
    """KV memory is free, yet requests are preempted for want of it.

    Symptom: a preemption while less than one minus `free` of the KV cache is in use. Weak: no
    thread isolates fragmentation. Source: thread C61. Disproof: another limit.
    """
    usage = records.samples(case, "kv.usage")
    times = [begun for life in case.lives for begun, _ in life.request.preempted]
    if not usage or not times:
        return None
    own = np.array([t for t, _ in usage], np.int64)
    values = np.array([value for _, value in usage])
    scale = 100 if values.max() > 1 else 1
    place = np.searchsorted(own, np.array(times), "right") - 1
    at = values[place[place >= 0]] / scale
    free = at < 1 - case.limits("R35")["free"]
    if not len(at) or free.mean() < 0.5:
        return None
    return Hint(
        f"Possible: KV memory is free but unusable: {plural(int(free.sum()), 'preemption')} at"
        f" {percent(float(np.median(at)))} usage",
        "low",
        case.charge(("scheduling.preempt", "scheduling.recompute")),
        {"preemptions": len(at), "median_kv_usage": float(np.median(at))},
        unjudged=True,
    )


@rule(
    "R37",
    "LOG-FLUSH-IO",
    "io",
    Stage.HOST,
    disproof="log writes on another thread",
)
def log_writes(case: Case) -> Hint | None:
    """Log writes block the loop thread.

    Symptom: writes or flushes to a log or to the standard streams, with the device idle, take
    `step_share` of the steps (without steps, of the requests), or one lasts `long_ns`. Source:
    thread C72 (weak). Disproof: writes on another thread.
    """
    limits = case.limits("R37")
    spans, paths = _log_spans(case)
    loss = case.of_service(("io.log", "io.file"), spans)
    charge = case.charge(("io.log", "io.file"), spans)
    lasting = spans[1] - spans[0]
    blocked = case.felt(("io.log", "io.file"), spans) * 2 >= lasting
    long = (lasting >= limits["long_ns"]) & blocked
    if not charge.ns or not (loss.share >= limits["step_share"] or long.any()):
        return None
    where = f" ({name(paths[0])})" if paths else ""
    return Hint(
        f"Logging blocked the loop for {charge.told}{where}",
        "high",
        charge,
        {
            "log_ns": charge.ns,
            f"{loss.of}_share": loss.share,
            "writes": len(spans[0]),
            "longest_ns": int(lasting.max(initial=0)),
            "path": name(paths[0], 200) if paths else None,
        },
    )


def _log_spans(case: Case) -> tuple[Spans, list[str]]:
    """Writes to logs: spans that say so, and file spans on log files or standard streams."""
    found: list[Spans] = []
    paths: list[str] = []
    for recording in case.job.recordings:
        ranges, strings = recording.timeline["ranges"], recording.timeline.strings
        log, file = strings.find("log"), strings.find("file")
        names = used(ranges["path"])
        logs = [code for code in names if _is_log(strings[code])]
        rows = np.flatnonzero(
            ((ranges["kind"] == log) & (log >= 0))
            | ((ranges["kind"] == file) & (file >= 0) & among(ranges["path"], logs))
        )
        rows = rows[known(ranges["start"][rows])]
        found.append((ranges["start"][rows], ranges["end"][rows]))
        paths += [
            text
            for row in rows.tolist()
            if (text := recording.timeline.text(int(ranges["path"][row])))
        ]
    return records.joined(found), paths


def _is_log(path: str) -> bool:
    return path.endswith((".log", "/stdout", "/stderr")) or path in (
        "stdout",
        "stderr",
        "<stdout>",
        "<stderr>",
    )


@rule(
    "R43",
    "SWAP-PAGEFAULT",
    "io",
    Stage.HOST,
    disproof="no major faults once the engine is warm",
)
def paging(case: Case) -> Hint | None:
    """A worker waits for pages from disk in steady state.

    Symptom: more than `faults_per_s` major faults a second. Source: threads C58, C63. Disproof: no
    faults in steady state.
    """
    limits = case.limits("R43")
    charge = case.charge(("io.page_fault",))
    best = max((_fault_rate(case, one) for one in case.job.recordings), default=None)
    if best is None or best[0] <= limits["faults_per_s"]:
        return None
    per_second, process = best
    felt = f": {charge.told}" if charge.ns else ""
    return Hint(
        f"Process {process} waits for paging ({figure(per_second, 3)} major faults a second){felt}",
        "high" if charge.ns else "low",
        charge,
        {"faults_per_s": per_second, "process": process, "page_fault_ns": charge.ns or None},
        unjudged=not charge.ns,
    )


def _fault_rate(case: Case, recording: Recording) -> tuple[float, int]:
    """The highest rate of major faults of any process while it makes steps, and the process."""
    table, rows = recording.timeline["samples"], _rows(recording, "process.major_faults")
    steps = records.step_spans(case)
    found = (0.0, 0)
    for process in np.unique(table["process"][rows]).tolist():
        mine = rows[table["process"][rows] == process]
        times, values = table["t"][mine], table["value"][mine]
        if len(steps[0]):
            kept = (times >= steps[0][0]) & (times <= steps[1][-1])
            times, values = times[kept], values[kept]
        lasted = int(times[-1] - times[0]) if len(times) > 1 else 0
        if lasted:
            grown = float(np.maximum(np.diff(values), 0).sum())
            found = max(found, (grown * 1e9 / lasted, 0 if process == UNKNOWN else int(process)))
    return found


@rule(
    "R49",
    "STEP-FILE-IO",
    "io",
    Stage.HOST,
    disproof="file access on another thread, or while the device works",
)
def files_in_steps(case: Case) -> Hint | None:
    """Steps wait for files or page faults.

    Symptom: such time, with the device idle, is `step_share` of the steps; log writes and the load
    of the weights do not count. Source: proposal. Disproof: access on another thread.
    """
    parts = ("io.file", "io.page_fault")
    spans, paths = _file_spans(case)
    loss = case.of_steps(parts, spans)
    if not loss.steps or not loss.ns or loss.share < case.limits("R49")["step_share"]:
        return None
    what = f" ({name(paths[0])})" if paths else ""
    return Hint(
        f"Steps wait {time(loss.a_step)} each for files or page faults{what}",
        "high",
        case.charge(parts, spans),
        {
            "file_ns": loss.ns,
            "step_ns": loss.total,
            "step_share": loss.share,
            "accesses": len(spans[0]),
            "path": name(paths[0], 200) if paths else None,
        },
    )


def _file_spans(case: Case) -> tuple[Spans, list[str]]:
    """File access and page faults that are no log writes, and the paths by the time on each."""
    found: list[Spans] = []
    paths: dict[str, int] = {}
    for recording in case.job.recordings:
        spans, strings = case.spans(recording, "file", "page_fault"), recording.timeline.strings
        logs = [code for code in used(spans["path"]) if _is_log(strings[code])]
        spans = spans.take(~among(spans["path"], logs))
        found.append((spans["start"], spans["end"]))
        lasting = intervals.sum_by(spans["path"], spans["end"] - spans["start"], len(strings))
        for code in used(spans["path"]):
            paths[strings[code]] = paths.get(strings[code], 0) + int(lasting[code])
    return records.joined(found), sorted(paths, key=lambda path: -paths[path])
