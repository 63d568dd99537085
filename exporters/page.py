"""What the page's template is filled with: bars, hints and findings as plain values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rca_llm.attribute.parts import CLASSES
from rca_llm.exporters import evidence, units
from rca_llm.exporters.definitions import CLASSES as CLASS_TERMS
from rca_llm.exporters.definitions import PARTS, TERMS
from rca_llm.exporters.rules import anchor, known, pages
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import (
    Judged,
    Summary,
    details,
    given,
    headline,
    judged,
    listed,
    part_words,
    root_cause,
    saving_of,
    title,
    traced_ranks,
    whole,
)

_LONG_NS = re.compile(r"\b(\d{4,}) ns\b")

FIRST = "not_arrived"
"""The finding that stands before all others: a rank that never came may be what hangs a job."""

MOST_MARKS = 50
"""Marks that stand under the timeline; the summary has them all."""

MOST_HINTS = 3
"""Hints that stand at the top; the others are folded below them."""


def context(summary: Summary) -> dict[str, Any]:
    """Everything the server-rendered part of the page shows."""
    found, all_time, words = judged(summary), whole(summary), part_words(summary)
    bars = [bar(found)] if found.count == 0 else [bar(found), bar(all_time)]
    hints = [hint(row) for row in summary["hints"]]
    return {
        "headline": units.unbroken(headline(summary)),
        "headline_about": _about_headline(found),
        "details": [units.unbroken(text) for text in details(summary)],
        "facts": facts(summary),
        "bars": bars,
        "classes": class_rows(summary, found, all_time, words),
        "hints": hints[:MOST_HINTS],
        "more_hints": hints[MOST_HINTS:],
        "findings": findings(summary["quality"]),
        "token_bars": token_bars(summary, words),
        "marks": marks(summary),
        "idle": idle_causes(all_time, words),
        "short_calls": short_calls(summary),
        "glossary": glossary(words),
        "rules": pages(),
        "on_device": bool(summary["devices"]),
        "terms": TERMS,
        "per_request": found.count > 0,
    }


def _about_headline(found: Judged) -> str:
    """What the class that the headline names is."""
    largest = max(CLASSES, key=lambda name: found.shares.get(name, 0))
    return f"{title(largest)}: {CLASS_TERMS[largest]}"


def facts(summary: Summary) -> list[dict[str, str]]:
    """The few figures under the headline, with their definitions."""
    window, latency, totals = summary["window"], given(summary["latency"]), summary["totals"]
    rows: list[tuple[str, str, str]] = []
    if latency.get("count"):
        for name in ("p50", "p90", "p99"):
            term = name.upper()
            rows.append((f"latency {term}", units.duration(latency[name]), TERMS[term]))
    ttft = [row["ttft_ns"] for row in summary["requests"] if row.get("ttft_ns") is not None]
    if ttft:
        rows.append(
            ("TTFT, median", units.duration(sorted(ttft)[(len(ttft) - 1) // 2]), TERMS["TTFT"])
        )
    for name in ("requests", "steps", "kernels", "collectives"):
        if totals.get(name):
            rows.append((name, units.number(totals[name]), f"Number of {name} in the trace."))
    rows.append(("traced time", units.duration(window["span_ns"]), _span_term(summary)))
    return [{"name": name, "value": value, "about": about} for name, value, about in rows]


def _span_term(summary: Summary) -> str:
    ranks = traced_ranks(summary)
    return TERMS["span"] if ranks < 2 else f"Sum of the spans of {ranks} ranks."


def bar(found: Judged) -> dict[str, Any]:
    """A stacked bar of the five classes."""
    return {
        "of": found.of,
        "about": _about_whole(found),
        "total": found.whole,
        "pieces": [
            piece(name, name, title(name), found) for name in CLASSES if found.shares.get(name)
        ],
    }


def _about_whole(found: Judged) -> str:
    about = TERMS["latency"] if found.count else TERMS["span"]
    return f"{about} {TERMS['summed over']}" if max(found.count, found.ranks) > 1 else about


def piece(name: str, class_name: str, label: str, found: Judged) -> dict[str, Any]:
    """One stretch of a stacked bar."""
    ns = found.shares.get(name, found.parts.get(name, 0))
    return {
        "class": class_name,
        "label": label,
        "ns": ns,
        "about": CLASS_TERMS.get(name) or _sentence(label),
        "width": round(100 * ns / found.total, 4) if found.total else 0,
        "value": units.milliseconds(ns),
        "share": units.percent(units.ratio(ns, found.total)),
    }


def class_rows(
    summary: Summary, found: Judged, all_time: Judged, words: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row a class: its mean, share and variation over requests, and its time in the trace."""
    stats = given(summary["class_stats"])
    return [
        {
            "name": name,
            "label": title(name),
            "about": CLASS_TERMS[name],
            "mean": units.milliseconds(given(stats.get(name)).get("mean_ns")),
            "share": units.percent(found.share(name)),
            "variation": units.percent(given(stats.get(name)).get("cv")),
            "whole": units.milliseconds(all_time.shares.get(name)),
            "whole_share": units.percent(all_time.share(name)),
            "hidden": units.milliseconds(given(summary["hidden"]).get(name)),
            "parts": [part(*row, found, words[row[0]]) for row in found.largest_parts(name)],
            "cause": given(stats.get(name)).get("hint") and root_cause(summary, found, name),
        }
        for name in CLASSES
        if found.shares.get(name) or all_time.shares.get(name)
    ]


def part(name: str, ns: int, found: Judged, words: str) -> dict[str, str]:
    """One part with its words, time and share."""
    share = units.percent(units.ratio(ns, found.total))
    value = units.milliseconds(ns)
    about = f"{name}: {value}. {_sentence(words)}"
    return {"name": name, "words": words, "value": value, "share": share, "about": about}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def hint(row: Mapping[str, Any]) -> dict[str, Any]:
    """A hint with everything needed to check it."""
    share, requests = row.get("share"), listed(row.get("requests"))
    saving = saving_of(row) or "not judged"
    return {
        "id": shown(row["id"]),
        "page": anchor(row["id"]) if row["id"] in known() else None,
        "title": units.unbroken(shown(row["title"])),
        "class": row["class"] if row["class"] in CLASSES else "unknown",
        "class_about": CLASS_TERMS.get(row["class"], ""),
        "confidence": row["confidence"],
        "saves": bool(row["saving_ns"]),
        "saving": "none by itself" if row["saving_ns"] == 0 else units.unbroken(saving),
        "share": None if share is None else units.percent(share),
        "advice": [shown(text, 1000) for text in listed(row.get("advice")) if text],
        "evidence": evidence.rows(row),
        "requests": [shown(name, 60) for name in requests[:8]],
        "request_count": len(requests),
    }


def findings(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Quality findings in words, those of one code together."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row["code"]), []).append(row)
    return [_finding(code, found[code]) for code in sorted(found, key=FIRST.__ne__)]


def _finding(code: str, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    told = [
        {"where": shown(row.get("where") or ""), "detail": _detail(row.get("detail") or "")}
        for row in rows
    ]
    words = shown(code.replace("_", " "))
    return {"words": words, "count": units.number(sum(row["count"] for row in rows)), "told": told}


def _detail(text: str) -> str:
    """A finding's own words, its long times in the unit that suits them."""
    readable = _LONG_NS.sub(lambda match: units.duration(int(match[1])), text)
    return shown(readable, 1000)


def marks(summary: Summary) -> list[str]:
    """What was marked from outside, each with the time since the trace began."""
    start, rows = summary["window"]["start_ns"], listed(summary.get("marks"))
    told = [f"{shown(row['name'])} {_from_start(row['t_ns'] - start)}" for row in rows[:MOST_MARKS]]
    return [*told, f"{len(rows) - MOST_MARKS:,} more"] if len(rows) > MOST_MARKS else told


def _from_start(ns: int) -> str:
    """When something was; one in a pause may have been before the first record."""
    return f"after {units.duration(ns)}" if ns >= 0 else f"{units.duration(-ns)} before"


def token_bars(summary: Summary, words: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the time to the first token and between tokens is made of, over all requests."""
    bars: list[dict[str, Any]] = []
    for key, label in (("ttft_parts", "until the first token"), ("itl_parts", "between tokens")):
        parts: dict[str, int] = {}
        rows = [given(row[key]) for row in summary["requests"] if row.get(key)]
        for row in rows:
            for name, ns in row.items():
                parts[name] = parts.get(name, 0) + ns
        if sum(parts.values()):
            bars.append(_parts_bar(key, label, parts, len(rows), words))
    return bars


def _parts_bar(
    key: str, label: str, parts: Mapping[str, int], count: int, words: Mapping[str, str]
) -> dict[str, Any]:
    shares: dict[str, int] = dict.fromkeys(CLASSES, 0)
    for name, ns in parts.items():
        shares[name.partition(".")[0]] += ns
    found = Judged(label, count, shares, parts)
    order = sorted(parts, key=lambda n: (CLASSES.index(n.partition(".")[0]), -parts[n]))
    pieces = [piece(n, n.partition(".")[0], words.get(n, n), found) for n in order if parts[n]]
    top = sorted(parts, key=lambda n: -parts[n])[:5]
    rows = [part(name, parts[name], found, words[name]) for name in top if parts[name]]
    about = TERMS["TTFT" if key == "ttft_parts" else "ITL"]
    return {
        "of": label,
        "about": f"{about} {TERMS['summed over']}",
        "total": found.whole,
        "pieces": pieces,
        "rows": rows,
    }


def idle_causes(all_time: Judged, words: Mapping[str, str]) -> list[dict[str, Any]]:
    """Why devices computed nothing: every part outside compute, longest first."""
    rows = [(n, ns) for n, ns in all_time.parts.items() if ns and not n.startswith("compute.")]
    longest = max((ns for _, ns in rows), default=1)
    return [
        part(name, ns, all_time, words[name])
        | {"class": name.partition(".")[0], "width": round(100 * ns / longest, 2)}
        for name, ns in sorted(rows, key=lambda row: -row[1])
    ]


def short_calls(summary: Summary) -> list[str]:
    """What calls below the recorder's threshold came to, one line a kind, the longest first."""
    return [
        f"{_kind_of_calls(row)}: {units.number(row['calls'])} calls,"
        f" {units.duration(row['total_ns'])}, {units.size(row['bytes'])}"
        for row in summary.get("short_calls") or ()
    ]


def _kind_of_calls(row: Mapping[str, Any]) -> str:
    kind, part = shown(str(row["kind"])), row["part"]
    return kind if part is None else f"{kind} ({PARTS[part]})"


def glossary(words: Mapping[str, str]) -> list[tuple[str, str]]:
    """All definitions in alphabetical order, for print and for readers without a mouse.

    `words` are those for parts.
    """
    merged = {
        **TERMS,
        **CLASS_TERMS,
        **{name: _sentence(text) for name, text in words.items()},
    }
    return sorted(merged.items(), key=lambda item: item[0].lower())
