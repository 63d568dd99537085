"""The matrix of injected causes in Markdown: by cause and size, which hint came first, misses."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rca_llm.inject.turns import OWN_LOAD
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


@dataclass(frozen=True)
class Removal:
    """What removing a cause of one size saved, ns: predicted, measured, and what chance makes.

    Medians over pairs; `off` is that of the difference in each, since pairs are of several loads.
    `measured` is against the mean of the runs without the cause before and after; `noise` is the
    usual difference of these two, None where there were no two.
    """

    cause: str
    size: float
    pairs: int
    predicted: float
    measured: float
    off: float
    noise: float | None

    @property
    def judged(self) -> bool:
        """Whether the saving stands out of the noise."""
        return self.noise is not None and self.measured > NOISES * self.noise

    @property
    def apart(self) -> float:
        """How far the prediction is from what was measured, as a fraction of that."""
        return abs(self.off) / self.measured


NOISES = 3
"""A saving is judged where it is more than so many times the noise."""


def removals(rows: Sequence[Row]) -> list[Removal]:
    """Every cause and size with its medians over the seeds."""
    found: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.with_ns is not None and row.predicted_ns is not None and row.without_ns:
            saved = row.with_ns - statistics.fmean(row.without_ns)
            found[row.cause, row.magnitude].append((row.predicted_ns, saved))
    noise = _noise(rows)
    return [
        Removal(
            *(cause, size, len(own)),
            statistics.median(said for said, _ in own),
            statistics.median(saved for _, saved in own),
            statistics.median(said - saved for said, saved in own),
            noise.get(_load_of(cause, size)),
        )
        for (cause, size), own in found.items()
    ]


Load = tuple[str, float | None]
"""A cause and, where it changes the load, its size."""


def _load_of(cause: str, size: float) -> Load:
    return cause, size if cause in OWN_LOAD else None


def _noise(rows: Sequence[Row]) -> dict[Load, float]:
    """By load, the usual difference of two clean runs around one row (1.48 times the median)."""
    apart: dict[Load, list[int]] = defaultdict(list)
    for row in rows:
        pairs = itertools.pairwise(row.without_ns)
        apart[_load_of(row.cause, row.magnitude)] += [abs(a - b) for a, b in pairs]
    return {name: 1.4826 * statistics.median(own) for name, own in apart.items() if own}


def _sick(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.cause != "clean"]


def whatif_figures(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Predictions against measurements: apart in the median and at worst, percent, and how many."""
    every = removals(rows)
    apart = sorted(one.apart * 100 for one in every if one.judged)
    silent = sum(row.with_ns is not None and row.predicted_ns is None for row in _sick(rows))
    return {
        "whatif_pairs_without_prediction": silent,
        "whatif_judged": len(apart),
        "whatif_drowned_in_noise": len(every) - len(apart),
        "whatif_median": statistics.median(apart) if apart else None,
        "whatif_worst": apart[-1] if apart else None,
    }


def whatif_table(rows: Sequence[Row]) -> str:
    """What removing each cause saved, as the replay predicted and as it was when it was removed."""
    lines = [
        "| removed | size | pairs | predicted | measured | clean against clean | apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in removals(rows):
        noise = "–" if one.noise is None else f"{one.noise / 1e6:,.0f} ms"
        apart = f"{one.apart * 100:.1f} %" if one.judged else "drowned in noise"
        cells = (
            f"{one.predicted / 1e6:,.0f} ms | {one.measured / 1e6:,.0f} ms | {noise} | {apart} |"
        )
        lines.append(f"| `{one.cause}` | {one.size:g} | {one.pairs} | {cells}")
    return "\n".join(lines) + "\n"
