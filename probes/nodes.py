"""NUMA nodes: which CPUs are on which, how far they are from each other, and where a GPU is.

Read from sysfs by the launcher. What the kernel does not say is unknown, never node 0. Standard
library only.
"""

from __future__ import annotations

import os

from .watch import content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .recorder import Recorder

SYSFS = "/sys"
# INFO keys of the launcher: number is a node (or NVML's index of a GPU), text what it has.
CPUS, DISTANCES = "node.cpus", "node.distances"
GPU_UUID, GPU_NODE = "device.uuid", "device.node"
# As many nodes, and CPUs, as a kernel can be built for, and more.
MOST, MOST_CPUS = 1024, 1 << 16


def nodes_with_cpus(sysfs: str = SYSFS) -> dict[int, str]:
    """The list of CPUs of each node that has some, as the kernel writes it; empty where unknown."""
    found = {node: _text(sysfs, node, "cpulist") for node in _online(sysfs)}
    return {node: cpus for node, cpus in found.items() if cpus}


def distances(node: int, sysfs: str = SYSFS) -> dict[int, int]:
    """How far the memory of each node is from one: 10 is its own; empty where unknown."""
    words = _text(sysfs, node, "distance").split()
    online = _online(sysfs)
    if len(words) != len(online) or not all(map(is_number, words)):
        return {}
    return dict(zip(online, map(int, words), strict=True))


def tell(recorder: Recorder, sysfs: str = SYSFS) -> list[int]:
    """Write the nodes of this machine, and say which have CPUs."""
    found = nodes_with_cpus(sysfs)
    for node, cpus in found.items():
        recorder.info(CPUS, cpus, node)
        told = distances(node, sysfs)
        text = " ".join(f"{other}:{far}" for other, far in told.items() if other in found)
        if text:
            recorder.info(DISTANCES, text, node)
    return [*found]


def node_of_pci(address: str, sysfs: str = SYSFS) -> int | None:
    """The node of a PCI device by its address; None where the kernel does not know (-1)."""
    domain, _, rest = address.lower().partition(":")
    try:
        name = f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return None
    if "/" in name:
        return None
    text = _line(os.path.join(sysfs, "bus", "pci", "devices", name, "numa_node"))
    return int(text) if is_number(text) else None


def numbers(text: str) -> list[int]:
    """The numbers of a list as the kernel writes it, as `0-3,8`; empty where it is none."""
    found: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        if not (is_number(first) and is_number(last or first)):
            return []
        begin, end = int(first), int(last or first) + 1
        if end - begin + len(found) > MOST_CPUS:
            return []
        found += range(begin, end)
    return found


def is_number(text: str) -> bool:
    """Whether a text is a number that a machine may have of anything here."""
    return text.isascii() and text.isdigit() and len(text) < 7


def _online(sysfs: str) -> list[int]:
    text = _line(os.path.join(sysfs, "devices", "system", "node", "online"))
    return numbers(text)[:MOST]


def _text(sysfs: str, node: int, name: str) -> str:
    return _line(os.path.join(sysfs, "devices", "system", "node", f"node{node}", name))


def _line(path: str) -> str:
    return content(path).decode("ascii", "replace").strip()
