"""`rca-llm export`: a trace and its report in the format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rca_llm import output
from rca_llm.commands.paths import PATH
from rca_llm.errors import RcaError
from rca_llm.exporters import FORMATS, exporter

if TYPE_CHECKING:
    from rca_llm.exporters.base import Exporter
    from rca_llm.report import Report

FOLDERS = {"parquet": True, "csv": True, "chrome": None, "events": None}
"""The formats that are a folder of files, always or, None, where the trace has several inputs."""


@click.command("export", epilog="Formats: " + "; ".join(f"{n}: {w}" for n, w in FORMATS.items()))
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT…")
@click.option("--to", "format", type=click.Choice(list(FORMATS)), required=True, help="The format.")
@click.option(
    "-o",
    "--output",
    "target",
    type=PATH,
    help="The file to write, or the folder where the format has several; - is standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite an output that exists.")
@click.option(
    "--serve",
    metavar="ADDRESS",
    help="Of prometheus: answer scrapes at HOST:PORT until interrupted, instead of a file.",
)
def command(
    inputs: tuple[str, ...], format: str, target: Path | None, force: bool, serve: str | None
) -> None:
    """Read traces as `report` does, and write them for another tool."""
    from rca_llm.readers import load

    _check(format, target, serve)
    if target is not None and target != output.STANDARD_OUTPUT:
        output.check_target(target, force=force, inputs=inputs, folder=FOLDERS.get(format, False))
    chosen = exporter(format)
    report = load(*inputs).attribute()
    if serve is not None:
        _serve(report, serve)
    elif target == output.STANDARD_OUTPUT:
        _print(chosen, report, format)
    elif target is not None:
        folder = FOLDERS.get(format, False)
        output.write(target, lambda draft: chosen.write(report, draft), force=force, folder=folder)


def _check(format: str, target: Path | None, serve: str | None) -> None:
    """Refuse what cannot be meant before anything is read."""
    if (target is None) == (serve is None):
        raise RcaError("export: give either -o PATH or, of prometheus, --serve ADDRESS")
    if serve is not None:
        from rca_llm.exporters.endpoint import address_of

        address_of(serve)
        if format != "prometheus":
            raise RcaError(f"export: --serve is for prometheus; give -o PATH for {format}")


def _print(chosen: Exporter, report: Report, format: str) -> None:
    """Write the format to standard output; `RcaError` where it is a folder of files."""
    with output.draft() as path:
        chosen.write(report, path)
        if path.is_dir():
            raise RcaError(f"{format}: several files, which standard output cannot hold; -o PATH")
        with path.open("rb") as written:
            output.print_from(written)


def _serve(report: Report, address: str) -> None:
    """Answer scrapes with the figures of a report, until interrupted."""
    from rca_llm.exporters.endpoint import PATH, endpoint
    from rca_llm.exporters.prometheus import text

    page = text(report.summary)
    with endpoint(address, lambda: page) as server:
        host, port = server.server_address[:2]
        click.echo(f"rca-llm: serving http://{host!s}:{port}{PATH} until interrupted", err=True)
        server.serve_forever()
