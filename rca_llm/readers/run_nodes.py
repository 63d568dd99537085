"""The NUMA nodes of the machine of a run: which CPUs they have, and which GPU is on which.

The launcher tells GPUs by their UUID, as CUDA numbers them otherwise than the driver does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rca_llm.probes import format as layout
from rca_llm.probes.nodes import CPUS, DISTANCES, GPU_NODE, GPU_UUID, is_number
from rca_llm.readers.segments import Segment
from rca_llm.trace import NODES, Timeline


def add(timeline: Timeline, segments: Sequence[Segment]) -> None:
    """Put what the launcher tells of nodes into the header, and onto the devices."""
    own = [one for one in segments if one.header["writer"] == layout.WRITER_LAUNCHER]
    nodes: dict[str, dict[str, Any]] = {}
    for node, cpus in _told(own, CPUS):
        nodes[str(node)] = {"cpus": cpus, "distances": {}}
    for node, text in _told(own, DISTANCES):
        if str(node) in nodes:
            nodes[str(node)]["distances"] = _distances(text)
    if nodes:
        timeline.header.extra[NODES] = nodes
    where = {index: int(text) for index, text in _told(own, GPU_NODE) if is_number(text)}
    names = {text.lower(): index for index, text in _told(own, GPU_UUID)}
    # Where all GPUs of the machine are on one node, it does not matter which one this is.
    everywhere = set(where.values()) if set(where) >= set(names.values()) else set[int]()
    only = next(iter(everywhere)) if len(everywhere) == 1 else None
    timeline.devices = [
        replace(device, node=where.get(names.get((device.uuid or "").lower(), -1), only))
        for device in timeline.devices
    ]


def _told(segments: Iterable[Segment], key: str) -> Iterable[tuple[int, str]]:
    for segment in segments:
        for found, number, text in segment.facts(key):
            if found == key and text is not None:
                yield number, text


def _distances(text: str) -> dict[str, int]:
    """`0:10 1:21` as numbers by node."""
    pairs = [word.partition(":") for word in text.split()]
    return {a: int(b) for a, _, b in pairs if is_number(a) and is_number(b)}
