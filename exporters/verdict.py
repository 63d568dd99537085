"""The answer in a sentence, and the figures that stand beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters import units
from rca_llm.exporters.definitions import PARTS
from rca_llm.exporters.text import shown

Summary = Mapping[str, Any]

MOST_REQUESTS = 1000
"""How many requests a hint names at most; it may be charged with more."""

MOST_NAMED, MOST_ID = 3, 60
"""Requests that the headline names, and characters of the id of each."""


def given(value: Any) -> Mapping[str, Any]:
    """An object of the summary that may be null: empty then."""
    found: Mapping[str, Any] = value or {}
    return found


def listed(value: Any) -> list[Any]:
    """A list of the summary that may be null or, for one item, the item itself."""
    if value is None:
        return []
    several = isinstance(value, (list, tuple))
    return list(cast("Iterable[Any]", value)) if several else [value]


@dataclass(frozen=True)
class Judged:
    """What the headline's shares are shares of: sums over requests, steps or the whole trace.

    `shares` and `parts` are ns by name; `of` names the whole; `count` is how many
    requests were summed, none for the whole trace of `ranks`.
    """

    of: str
    count: int
    shares: Mapping[str, int]
    parts: Mapping[str, int]
    ranks: int = 1

    @property
    def total(self) -> int:
        """All of it, ns."""
        return sum(self.shares.values())

    @property
    def whole(self) -> str:
        """All of it in words, with what it is a sum over: that may exceed the traced time."""
        return summed(self.total, self.count or self.ranks, "request" if self.count else "rank")

    def share(self, name: str) -> float | None:
        """A class's or part's fraction."""
        return units.ratio(self.shares.get(name, self.parts.get(name, 0)), self.total)

    def largest_parts(self, class_name: str, most: int = 3) -> list[tuple[str, int]]:
        """The largest parts of a class, ns."""
        inside = {n: ns for n, ns in self.parts.items() if n.startswith(f"{class_name}.") and ns}
        return Counter(inside).most_common(most)


def judged(summary: Summary) -> Judged:
    """Requests where there are any with a latency, else the whole trace."""
    told = (row for row in summary["requests"] if row.get("shares"))
    rows = [row for row in told if row.get("latency_ns") is not None]
    if any(row["latency_ns"] for row in rows):
        shares, parts = _sum(row["shares"] for row in rows), _sum(row["parts"] for row in rows)
        of = "the request's latency" if len(rows) == 1 else f"the latency of {len(rows):,} requests"
        return Judged(of, len(rows), shares, parts)
    return whole(summary)


def whole(summary: Summary) -> Judged:
    """The partition of the whole trace."""
    ranks = traced_ranks(summary)
    of = "the traced time" if ranks < 2 else f"the traced time of {ranks} ranks"
    return Judged(of, 0, summary["shares"], summary["parts"], ranks)


def summed(ns: int, count: int, noun: str) -> str:
    """A time with how many it is summed over; those overlap, so that it may exceed the trace."""
    least = "at least " if noun == "request" and count == MOST_REQUESTS else ""
    return units.duration(ns) + (f" summed over {least}{count:,} {noun}s" if count > 1 else "")


def saves(hint: Mapping[str, Any]) -> str:
    """What removing the cause of a hint would save, in words."""
    saving = saving_of(hint)
    if saving is None:
        return "saving not judged"
    return f"saves up to {saving}" if hint["saving_ns"] else "saves nothing by itself"


def saving_of(hint: Mapping[str, Any]) -> str | None:
    """What removing the cause would save, and over how many requests that is summed."""
    ns, count = hint["saving_ns"], len(listed(hint.get("requests")))
    return None if ns is None else summed(ns, count, "request")


def traced_ranks(summary: Summary) -> int:
    """How many ranks there is any record of; those that are missing have no span."""
    return sum(bool(row["span_ns"]) for row in summary["ranks"])


def _sum(rows: Iterable[Mapping[str, int] | None]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(given(row))
    return total


def headline(summary: Summary) -> str:
    """The largest class and its largest part in a sentence; then who never finished, if anybody."""
    return " ".join(filter(None, (_largest(summary), _unfinished(summary))))


def _unfinished(summary: Summary) -> str:
    """The requests that had not finished, those first that had lasted longest; else empty.

    They have no latency, so that no share speaks of them, and they may be what somebody looks for.
    """
    rows = [row for row in summary["requests"] if row["status"] == "unfinished"]
    lasted = [(sum(given(row["shares"]).values()), shown(row["id"], MOST_ID)) for row in rows]
    if not lasted:
        return ""
    lasted.sort(key=lambda one: -one[0])
    named = [f"{id} (after {units.duration(ns)})" for ns, id in lasted[:MOST_NAMED]]
    more = [f"{len(lasted) - MOST_NAMED:,} more"] if len(lasted) > MOST_NAMED else []
    verb = "had not finished when its" if len(lasted) == 1 else "had not finished when their"
    who = ", ".join([*named, *more])
    return f"{units.counted(len(lasted), 'request')} {verb} recording ended: {who}."


def _largest(summary: Summary) -> str:
    found = judged(summary)
    if not found.total:
        return "Nothing in this trace can be judged: it holds no time."
    name = max(CLASSES, key=lambda group: found.shares.get(group, 0))
    if name == "unknown":
        return f"Most of {found.of} cannot be judged: {_because(found)}."
    share = units.percent(found.share(name))
    return f"{title(name)} takes {share} of {found.of}{_mostly(summary, found, name)}."


def title(class_name: str) -> str:
    """A class at the beginning of a sentence."""
    return "IO" if class_name == "io" else class_name.capitalize()


def part_words(summary: Summary) -> Mapping[str, str]:
    """Every part in words; collectives of which no waiting is known may have waited or moved."""
    if any(given(row).get("wait_ns") for row in summary["collectives"]):
        return PARTS
    return {**PARTS, "communication.collective": "collectives (waiting or moving)"}


def _mostly(summary: Summary, found: Judged, name: str) -> str:
    parts = found.largest_parts(name, 1)
    if not parts:
        return ""
    part, ns = parts[0]
    share = units.percent(units.ratio(ns, found.total))
    return f", above all {part_words(summary)[part]} ({share})"


def _because(found: Judged) -> str:
    parts = found.largest_parts("unknown", 1)
    return PARTS[parts[0][0]] if parts else "no record says what happened"


def details(summary: Summary) -> list[str]:
    """What goes with the headline: the latencies, and what fixing the first hint would save."""
    told = (_latencies(summary), _unknown(summary), _no_compute(summary), _first_hint(summary))
    return [text for text in told if text]


def _latencies(summary: Summary) -> str:
    latency = summary["latency"]
    if not latency or not latency["count"]:
        return ""
    if latency["count"] == 1:
        return f"It took {units.duration(latency['p50'])}."
    return (
        f"Half of the {latency['count']:,} finished requests took {units.duration(latency['p50'])}"
        f" or less, 99 in 100 took {units.duration(latency['p99'])} or less."
    )


def _unknown(summary: Summary) -> str:
    found = judged(summary)
    share = found.share("unknown")
    if not share or max(found.shares, key=lambda name: found.shares[name]) == "unknown":
        return ""
    return f"{units.percent(share)} cannot be judged: {_because(found)}."


def _no_compute(summary: Summary) -> str:
    """What is missing where an engine without a GPU does not say when its model runs."""
    marked = summary["devices"] or summary["shares"]["compute"] or not summary["totals"]["ranges"]
    if marked or summary["shares"]["unknown"]:
        return ""
    return (
        "No phase is marked as compute: without a GPU, give the spans in which the model runs"
        ' kind="compute", else their time counts as scheduling.'
    )


def root_cause(summary: Summary, found: Judged, name: str) -> str:
    """The hint that explains a class, by its title; else the class's largest parts."""
    stated: Any = given(given(summary["class_stats"]).get(name)).get("hint")
    for hint in summary["hints"]:
        if stated and stated in (hint["id"], hint["title"]):
            return shown(hint["title"])
    parts = found.largest_parts(name, 2)
    total = found.total
    return ", ".join(
        f"{part_words(summary)[part]} {units.percent(ns / total)}" for part, ns in parts
    )


def _first_hint(summary: Summary) -> str:
    first = next((hint for hint in summary["hints"] if hint["saving_ns"]), None)
    if first is None:
        return ""
    return f"What would save most, up to {saving_of(first)}: {shown(first['title'])}."
