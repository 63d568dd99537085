"""What the C extension offers; `_watch.c` has the words."""

class Watch:
    pid: int
    tid: int
    delay: int
    ran: bool
    ended: bool
    def __init__(self, pid: int, tid: int) -> None: ...

def look(watches: list[Watch], words: memoryview[int], at: int) -> int: ...
