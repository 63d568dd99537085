"""The limits that rules compare with: every number with where it comes from, one file for all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

from rca_llm.errors import RcaError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCES = ("brief", "thread", "proposal")
"""Given by the product's brief, taken from a public report, or proposed and not calibrated."""

Thresholds = Mapping[str, Mapping[str, float]]
"""The limits of every rule, by id and name."""


def parse(text: str) -> dict[str, Any]:
    """A TOML document."""
    return tomllib.loads(text)


def documented() -> dict[str, dict[str, dict[str, Any]]]:
    """The limits that come with the package: value, source and meaning."""
    text = resources.files("rca_llm.hints").joinpath("thresholds.toml").read_text(encoding="utf-8")
    return parse(text)


def load(override: Path | None = None) -> Thresholds:
    """The limits of the package, some replaced by a file of `[RULE]` tables with `name = value`.

    Raises `RcaError` where that file cannot be read or names a limit that no rule has.
    """
    own = documented()
    found = {id: {name: row["value"] for name, row in rows.items()} for id, rows in own.items()}
    for id, values in (_read(override) if override else {}).items():
        for name, value in values.items():
            if name not in found.get(id, {}):
                raise RcaError(f"{override}: no threshold {id}.{name}")
            found[id][name] = _number(value, f"{override}: {id}.{name}")
    return found


def overriding(path: Path | None) -> Thresholds | None:
    """The limits with those of a file, None where no file is given."""
    return None if path is None else load(path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RcaError(f"{path}: cannot read thresholds: {error}") from None
    wrong = next((id for id, values in tables.items() if not isinstance(values, dict)), None)
    if wrong is not None:
        raise RcaError(f"{path}: {wrong} must be a table such as [R01]")
    return tables


def _number(value: Any, where: str) -> float:
    if isinstance(value, dict):
        value = cast("Mapping[str, Any]", value).get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RcaError(f"{where} must be a number")
    return value
