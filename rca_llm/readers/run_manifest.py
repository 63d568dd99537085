"""The manifest of a run as its reader sees it: what it tells, and what is unknown without it."""

from __future__ import annotations

import json
from typing import Any, cast

from rca_llm import run
from rca_llm.errors import RcaError
from rca_llm.readers.files import source
from rca_llm.trace import Timeline

_UNTOLD = "command, options, exit status and kernel of the run are not known"


def content(path: str) -> dict[str, Any]:
    """What the manifest of a run directory holds; empty where it is missing or damaged."""
    try:
        with source(f"{path.rstrip('/')}/{run.MANIFEST}").open() as stream:
            found = json.loads(stream.readall())
    except (RcaError, OSError, ValueError, RecursionError):
        return {}  # it only describes the run: the records count
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def judge(timeline: Timeline, manifest: dict[str, Any]) -> None:
    """Note what is unknown for a manifest that tells nothing, or that nobody brought to its end."""
    if not isinstance(manifest.get("state"), str):
        detail = f"missing, or cannot be read: {_UNTOLD}"
        timeline.note("truncated", 1, run.MANIFEST, detail)
    elif manifest["state"] == run.RUNNING and not run.launcher_lives(manifest):
        timeline.note("not_finished", 1, run.MANIFEST, _unfinished(manifest))


def _unfinished(manifest: dict[str, Any]) -> str:
    if run.launcher_lives(manifest) is None:
        return (
            "the manifest says that the run is still being recorded; whether it is cannot be told"
            " on another machine than its own, and how it ended is not known"
        )
    return (
        "the launcher was gone before the run had ended, as after SIGKILL: how the command ended is"
        " not known, nor what the launcher looks at (thread states, memory, devices) from then on"
    )
