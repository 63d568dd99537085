"""`rca-llm inject`: runs a workload with one known bottleneck of known size."""

from __future__ import annotations

from pathlib import Path

import click

from rca_llm.commands.paths import PATH
from rca_llm.inject.catalogue import CAUSES
from rca_llm.inject.traced import inject


class _Causes(click.Command):
    """A command whose help lists the causes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Causes"):
            formatter.write_dl(
                [
                    (
                        cause.name,
                        f"{cause.title} ({', '.join(_sizes(cause.magnitudes))} {cause.unit})",
                    )
                    for cause in CAUSES.values()
                ]
            )


def _sizes(values: tuple[float, ...]) -> list[str]:
    return [f"{value:g}" for value in dict.fromkeys(values)]


@click.command("inject", cls=_Causes)
@click.argument("cause", type=click.Choice(list(CAUSES)), metavar="CAUSE")
@click.option("--magnitude", type=float, help="How much of it, in the unit that the list shows.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the workload's load.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="The run directory [default: CAUSE.rca].",
)
@click.option("--without", is_flag=True, help="The same load without the cause, to compare with.")
@click.option("--force", is_flag=True, help="Replace an earlier run directory.")
@click.pass_obj
def command(
    last: bool | None,
    cause: str,
    magnitude: float | None,
    seed: int,
    output: Path | None,
    without: bool,
    force: bool,
) -> int:
    """Run a workload with one known bottleneck under a trace, and write what it cost.

    The run directory holds the trace and truth.json: the cause, the rules that should name it, the
    part its time belongs to, and the injected ns of every request, as the workload measured them.
    """
    target = output or Path(f"{cause}.rca")
    return inject(cause, magnitude, seed, target, force=force, without=without, last=bool(last))
