"""The matrix of injected causes in Markdown: by cause and size, which hint came first, misses."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rca_llm.inject.catalogue import CAUSES
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
    `noise` is the usual difference of the runs without the cause before and after, None where there
    were no two. `clocked`: nothing was compared, as the workload timed the cause itself.
    """

    cause: str
    size: float
    pairs: int
    predicted: float
    measured: float
    off: float
    noise: float | None
    clocked: bool = False

    @property
    def judged(self) -> bool:
        """Whether the saving stands out of the noise."""
        noise = 0.0 if self.clocked else self.noise
        return noise is not None and self.measured > NOISES * noise

    @property
    def apart(self) -> float:
        """How far the prediction is from what was measured, as a fraction of that."""
        return abs(self.off) / self.measured


NOISES = 3
"""A saving is judged where it is more than so many times the noise."""


Saving = tuple[float | None, float | None]
"""What a run's report predicts that is saved, and what was, ns."""


def in_turns(row: Row) -> Saving:
    """What a replay says, against runs of the same load without the cause before and after."""
    if row.with_ns is None or not row.without_ns:
        return row.predicted_ns, None
    return row.predicted_ns, row.with_ns - statistics.fmean(row.without_ns)


ADVICE_LEAVES_SOME = ("pageable_copies", "small_copies")
"""Causes whose hint says what its advice saves: a copy that remains. All of it is its charge."""


def without_cause(row: Row) -> Saving:
    """What the hint, or a replay where that claims less, says against the service without it."""
    if row.removed_ns is not None:
        return row.removed_ns, row.injected_ns
    return row.charged_ns if row.cause in ADVICE_LEAVES_SOME else row.saving_ns, row.injected_ns


def with_advice(row: Row) -> Saving:
    """What is said of the advice, against the service that follows it."""
    return row.predicted_ns, row.measured_ns


def removals(rows: Sequence[Row], saving: Callable[[Row], Saving] = in_turns) -> list[Removal]:
    """Every cause and size with its medians over the seeds."""
    found: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    compared: set[tuple[str, float]] = set()
    for row in rows:
        said, saved = saving(row)
        if row.without_ns:
            compared.add((row.cause, row.magnitude))
        if said is not None and saved is not None:
            found[row.cause, row.magnitude].append((said, saved))
    noise = _noise(rows)
    return [
        Removal(
            *(cause, size, len(own)),
            statistics.median(said for said, _ in own),
            statistics.median(saved for _, saved in own),
            statistics.median(said - saved for said, saved in own),
            noise.get(_load_of(cause, size)),
            (cause, size) not in compared,
        )
        for (cause, size), own in found.items()
    ]


Load = tuple[str, float | None]
"""A cause and, where it changes the load, its size."""


def _load_of(cause: str, size: float) -> Load:
    """On a GPU, what is served without the cause does the same work well: its size counts."""
    return cause, size if cause in OWN_LOAD or CAUSES[cause].gpu else None


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
    return saving_figures(rows, "whatif", in_turns)


def saving_figures(
    rows: Sequence[Row], name: str, saving: Callable[[Row], Saving]
) -> dict[str, float | int | None]:
    """The same of any two sides; the keys begin with `name`."""
    every = removals(rows, saving)
    apart = sorted(one.apart * 100 for one in every if one.judged)
    both = [saving(row) for row in _sick(rows)]
    return {
        f"{name}_pairs_without_prediction": sum(a is None and b is not None for a, b in both),
        f"{name}_judged": len(apart),
        f"{name}_drowned_in_noise": len(every) - len(apart),
        f"{name}_median": statistics.median(apart) if apart else None,
        f"{name}_worst": apart[-1] if apart else None,
    }


def whatif_table(
    rows: Sequence[Row], what: str = "removed", saving: Callable[[Row], Saving] = in_turns
) -> str:
    """What removing each cause saved, as it was predicted and as it was when it was removed."""
    lines = [
        f"| {what} | size | pairs | predicted | measured | clean against clean | apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in removals(rows, saving):
        noise = "–" if one.noise is None else _ms(one.noise)
        noise = "timed by itself" if one.clocked else noise
        apart = f"{one.apart * 100:.1f} %" if one.judged else "drowned in noise"
        cells = f"{_ms(one.predicted)} | {_ms(one.measured)} | {noise} | {apart} |"
        lines.append(f"| `{one.cause}` | {one.size:g} | {one.pairs} | {cells}")
    return "\n".join(lines) + "\n"


def _ms(ns: float) -> str:
    """A time, with as many digits as it needs: those on a GPU are a few milliseconds."""
    return f"{ns / 1e6:,.0f} ms" if abs(ns) >= 100e6 else f"{ns / 1e6:,.2f} ms"


def savings_tables(rows: Sequence[Row]) -> str:
    """Both comparisons on a GPU: the cause removed, and what its advice says done."""
    return "\n".join(
        [whatif_table(rows, "removed", without_cause), whatif_table(rows, "advice", with_advice)]
    )
