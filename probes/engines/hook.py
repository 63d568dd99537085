"""Calls a function when a module has been imported, through a finder in front of all others.

An import of anything else costs one look into a dictionary. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Attach = Callable[[str, str, Any], None]


class Finder:
    """A meta path finder that finds nothing itself: it lets the others find, and adds a call."""

    def __init__(self, watched: Mapping[str, str], attach: Attach) -> None:
        self.watched = watched
        self.attach = attach

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the other finders have for a watched module; None for all else."""
        if name not in self.watched:
            return None
        spec = self._found(name, path, target)
        loader = getattr(spec, "loader", None)
        if loader is not None:
            self._follow(loader, name)
        return spec

    def _found(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _follow(self, loader: Any, name: str) -> None:
        """Let this very loader attach once it has run the module, and then be as it was."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            try:
                del loader.exec_module
            except AttributeError:
                pass
            execute(module)
            self.attach(self.watched[name], name, module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            pass  # a loader that cannot be changed: the module stays as it is


def watch(watched: Mapping[str, str], attach: Attach) -> None:
    """Call ``attach(watched[name], name, module)`` for each of these modules once it is loaded."""
    sys.meta_path.insert(0, Finder(watched, attach))
    for name, file in watched.items():
        module = sys.modules.get(name)
        if module is not None:
            attach(file, name, module)
