"""The errors that users see: one line, and the exit status that goes with it."""

from __future__ import annotations


class RcaError(Exception):
    """A problem with one line for the user; the command line prints it and exits with `status`.

    The line says what is wrong, with which file, and what to do.
    """

    status = 2

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """A text whose every character can be seen: file names may hold line breaks and escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class UnreadableInput(RcaError):
    """An input that no reader knows, or that holds no events (exit status 3)."""

    status = 3
