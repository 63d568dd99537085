"""RCA-LLM: where every request's latency went in an LLM inference service, and why.

In a program that is to be traced: `probe`, `span`, `record`, `request` and `step`. To analyse:
`load(...)` gives a `Trace`, `Trace.attribute()` a `Report`. Importing this package loads nothing
else; every name is fetched when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rca_llm.probes import probe, record, request, span, step
    from rca_llm.readers import load
    from rca_llm.report import Report
    from rca_llm.trace import Trace

__version__ = "0.1.0"

__all__ = ["Report", "Trace", "load", "probe", "record", "request", "span", "step"]

_HOMES = {
    "probe": "rca_llm.probes",
    "span": "rca_llm.probes",
    "record": "rca_llm.probes",
    "request": "rca_llm.probes",
    "step": "rca_llm.probes",
    "load": "rca_llm.readers",
    "Report": "rca_llm.report",
    "Trace": "rca_llm.trace",
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from the module it lives in, and keep it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
