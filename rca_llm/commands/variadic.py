"""Options that take every value up to the next option, as `--with A B`."""

from __future__ import annotations

from collections.abc import Sequence

import click


def spread(args: Sequence[str], option: str, single: Sequence[str]) -> list[str]:
    """The same arguments with `--option A B` written as `--option A --option B`.

    `single` are the options that take one value.
    """
    found: list[str] = []
    collecting, previous = False, ""
    for argument in args:
        if argument.startswith("-") and len(argument) > 1:
            collecting = argument == option
            found += [] if collecting else [argument]
        elif previous not in single and collecting:
            found += [option, argument]
        else:
            found.append(argument)
        previous = argument
    return found


class Variadic(click.Command):
    """A command one of whose options takes several values; it is the one that may be repeated."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments with the values of that option spread out."""
        options = [one for one in self.params if isinstance(one, click.Option)]
        many = next(name for one in options if one.multiple for name in one.opts)
        single = [n for one in options if not one.multiple and not one.is_flag for n in one.opts]
        return super().parse_args(ctx, spread(args, many, single))
