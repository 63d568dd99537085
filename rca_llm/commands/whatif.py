"""`rca-llm whatif`: what latency would be if a cause were removed or scaled."""

from __future__ import annotations

from pathlib import Path

import click

from rca_llm import output
from rca_llm.commands.outputs import outputs
from rca_llm.commands.variadic import Variadic
from rca_llm.exporters import prediction
from rca_llm.readers import load
from rca_llm.whatif import factors, whatif


@click.command("whatif", cls=Variadic)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option(
    "--set",
    "settings",
    multiple=True,
    required=True,
    metavar="NAME=FACTOR…",
    help="A class or part and the factor of its time, as communication=0 scheduling.launch=0.1.",
)
@outputs("The answer")
def command(
    inputs: tuple[str, ...], settings: tuple[str, ...], document: Path | None, force: bool
) -> None:
    """Replay the dependency graph of a trace with changed durations.

    A class stands for all its parts that can be set; waiting, queueing and interference follow.
    """
    changed = factors(settings)
    output.check_targets(None, document, force=force, inputs=inputs)
    found = whatif(load(*inputs).attribute(), changed)
    if document is not None:
        output.write_json(document, found, force=force)
    if document != output.STANDARD_OUTPUT:
        prediction.show(found, settings)
