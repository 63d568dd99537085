"""`rca-llm export`: a trace and its report in the format of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from rca_llm import output
from rca_llm.exporters import FORMATS, exporter


@click.command("export", epilog="Formats: " + "; ".join(f"{n}: {w}" for n, w in FORMATS.items()))
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option("--to", "format", type=click.Choice(list(FORMATS)), required=True, help="The format.")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write, or the folder where the format has several.",
)
@click.option("--force", is_flag=True, help="Overwrite an output that exists.")
def command(inputs: tuple[str, ...], format: str, target: Path, force: bool) -> None:
    """Read traces as `report` does, and write them for another tool."""
    from rca_llm.readers import load

    output.check_target(target, force=force, inputs=inputs)
    chosen = exporter(format)
    report = load(*inputs).attribute()
    output.write(target, lambda draft: chosen.write(report, draft), force=force)
