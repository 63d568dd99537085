"""The entry point that vLLM and SGLang call in each of their processes where rca-llm is installed.

Python starts the probes by itself in a trace (``bootstrap/``); this door is for processes that it
does not: under ``python -I`` or ``-E``, or with PYTHONPATH cleaned. Standard library only.
"""

from __future__ import annotations

import os
import sys

NAME = "rca_llm"
"""The name of the entry point, for allow-lists."""

ALLOW_LISTS = {"VLLM_PLUGINS": "none", "SGLANG_PLUGINS": "all"}
"""Environment variables that name the plugins to load, and what one that is set but empty lets in:

vLLM splits it into one empty name, SGLang does not ask it.
"""


def register() -> None:
    """Start the probes in a process of a trace that has none yet; may be called again."""
    run = os.environ.get("RCA_LLM_RUN")
    if not run or sys.version_info < (3, 7) or "_rca_llm_probes" in sys.modules:
        return
    try:
        from . import start

        sys.modules["_rca_llm_probes"] = sys.modules[__package__ or ""]
        start(run)
    except Exception:  # whatever is wrong with us, the engine starts
        pass


def allow(environment: dict[str, str]) -> None:
    """Add our name to the allow-lists that are set; none of them lets in fewer than before."""
    for variable, empty in ALLOW_LISTS.items():
        names = environment.get(variable)
        if names is None or NAME in [name.strip() for name in names.split(",")]:
            continue
        if names.strip() or empty == "none":
            environment[variable] = f"{names},{NAME}" if names else NAME
