"""What the C extension offers; `_watch.c` has the words."""

from typing_extensions import Buffer

class Watch:
    pid: int
    tid: int
    delay: int
    ran: bool
    ended: bool
    def __init__(self, pid: int, tid: int, every: int = 0) -> None: ...

def look(watches: list[Watch], words: memoryview[int], at: int) -> int: ...
def follow(
    watches: list[Watch],
    words: memoryview[int],
    at: int,
    gate: Buffer,
    ends: Buffer,
    period: int,
    until: int,
) -> int: ...
