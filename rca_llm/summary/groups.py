"""The `groups` rows: ranks that communicate with each other, and who holds whom up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rca_llm.attribute.collectives import Collective


def group_rows(
    collectives: Sequence[Collective], ranks: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each group."""
    return []
