"""The type of paths on the command line: anything but nothing, which would mean this folder."""

from __future__ import annotations

import os
from pathlib import Path

import click


class _Path(click.Path):
    """A path that is not empty, as a variable of the shell that was never set makes it."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
"""A path as `pathlib.Path`."""
