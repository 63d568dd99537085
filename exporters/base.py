"""What every exporter offers: two members, so that an output is one file and one line to register.

The caller names the target, refuses to overwrite, and removes what a failed export left behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rca_llm.report import Report


class Exporter(Protocol):
    """Turns a report into one output format."""

    suffix: str
    """How the name of such an output usually ends; empty for a folder of files."""

    def write(self, report: Report, target: Path) -> None:
        """Write the report to `target`, a path at which nothing exists.

        Raises OSError where the target cannot be written, RcaError where a package is missing.
        """
        ...
