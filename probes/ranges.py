"""NVTX ranges for our spans, where a tool listens that is not ours.

Emitted through the ``nvtx`` package if it is importable, in the domain ``rca-llm``. Without a tool
(NVTX_INJECTION64_PATH unset) NVTX does nothing by definition, and when the tool is our own library
it skips this domain; then the package, which imports NumPy, is not even loaded.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

DOMAIN = "rca-llm"
MAX_NAMES = 4096  # registered strings live as long as the process; later names share one

enabled = False
_loaded = False
_domain: Any = None
attributes: dict[str, object] = {}


def _nothing(*arguments: object) -> None:
    pass


push: Callable[[object], object] = _nothing
pop: Callable[[], object] = _nothing
start: Callable[[object], object] = _nothing
end: Callable[[object], object] = _nothing


def wanted() -> bool:
    """Whether a tool other than ours listens to NVTX in this process."""
    tool = os.environ.get("NVTX_INJECTION64_PATH", "")
    ours = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "")
    return bool(tool) and os.environ.get("RCA_LLM_NVTX") != "off" and not _under(tool, ours)


def _under(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def load() -> None:
    """Import ``nvtx`` and switch ranges on, once, if a tool listens."""
    global _loaded, _domain, enabled, push, pop, start, end
    if _loaded:
        return
    _loaded = True
    if not wanted():
        return
    try:
        import nvtx

        tool: Any = nvtx
        _domain = tool.get_domain(DOMAIN)
        if not hasattr(_domain, "handle"):
            return  # a dummy domain: no tool was attached after all
        push, pop = _domain.push_range, _domain.pop_range
        start, end = _domain.start_range, _domain.end_range
        enabled = True
    except Exception:  # a broken package in the program's environment must not break the program
        enabled = False


def attributes_of(name: str) -> object:
    """The NVTX event attributes of a range called ``name``, made when it is first seen."""
    found = attributes.get(name)
    if found is None:
        key = name if len(attributes) < MAX_NAMES else "(other)"
        found = attributes[key] = _domain.get_event_attributes(str(key))
    return found


def mark(name: str) -> None:
    """An NVTX mark."""
    _domain.mark(attributes_of(name))
