"""The command line: `rca-llm COMMAND …`; one module a command, loaded when it is called."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from rca_llm import __version__
from rca_llm.errors import RcaError, one_line

COMMANDS = {
    "trace": "run a command and its whole process tree under the probes",
    "ctl": "switch the recording of a running trace on and off, mark an instant in it",
    "report": "read traces, attribute their time, write an HTML report and the summary as JSON",
    "export": "write traces and their report for another tool",
    "compare": "say what changed between two traces, and why",
    "whatif": "say what latency would be if a cause were removed or scaled",
    "check": "check this machine for tracing and for known serving misconfigurations",
    "monitor": "watch a running trace: figures of its last seconds for Prometheus, and objectives",
    "inject": "run a workload with one known bottleneck of known size",
}
"""The commands by name, each with its line in the help; their modules are `rca_llm.commands.*`."""


_UNWRITABLE = tuple(
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EBADF", "EPIPE", "EROFS")
)
"""Errors of writing, which alone tell of standard output where no file is named."""


class _Commands(click.Group):
    """Commands that are imported only when they are called, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rca_llm.commands.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rca-llm")
def cli() -> None:
    """Where every request's latency went in an LLM inference service, and why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is that of the contract."""
    try:
        try:
            status = _run(argv)
        finally:
            _flush()  # here, where it can be told: Python itself does so too late
    except RcaError as error:
        click.echo(f"rca-llm: {error}", err=True)
        return error.status
    except (click.Abort, KeyboardInterrupt):
        click.echo("rca-llm: interrupted", err=True)
        return 130
    except OSError as error:
        return _failed(error)
    return status


def _run(argv: Sequence[str] | None) -> int:
    streams = sys.stdout, sys.stderr
    try:
        # A command whose end is that of the process may leave it as it likes.
        status = cli.main(argv, prog_name="rca-llm", standalone_mode=False, obj=argv is None)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"rca-llm: {_told(error)}", err=True)
        return error.exit_code
    except SystemExit as stop:
        if sys.stdout is streams[0] and not isinstance(stop.__context__, BrokenPipeError):
            raise
        # What click and rich make of a broken pipe; click puts other streams in place.
        sys.stdout, sys.stderr = streams
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    return status if isinstance(status, int) else 0


def _flush() -> None:
    if sys.stdout and not sys.stdout.closed:
        sys.stdout.flush()


def _failed(error: OSError) -> int:
    """The status where a file or standard output cannot be used; what else fails is our fault."""
    if error.filename is None and error.errno not in _UNWRITABLE:
        raise error
    _drop_output()
    if isinstance(error, BrokenPipeError):
        return 141
    what = "the output" if error.filename is None else str(error.filename)
    doing = "cannot be written" if error.errno in _UNWRITABLE else "cannot be used"
    line = f"{what}: {doing}: {error.strerror or error}"
    click.echo(f"rca-llm: {one_line(line)}", err=True)
    return 2


def _drop_output() -> None:
    """Let what could not be written go to nowhere, or Python would try once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _told(error: click.ClickException) -> str:
    """What is wrong with a command line, in one line; its words may hold anything."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    help = f" (see {context.command_path} --help)" if context else ""
    return one_line(error.format_message()) + help
