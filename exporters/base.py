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

    is_directory: bool
    """Whether the output is a folder of files (one a table) instead of one file."""

    def write(self, report: Report, target: Path) -> None:
        """Write the report to `target`, which is an empty folder or does not exist.

        Raises OSError where the target cannot be written, RcaError where a package is missing.
        """
        ...
