"""The HTML report: one self-contained file that opens offline, with plotly's bundle inside.

Names are hostile text. The template escapes what it shows, data for the scripts is JSON in which
no character can end a script element, scripts write text nodes only, and a content security policy
forbids the page to load or send anything.
"""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rca_llm import __version__
from rca_llm.exporters.text import shown
from rca_llm.exporters.verdict import listed

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ".html"

TEMPLATES = Path(__file__).parent / "templates"

SCRIPTS = ("format.js", "tips.js", "tables.js", "plots.js", "timeline.js", "main.js")
"""The page's own scripts, in the order they load."""

PLOTLY = "plotly-basic.min.js"
"""plotly.js, the bundle with bars and lines alone: a quarter of the whole, and of its start."""

_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def write(report: Report, target: Path) -> None:
    """Write the page."""
    target.write_text(render(report), encoding="utf-8", newline="\n")


def render(report: Report) -> str:
    """The whole page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    from rca_llm.exporters.page import context

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = page_data(report)
    return environment.get_template("report.html.j2").render(
        context(report.summary),
        title=_title(report.summary),
        version=__version__,
        environment=_environment(report),
        grids=data["grids"],
        data_has={name: bool(value) for name, value in data.items()},
        samples=data["samples"],
        kernels=data["kernels"],
        styles=Markup(_template("report.css")),
        plotly=Markup(_template(PLOTLY)),
        scripts=[Markup(_template(name)) for name in SCRIPTS],
        data=Markup(safe_json(data)),
    )


def page_data(report: Report) -> dict[str, Any]:
    """What the page's scripts draw from: tables, timelines and series."""
    from rca_llm.exporters import samples, series, timeline
    from rca_llm.exporters.tables import GRIDS
    from rca_llm.exporters.verdict import part_words

    summary = report.summary
    words = part_words(summary)
    grids = [grid.packed(summary, words) for grid in GRIDS if summary.get(grid.source)]
    timelines = timeline.build(report, _focus(summary))
    return {
        "grids": grids,
        "timeline": timelines,
        "latency": series.latency(summary),
        "cohorts": series.cohorts(summary),
        "steps": series.steps(summary, timelines["origin"]),
        "samples": samples.samples(report, timelines["origin"]),
        "kernels": _kernels(report),
        "words": words,
    }


def _kernels(report: Report) -> dict[str, Any]:
    """What is drawn of kernels; `judged` says whether any has an occupancy."""
    from rca_llm.exporters.roofline import roofline
    from rca_llm.exporters.series import kernels

    rows = kernels(report.summary)
    judged = any(row["occupancy"] is not None for row in rows)
    return {"rows": rows, "judged": judged, "roofline": roofline(report)}


def safe_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_UNSAFE)


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _title(summary: dict[str, Any]) -> str:
    paths = [Path(str(row["path"])).name for row in summary["inputs"]]
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{shown(paths[0], 80)}{more}" if paths else "trace"


def _focus(summary: dict[str, Any]) -> list[str]:
    """The requests worth full detail: those hints name, the slowest, the median, the fastest."""
    named = [name for hint in summary["hints"][:3] for name in listed(hint.get("requests"))[:2]]
    rows = [row for row in summary["requests"] if row["latency_ns"] is not None]
    by_latency = [row["id"] for row in sorted(rows, key=lambda row: -row["latency_ns"])]
    middle = by_latency[len(by_latency) // 2 : len(by_latency) // 2 + 1]
    chosen = [*by_latency[:1], *named, *middle, *by_latency[-1:], *by_latency[1:]]
    return list(dict.fromkeys(chosen))


def _environment(report: Report) -> list[tuple[str, str]]:
    """What the inputs say about where they were recorded. Never the process environment."""
    rows: dict[tuple[str, str], None] = {}
    add = partial(_add_fact, rows)
    for line in report.trace.timelines:
        header = line.header
        add("host", header.host)
        add("engine", header.engine)
        add("NCCL", header.nccl)
        add("job", header.job)
        add("world size", header.world_size)
        add("clock", "UTC" if header.utc else "not UTC: times are relative to this recording")
        add("CUDA graphs", _graphs(header.graph_level))
        add("command", _command(header.extra.get("command")))
        add("exit status", header.extra.get("status"))
        add("kernel", header.extra.get("kernel"))
        add("recorded with", _options(header.extra.get("options")))
        for device in line.devices:
            add("GPU", device.name)
    return list(rows)


def _command(words: object) -> str | None:
    """A command as it would be typed."""
    return shlex.join(map(str, listed(words))) if words else None


def _options(options: object) -> str | None:
    """The options of the recording that are set."""
    if not isinstance(options, dict):
        return None
    rows = cast("dict[str, object]", options).items()
    return ", ".join(f"{name} {value}" for name, value in rows if value not in (None, False))


def _graphs(graph_level: bool | None) -> str | None:
    if graph_level is None:
        return None
    return "recorded as one piece each" if graph_level else "recorded kernel by kernel"


def _add_fact(rows: dict[tuple[str, str], None], name: str, value: object) -> None:
    if value is not None and value != "":
        rows[name, shown(" ".join(map(str, listed(value))))] = None
