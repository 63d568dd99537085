"""The outputs: one file each, loaded when it is asked for.

`html` and `terminal` make the report; the others are what `rca-llm export --to` offers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from rca_llm.errors import RcaError

if TYPE_CHECKING:
    from rca_llm.exporters.base import Exporter

FORMATS: dict[str, str] = {
    "perfetto": "protobuf for ui.perfetto.dev and trace_processor",
    "chrome": "JSON in the words of Kineto, a file a rank",
    "parquet": "a folder of tables, of the summary and of the trace",
    "csv": "the same tables for spreadsheets",
    "events": "RCA events, JSON lines, to be read again as they are",
    "otlp": "requests and steps as OpenTelemetry spans",
    "prometheus": "gauges in the text format",
}
"""The formats of `rca-llm export`, each with what it is for; the module has the same name."""


def exporter(name: str) -> Exporter:
    """The exporter of a format; raises `RcaError` for a name that is not in `FORMATS`."""
    if name not in FORMATS:
        raise RcaError(f"{name}: no such format; there are {', '.join(FORMATS)}")
    return cast("Exporter", import_module(f"rca_llm.exporters.{name}"))
