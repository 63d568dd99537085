"""Plotly figures of a report for notebooks: `Report.figures()`; needs the extra `plots`.

The page draws with plotly.js itself. These are the same plots as objects of the Python package,
to be changed, combined and shown where a notebook is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rca_llm.attribute.parts import CLASSES
from rca_llm.errors import RcaError
from rca_llm.exporters import series
from rca_llm.exporters.notebook import COLOURS
from rca_llm.exporters.verdict import judged

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from rca_llm.exporters.verdict import Summary


def figures(summary: Summary) -> dict[str, go.Figure]:
    """`shares`, and where the trace has them `latency` and `kernels`; times in ms.

    Raises `RcaError` where plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise RcaError("figures: plotly is not installed; pip install rca-llm[plots]") from None
    found = {"shares": go.Figure(_shares(summary), layout={"barmode": "stack", "height": 180})}
    if (latency := series.latency(summary)) is not None:
        found["latency"] = go.Figure(_latency(latency), layout={"barmode": "stack"})
    if summary["kernels"]:
        axes = {"xaxis": {"title": "occupancy"}, "yaxis": {"title": "mean, ms", "type": "log"}}
        found["kernels"] = go.Figure(_kernels(summary), layout=axes)
    return found


def _bar(name: str, colour: str, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "name": name, "marker": {"color": colour}, **more}


def _shares(summary: Summary) -> list[dict[str, Any]]:
    whole = judged(summary)
    return [
        _bar(name, colour, orientation="h", y=[whole.of], x=[whole.shares.get(name, 0) / 1e6])
        for name, colour in zip(CLASSES, COLOURS, strict=True)
    ]


def _latency(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        _bar(name, colour, x=found["ids"], y=[(ns or 0) / 1e6 for ns in found["shares"][name]])
        for name, colour in zip(CLASSES, COLOURS, strict=True)
    ]


def _kernels(summary: Summary) -> list[dict[str, Any]]:
    rows = [row for row in series.kernels(summary) if row["occupancy"] is not None]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [row["occupancy"] for row in rows],
            "y": [row["mean"] / 1e6 for row in rows],
            "text": [row["name"] for row in rows],
        }
    ]
