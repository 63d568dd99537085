"""`rca-llm check`: what can be traced here, and what is known to make serving slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rca_llm import check, output
from rca_llm.commands.outputs import outputs

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red", "unknown": "dim"}


@click.command("check")
@click.option("--engine", type=click.Choice(check.ENGINES), help="Also check one engine.")
@outputs("The checks")
def command(engine: str | None, document: Path | None, force: bool) -> None:
    """Check this machine and environment for tracing and for known serving misconfigurations.

    Nothing is changed; values of environment variables are compared, never shown.
    """
    output.check_targets(None, document, force=force)
    found = check.run(engine)
    if document is not None:
        output.write_json(document, found, force=force)
    if document != output.STANDARD_OUTPUT:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "check", "status", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for row in found["checks"]:
        status = Text(row["status"], style=_STYLES[row["status"]])
        table.add_row(row["area"], row["name"], status, *map(Text, (row["found"], row["advice"])))
    Console().print(table)
