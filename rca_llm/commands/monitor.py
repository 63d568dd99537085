"""`rca-llm monitor`: the figures of a run's last seconds for Prometheus, while it is recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rca_llm.commands.paths import PATH
from rca_llm.commands.trace import DURATION
from rca_llm.errors import RcaError, one_line
from rca_llm.run import is_run

if TYPE_CHECKING:
    from rca_llm.monitor import Monitor


@click.command("monitor")
@click.argument("run", type=PATH)
@click.option(
    "--window", type=DURATION, default="30s", show_default=True, help="How far back to look."
)
@click.option("--every", type=DURATION, default="10s", show_default=True, help="How often to look.")
@click.option("--serve", metavar="ADDRESS", help="Answer Prometheus at HOST:PORT.")
@click.option(
    "--slo",
    "objectives",
    multiple=True,
    metavar="NAME=TIME",
    help="Limit of a 99th percentile: ttft=800ms, latency=2s; may be repeated.",
)
@click.option(
    "--dump",
    type=PATH,
    help="A folder for the windows in which an objective is broken; made where it is missing.",
)
def command(
    run: Path,
    window: float,
    every: float,
    serve: str | None,
    objectives: tuple[str, ...],
    dump: Path | None,
) -> None:
    """Watch RUN, which `rca-llm trace` is writing, until it has ended."""
    from rca_llm.monitor import Monitor, objective

    if not is_run(run):
        raise RcaError(f"{run}: not a run directory; start one with rca-llm trace -o {run} -- CMD")
    limits = [objective(text) for text in objectives]
    if dump is not None:
        _make(dump)
    watched = Monitor(run, round(window * 1e9), limits, dump, say=_say)
    with _served(serve, watched):
        watched.watch(every)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RcaError(f"{folder}: cannot be made: {error.strerror or error}") from error


def _say(line: str) -> None:
    click.echo(f"rca-llm: {one_line(line)}", err=True)


@contextlib.contextmanager
def _served(address: str | None, watched: Monitor) -> Generator[None]:
    """Answer scrapes with what was seen last, in a thread of its own."""
    if address is None:
        yield
        return
    from rca_llm.exporters.endpoint import PATH, endpoint

    with endpoint(address, lambda: watched.text) as server:
        host, port = server.server_address[:2]
        _say(f"serving http://{host!s}:{port}{PATH}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
