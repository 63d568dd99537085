"""C++ symbol names as people write them, through the C++ library of the machine."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")


@cache
def _functions() -> tuple[Any, Any] | None:
    """`__cxa_demangle` and `free`, None where the machine has no C++ library."""
    for name in _LIBRARIES:
        try:
            function = ctypes.CDLL(name).__cxa_demangle
            free = ctypes.CDLL(None).free
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        free.argtypes = (ctypes.c_void_p,)
        return function, free
    return None


@cache
def demangled(name: str) -> str:
    """The C++ form of a mangled name; any other name, and one that cannot be read, as it is."""
    functions = _functions() if name.startswith("_Z") else None
    if functions is None:
        return name
    demangle, free = functions
    status = ctypes.c_int()
    found = demangle(name.encode("utf-8", "surrogateescape"), None, None, ctypes.byref(status))
    if not found:
        return name
    try:
        return ctypes.string_at(found).decode("utf-8", "replace")
    finally:
        free(found)
