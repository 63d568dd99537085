"""`rca-llm report`: from traces to an HTML report, the summary as JSON, and a table."""

from __future__ import annotations

from pathlib import Path

import click

from rca_llm import output
from rca_llm.commands.outputs import outputs
from rca_llm.commands.paths import PATH
from rca_llm.distributed.job import analyse
from rca_llm.exporters import terminal
from rca_llm.exporters.html import write as write_page
from rca_llm.hints.thresholds import overriding as load_thresholds


@click.command("report")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@outputs("The summary", page="The HTML report.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Analyse rank by rank on N processes; the default for more than eight inputs.",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Analyse rank by rank on the Dask cluster there."
)
@click.option(
    "--thresholds",
    type=PATH,
    help="Limits of the rules to use instead: a TOML file of [RULE] tables with name = value.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no table.")
def command(
    inputs: tuple[str, ...],
    page: Path | None,
    document: Path | None,
    force: bool,
    jobs: int | None,
    scheduler: str | None,
    thresholds: Path | None,
    quiet: bool,
) -> None:
    """Read traces (one job; several inputs are its ranks), attribute their time and explain it.

    An INPUT is a run directory, a Nsight Systems export, a PyTorch trace or a file of RCA events;
    a directory or several paths, or URLs that fsspec knows, are the ranks of one job.
    """
    output.check_targets(page, document, force=force, inputs=inputs)
    report = analyse(inputs, jobs, scheduler, load_thresholds(thresholds))
    if document is not None:
        output.write_json(document, report.summary, force=force)
    if page is not None:
        output.write(page, lambda draft: write_page(report, draft), force=force)
    if not (quiet or document == output.STANDARD_OUTPUT):
        terminal.show(report)
