"""Tables that come with the package as text: tab-separated, the head first, `#` before comments."""

from __future__ import annotations

from importlib import resources


def rows(package: str, name: str) -> list[list[str]]:
    """The rows of a table beneath its head, cell by cell."""
    return _lines(package, name)[1:]


def records(package: str, name: str) -> list[dict[str, str]]:
    """The rows of a table by the names in its head; `ValueError` where one is shorter or longer."""
    head, *lines = _lines(package, name)
    return [dict(zip(head, line, strict=True)) for line in lines]


def _lines(package: str, name: str) -> list[list[str]]:
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
