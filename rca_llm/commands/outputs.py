"""The options of commands that write an answer: a page, the answer as JSON, and over what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rca_llm.commands.paths import PATH

Command = TypeVar("Command", bound=Callable[..., Any])


def outputs(document: str, page: str | None = None) -> Callable[[Command], Command]:
    """`--json` into `document`, `--force` and, where there is a page, `-o` into `page`.

    Both texts say what is written.
    """
    options = [
        click.option(
            "--json",
            "document",
            type=PATH,
            help=f"{document} as JSON; - is standard output, without the table.",
        ),
        click.option("--force", is_flag=True, help="Overwrite outputs that exist."),
    ]
    if page is not None:
        options.insert(0, click.option("-o", "--output", "page", type=PATH, help=page))

    def declare(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return declare
