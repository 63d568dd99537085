"""`rca-llm trace`: runs a command and its whole process tree under the probes."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rca_llm.commands.paths import PATH
from rca_llm.errors import RcaError
from rca_llm.launch import Options, trace

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0}


class _Amount(click.ParamType[float]):
    """A number with a unit: `name` says of what, `units` gives each unit's factor."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        self.name = name
        self.units = units

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*?)b?", str(value).strip().lower())
        if match is None or match[2] not in self.units:
            self.fail(f"{value!r} is not a {self.name}", param, ctx)
        return float(match[1]) * self.units[match[2]]


DURATION = _Amount("duration", _SECONDS)
"""A time such as 90s or 5m, in seconds."""


@click.command("trace", context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="The run directory [default: rca-CMD-TIME.rca].",
)
@click.option("--report", type=PATH, help="Also write the HTML report.")
@click.option("--force", is_flag=True, help="Replace an earlier run directory or report.")
@click.option(
    "--start",
    type=click.Choice(["now", "paused"]),
    default="now",
    show_default=True,
    help="Whether recording is on at first; `rca-llm ctl` switches it.",
)
@click.option(
    "--duration",
    type=DURATION,
    help="Stop recording after this long (90s, 5m); the command runs on.",
)
@click.option(
    "--max-size",
    type=_Amount("size", dict(_UNITS)),
    help="Stop recording once the run directory has this size (500M, 2G), looked at each 0.2 s:"
    " what is written in between comes on top.",
)
@click.option("--nvtx", type=click.Choice(["on", "off"]), default="on", show_default=True)
@click.option(
    "--gpu", type=click.Choice(["kernels", "full", "off"]), default="kernels", show_default=True
)
@click.option(
    "--cuda-graph", type=click.Choice(["node", "graph"]), default="node", show_default=True
)
@click.option(
    "--io",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Time system calls on files and sockets, and waits for the GIL (LD_PRELOAD).",
)
@click.option(
    "--counters", is_flag=True, help="Also sample the GPUs' hardware counters (rca-llm[counters])."
)
@click.option("--stacks", is_flag=True, help="Sample Python stacks with py-spy (rca-llm[stacks]).")
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def command(
    last: bool | None,
    output: Path | None,
    report: Path | None,
    force: bool,
    start: str,
    duration: float | None,
    max_size: float | None,
    nvtx: str,
    gpu: str,
    cuda_graph: str,
    io: str,
    stacks: bool,
    counters: bool,
    cmd: tuple[str, ...],
) -> int:
    """Run CMD and its whole process tree under the probes.

    CMD's input, output, signals and exit status pass through untouched: `rca-llm trace -- CMD…`.
    """
    if output is not None and output.exists() and not output.is_dir():
        raise RcaError(f"{output}: exists and is no directory; name another for the run with -o")
    max_bytes = None if max_size is None else int(max_size)
    options = Options(
        output,
        report,
        force,
        start == "paused",
        duration,
        max_bytes,
        nvtx,
        gpu,
        cuda_graph,
        io,
        counters,
        stacks,
    )
    return trace(cmd, options, last=bool(last))
