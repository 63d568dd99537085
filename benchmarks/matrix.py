"""The matrix of injected causes in Markdown: by cause and size, which hint came first, misses."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from rca_llm.inject.verdict import Row, errors


def tables(rows: Sequence[Row]) -> str:
    """The matrix in Markdown: by cause and size, the first hints, and every miss."""
    lines = [*_by_cause(rows), "", *_confusion(rows), "", *_misses(rows)]
    return "\n".join(lines) + "\n"


def _by_cause(rows: Sequence[Row]) -> list[str]:
    found: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        found[row.cause, row.magnitude].append(row)
    lines = [
        "| cause | size | runs | first | first two | true share | said | points apart (worst) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (cause, size), own in found.items():
        if cause == "clean":
            quiet = sum(not row.high for row in own)
            lines.append(f"| clean | | {len(own)} | no high-confidence hint in {quiet} | | | | |")
            continue
        apart = errors(own)
        lines.append(
            f"| `{cause}` | {size:g} | {len(own)} | {_count(own, 1)} | {_count(own, 2)} |"
            f" {_mean([row.truth for row in own])} | {_mean([row.said for row in own])} |"
            + (f" {statistics.median(apart):.1f}, {apart[-1]:.1f} |" if apart else " not judged |")
        )
    return lines


def _count(rows: Sequence[Row], most: int) -> int:
    return sum(row.rank is not None and row.rank <= most for row in rows)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.fmean(known) * 100:.1f} %" if known else "–"


def _confusion(rows: Sequence[Row]) -> list[str]:
    """Of every cause, which hint came first and how often."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[row.cause][row.hints[0] if row.hints else "none"] += 1
    columns = sorted({id for counts in found.values() for id in counts})
    lines = ["| first hint | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for cause, counts in found.items():
        cells = [str(counts[id]) if counts[id] else "" for id in columns]
        lines.append(f"| `{cause}` | " + " | ".join(cells) + " |")
    return lines


def _misses(rows: Sequence[Row]) -> list[str]:
    missed = [row for row in rows if row.cause != "clean" and row.rank != 1]
    loud = [row for row in rows if row.cause == "clean" and row.high]
    if not missed and not loud:
        return ["No run was missed."]
    lines = ["| missed run | hints in order | note |", "|---|---|---|"]
    for row in (*missed, *loud):
        said = ", ".join(row.hints) or "none"
        lines.append(f"| `{row.cause}` {row.magnitude:g}, seed {row.seed} | {said} | {row.note} |")
    return lines


def whatif_table(rows: Sequence[Row]) -> str:
    """What removing each cause saved, as the replay predicted and as it was when it was removed."""
    found: dict[tuple[str, float], list[Row]] = defaultdict(list)
    for row in rows:
        if row.measured_ns is not None and row.predicted_ns is not None:
            found[row.cause, row.magnitude].append(row)
    lines = ["| removed | size | predicted | measured | apart |", "|---|---|---|---|---|"]
    apart: list[float] = []
    for (cause, size), own in found.items():
        said = statistics.fmean(row.predicted_ns or 0 for row in own)
        true = statistics.fmean(row.measured_ns or 0 for row in own)
        off = abs(said - true) / true if true > 0 else float("inf")
        apart.append(off)
        cells = f"{said / 1e6:,.0f} ms | {true / 1e6:,.0f} ms | {off * 100:.1f} %"
        lines.append(f"| `{cause}` | {size:g} | {cells} |")
    if apart:
        apart.sort()
        lines += [
            "",
            f"Apart: median {statistics.median(apart) * 100:.1f} %, worst {apart[-1] * 100:.1f} %.",
        ]
    return "\n".join(lines) + "\n"
