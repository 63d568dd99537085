"""What the C extension offers; `_timed.c` has the words."""

from collections.abc import Callable
from typing import Any

class Timed:
    def __init__(
        self,
        function: Callable[..., Any],
        report: Callable[[int, int, Any], None],
        shortest_ns: int,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
