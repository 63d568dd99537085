"""CPU quotas of the cgroups that processes belong to, and how long they kept them from running.

Both versions of cgroups, and every group above, since a quota may be set on any. Runs in the
launcher. Standard library only.
"""

from __future__ import annotations

import os
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "/sys/fs/cgroup"
AGAIN_S = 10.0
"""How long what was found of some groups is believed: quotas are rarely set while a program runs,
and looking for them at every census took 200 system calls a second."""
_MOUNTS_V1 = ("cpu,cpuacct", "cpuacct,cpu", "cpu")


class Quotas:
    """The groups with a quota of the processes that were shown to it."""

    def __init__(self) -> None:
        self.total_ns = 0
        """How long the groups were throttled since they were first seen, in all."""
        self.count = 0
        """How often. Some kernels (6.18) count this and leave the time at 0."""
        self._last: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._next: dict[bytes, float] = {}

    def watch(self, pid: int) -> None:
        """Look at the groups of a process, unless another one's were the same lately."""
        groups, now = _groups(pid), monotonic()
        if now < self._next.get(groups, 0.0):
            return
        self._next[groups] = now + AGAIN_S
        for found in throttle_files(groups):
            if found not in self._last:
                self._last[found] = _throttled(found)

    def grown(self) -> bool:
        """Read every group again; whether one was throttled since."""
        before = self.count, self.total_ns
        for found, (count, ns) in self._last.items():
            now = _throttled(found)
            self.count += max(now[0] - count, 0)
            self.total_ns += max(now[1] - ns, 0)
            self._last[found] = max(now[0], count), max(now[1], ns)
        return (self.count, self.total_ns) > before

    def __bool__(self) -> bool:
        return bool(self._last)


def _throttled(found: tuple[str, str, int]) -> tuple[int, int]:
    """How often and how long a group was throttled; 0 where it does not say (any more)."""
    path, key, factor = found
    try:
        with open(path, "rb") as file:
            words = file.read().split()
        rows = dict(zip(words[::2], words[1::2]))  # noqa: B905  # not before Python 3.10
        return int(rows[b"nr_throttled"]), int(rows[key.encode()]) * factor
    except (OSError, ValueError, KeyError):
        return 0, 0


def _groups(pid: int) -> bytes:
    """The groups of a process as the kernel lists them; nothing where it has ended."""
    try:
        with open("/proc/%d/cgroup" % pid, "rb", buffering=0) as file:
            return file.read(1 << 16) or b""
    except OSError:
        return b""


def throttle_files(groups: bytes) -> Iterator[tuple[str, str, int]]:
    """The cpu.stat files of those listed groups that have a quota: path, key, ns a unit."""
    text = groups.decode("utf-8", "replace")
    lines = [line.strip().split(":", 2) for line in text.splitlines()]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if "cpu" in controllers.split(","):
            for mount in _MOUNTS_V1:
                yield from _with_quota(os.path.join(ROOT, mount), path, "throttled_time", 1)
        elif not controllers:
            for mount in (ROOT, os.path.join(ROOT, "unified")):
                yield from _with_quota(mount, path, "throttled_usec", 1000)


def _with_quota(mount: str, path: str, key: str, factor: int) -> Iterator[tuple[str, str, int]]:
    """The group and those above it that have a quota.

    In a container the path may name a group outside of what is mounted: then only the root is left.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    seen: set[str] = set()
    for count in range(len(parts), -1, -1):
        folder = os.path.join(mount, *parts[:count])
        real = os.path.realpath(folder)
        if real not in seen and _has_quota(folder):
            seen.add(real)
            yield os.path.join(real, "cpu.stat"), key, factor


def _has_quota(folder: str) -> bool:
    for name in ("cpu.cfs_quota_us", "cpu.max"):
        try:
            with open(os.path.join(folder, name), "r", encoding="ascii") as file:
                first = file.read().split()[0]
        except (OSError, IndexError):
            continue
        if first.isdigit():
            return True
    return False
