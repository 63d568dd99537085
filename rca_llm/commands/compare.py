"""`rca-llm compare`: what changed between two traces and why."""

from __future__ import annotations

from pathlib import Path

import click

from rca_llm import output
from rca_llm.commands.outputs import outputs
from rca_llm.commands.variadic import Variadic
from rca_llm.compare import compare
from rca_llm.exporters import comparison
from rca_llm.readers import load


@click.command("compare", cls=Variadic)
@click.argument("base", nargs=-1, required=True, metavar="BASE…")
@click.option(
    "--with",
    "other",
    multiple=True,
    required=True,
    metavar="OTHER…",
    help="The traces of the other side, up to the next option.",
)
@outputs("The comparison", page="An HTML page.")
def command(
    base: tuple[str, ...],
    other: tuple[str, ...],
    page: Path | None,
    document: Path | None,
    force: bool,
) -> None:
    """Compare two traces: what a request, or step, takes on both sides, and what explains it.

    Several paths of one side are the ranks of one job. A change counts only beyond the noise of
    both sides.
    """
    output.check_targets(page, document, force=force, inputs=(*base, *other))
    found = compare(load(*base).attribute(), load(*other).attribute())
    if document is not None:
        output.write_json(document, found, force=force)
    if page is not None:
        output.write_bytes(page, comparison.page(found).encode(), force=force)
    if document != output.STANDARD_OUTPUT:
        comparison.show(found)
