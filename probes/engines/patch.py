"""Replaces functions of a library by wrappers, and records what attached and what did not.

Every target is looked up by its dotted name; versions that lack one go without it. Nothing here
raises or prints. Standard library only, Python >= 3.7.
"""

from __future__ import annotations

from ..recorder import current
from ..span import span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Make = Callable[[Any], Any]

MARK = "__rca_llm__"
ENGINES = ("lmdeploy", "sglang", "tensorrt_llm", "vllm")


def attach(file: str, name: str, module: Any) -> None:
    """Let a file of this folder wrap what it knows of a module; called when it was imported."""
    try:
        from importlib import import_module

        wrappers: Any = import_module("." + file, __package__)
        for target, make in wrappers.TARGETS.get(name, {}).items():
            note(name + "." + target, wrap(module, target, make))
        version = wrappers.version(module)
        if version and not _beneath_an_engine(name):
            current().info("engine", version)
    except Exception as error:  # whatever is wrong with us, the program's import succeeds
        _failed(name, error)


def _beneath_an_engine(name: str) -> bool:
    """Whether a library is loaded by an engine: the server and the models of vLLM, say."""
    import sys

    package = name.partition(".")[0]
    return package not in ENGINES and any(engine in sys.modules for engine in ENGINES)


def _failed(name: str, error: Exception) -> None:
    try:
        current().info("probe.failed", "%s: %s" % (name, type(error).__name__))
    except Exception:
        pass


def note(target: str, attached: bool) -> None:
    """Record whether a wrapper found its target."""
    current().info("probe.attached" if attached else "probe.missing", target)


def wrap(module: Any, target: str, make: Make) -> bool:
    """Replace ``module.target`` (dotted) by what ``make`` makes of it; whether it exists."""
    *path, name = target.split(".")
    owner = module
    for part in path:
        owner = getattr(owner, part, None)
    # A class without one of its own inherits a function that is wrapped where it is defined.
    found = getattr(owner, "__dict__", {}).get(name)
    if found is None:
        return False
    if not hasattr(found, MARK):
        setattr(owner, name, _rewrapped(found, make))
    return True


def _rewrapped(found: Any, make: Make) -> Any:
    for kind in (staticmethod, classmethod):
        if type(found) is kind:
            made: type[Any] = kind
            return made(_like(make(found.__func__), found.__func__))
    return _like(make(found), found)


def _like(wrapper: Any, original: Any) -> Any:
    from functools import update_wrapper

    update_wrapper(wrapper, original)
    setattr(wrapper, MARK, True)
    return wrapper


def spanned(name: str, kind: str = "host") -> Make:
    """Makes wrappers that record a span around every call."""

    def make(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with span(name, kind):
                return function(*args, **kwargs)

        return call

    return make


def package_version(package: str) -> str:
    """``package version`` of an imported package; empty where it does not say."""
    import sys

    found = getattr(sys.modules.get(package), "__version__", None)
    return "%s %s" % (package, found) if found else ""
