"""What an Nsight Systems export says of itself: clock, tool, losses, its own cost, GPU metrics."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rca_llm.readers.nsys_store import Chunk, Export
from rca_llm.table import Table, known
from rca_llm.trace import SAMPLES, Timeline

_LOST = ("not all", "dropped", "lost", "overflow", "discarded", "incomplete")
"""Words in warnings about records that are missing."""

_WARNING, _ERROR = 2, 3

_TEXT = 160
"""Characters of a warning that are passed on."""

_INTERVAL = 10_000_000
"""Nanoseconds over which the values of a GPU metric are averaged."""


def clock(export: Export, timeline: Timeline) -> None:
    """Find what turns times of the session into UTC, and say whether anything does."""
    normalised = metadata(export).get("EXPORT_PARAM_TIME_NORMALIZE") == "true"
    begin = export.columns("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")["utcEpochNs"]
    begin = begin[known(begin) & (begin > 0)]
    export.base = int(begin[0]) if len(begin) and not normalised else 0
    timeline.header.utc = normalised or len(begin) > 0


def metadata(export: Export) -> dict[str, str]:
    """What the exporter says of its product, version and parameters."""
    rows = export.records("META_DATA_EXPORT", [], ["name", "value"])
    return {texts["name"]: texts.get("value", "") for _, texts in rows if "name" in texts}


def note_losses(export: Export, timeline: Timeline) -> None:
    """Report the recorder's warnings about records that it lost."""
    warnings: Counter[tuple[str, str]] = Counter()
    rows = export.records("DIAGNOSTIC_EVENT", ["severity", "globalPid"], ["text"])
    for row, texts in rows:
        text = texts.get("text", "").split("\n")[0][:_TEXT]
        lost = any(word in text.lower() for word in _LOST)
        if lost and row.get("severity", _WARNING) in (_WARNING, _ERROR):
            pid = row.get("globalPid", 0) >> 24 & 0xFFFFFF
            warnings[f"process {pid}" if pid else "", text] += 1
    for (where, text), count in warnings.items():
        timeline.note("dropped_records", count, where, text)


def note_overhead(export: Export, timeline: Timeline) -> None:
    """Report the time that the recorder itself took while there was something to record."""
    raw = export.columns("PROFILER_OVERHEAD", "start", "end", "nameId")
    window = _window(timeline)
    if window is None or not len(raw["start"]):
        return
    start = np.maximum(export.time(raw["start"]), window[0])
    cost = np.minimum(export.time(raw["end"]), window[1]) - start
    rows = np.flatnonzero((cost > 0) & known(raw["end"]))
    if not len(rows):
        return
    names, name = np.unique(export.texts(raw["nameId"])[rows], return_inverse=True)
    sums = np.bincount(name, cost[rows])
    most = timeline.text(int(names[sums.argmax()])) or "unnamed"
    detail = f"{cost[rows].sum()} ns on its threads, {int(sums.max())} ns of it: {most[:_TEXT]}"
    timeline.note("tracer_overhead", len(rows), "PROFILER_OVERHEAD", detail)


def _window(timeline: Timeline) -> tuple[int, int] | None:
    """The first start and the last end of device work and API calls."""
    times = [timeline[table][column] for table in ("gpu", "api") for column in ("start", "end")]
    every = np.concatenate(times)
    every = every[known(every)]
    return (int(every.min()), int(every.max())) if len(every) else None


def metrics(export: Export, timeline: Timeline) -> None:
    """Add the means of GPU metrics over short intervals to `samples`, as `nsys.<name>`."""
    sums: dict[tuple[int, int, int], list[int]] = {}
    for chunk in export.chunks("GPU_METRICS", ("timestamp", "typeId", "metricId", "value")):
        _accumulate(sums, chunk)
    if not sums:
        return
    names = _metric_names(export)
    keys = np.array(list(sums), np.int64)
    totals = np.array(list(sums.values()), np.float64)
    labels = [names.get((type, metric), f"metric {metric}") for type, metric, _ in keys.tolist()]
    columns = {
        "t": export.time(keys[:, 2] * _INTERVAL),
        "metric": export.strings.codes(f"nsys.{label}" for label in labels),
        "device": keys[:, 0] & 0xFF,
        "value": totals[:, 0] / totals[:, 1],
    }
    timeline.add("samples", Table(SAMPLES, columns))


def _accumulate(sums: dict[tuple[int, int, int], list[int]], chunk: Chunk) -> None:
    """Add the values of some rows, and their count, to the sums by type, metric and interval."""
    rows = known(chunk["timestamp"]) & known(chunk["value"])
    interval = chunk["timestamp"][rows] // _INTERVAL
    keys = np.stack([chunk["typeId"][rows], chunk["metricId"][rows], interval], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    total = np.bincount(inverse, chunk["value"][rows], len(distinct))
    count = np.bincount(inverse, minlength=len(distinct))
    for key, value, number in zip(distinct.tolist(), total.tolist(), count.tolist(), strict=True):
        entry = sums.setdefault(tuple(key), [0, 0])
        entry[0] += value
        entry[1] += number


def _metric_names(export: Export) -> dict[tuple[int, int], str]:
    """The name of each metric; its number differs from file to file."""
    rows = export.records("TARGET_INFO_GPU_METRICS", ["typeId", "metricId"], ["metricName"])
    return {
        (row["typeId"], row["metricId"]): texts["metricName"]
        for row, texts in rows
        if len(row) == 2 and "metricName" in texts
    }
