"""Prints the signatures that versions of an engine give the functions our probes wrap.

    python -m tests.engines.signatures PACKAGE VERSION=FOLDER… >tests/data/signatures/PACKAGE.tsv

FOLDER holds the package as unpacked from its wheel; nothing of it is imported. A row: version,
module, dotted name, and the parameters (`*` in front of those by keyword only, `?` behind those
with a default), empty where this version has no such function.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from rca_llm.probes.engines import WATCHED


def targets(package: str) -> list[tuple[str, str]]:
    """Every (module, dotted name) of a package that is wrapped."""
    found: list[tuple[str, str]] = []
    for module, file in WATCHED.items():
        if module.partition(".")[0] == package:
            names = import_module(f"rca_llm.probes.engines.{file}").TARGETS.get(module, {})
            found += [(module, name) for name in names]
    return sorted(found)


def parameters(source: str, name: str) -> str | None:
    """The parameters of a function or method in some source, None where it is not defined."""
    scope: ast.AST = ast.parse(source)
    for part in name.split("."):
        inner = [node for node in _body(scope) if node.name == part]
        if not inner:
            return None
        scope = inner[-1]
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    return " ".join(_parameters(scope.args))


def _body(scope: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for place, argument in enumerate(positional):
        yield argument.arg + "?" * (place >= required)
    if arguments.vararg:
        yield "*args"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield f"*{argument.arg}" + "?" * (default is not None)
    if arguments.kwarg:
        yield "**kwargs"


def main(package: str, versions: list[str]) -> None:
    """Print the table."""
    for told in versions:
        version, _, folder = told.partition("=")
        for module, name in targets(package):
            path = Path(folder, *module.split(".")).with_suffix(".py")
            found = parameters(path.read_text(), name) if path.exists() else None
            print(version, module, name, found or "", sep="\t")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
