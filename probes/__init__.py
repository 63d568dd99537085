"""Probes: what runs inside the traced process.

``from rca_llm import probe, span, record, request, step`` come from here. In a trace the bootstrap
has loaded this folder as ``_rca_llm_probes`` before the program began; this module then hands on
that one, because a process must not hold two recorders. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

import sys

_loaded = sys.modules.get("_rca_llm_probes")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    M = TypeVar("M")


def instrument(model: M) -> M:
    """Record every forward pass of a PyTorch module as a step; returns the module itself."""
    if not recorder.run:
        return model
    from .engines.torch_module import instrument as wrapped

    return wrapped(model)


if TYPE_CHECKING or _loaded is None or __name__ == "_rca_llm_probes":
    from . import ranges as ranges
    from . import recorder
    from .decorate import probe
    from .scope import request, step
    from .span import off_record, off_span, record, span

    if __name__ != "_rca_llm_probes":
        # Not started by the bootstrap: no trace, and no later start either.
        record, span = off_record, off_span
else:
    # The program means to use the probes: now is the time for what a span should not wait for.
    _loaded.ranges.load()
    probe, request, step = _loaded.probe, _loaded.request, _loaded.step
    record, span = _loaded.record, _loaded.span
    instrument = _loaded.instrument

__all__ = ["instrument", "probe", "record", "request", "span", "step"]


def start(run: str) -> None:
    """Begin recording into the run directory ``run``; called once, by the bootstrap."""
    if recorder.start(run):
        import atexit

        from . import engines, garbage

        garbage.watch()
        engines.watch()
        atexit.register(recorder.close)
