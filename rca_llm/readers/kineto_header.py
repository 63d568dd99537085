"""What a Kineto file says beside its events: the job, the devices and the tracing library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np

from rca_llm.readers.exact import ints
from rca_llm.readers.jsontext import UNDECODABLE
from rca_llm.readers.kineto_pieces import Content
from rca_llm.table import UNKNOWN, known
from rca_llm.trace import Device, Header, Timeline

_EPOCH_NS = 946_684_800_000_000_000
"""The year 2000: times before it are no UTC."""

_LIMITS = {
    "numSms": "sms",
    "warpSize": "warp_size",
    "maxThreadsPerMultiprocessor": "max_threads_per_sm",
    "regsPerMultiprocessor": "registers_per_sm",
    "sharedMemPerMultiprocessor": "shared_per_sm",
    "maxSharedMemoryPerMultiProcessor": "shared_per_sm",
    "totalGlobalMem": "memory_bytes",
    "computeMajor": "major",
    "computeMinor": "minor",
}
"""Kineto's names of device attributes, and ours."""


def said_by(content: Content) -> dict[str, Any]:
    """The fields of the file's outer object; empty where they cannot be read."""
    tail = content.batches[-1].tail if content.batches else None
    for end in (tail or b"", b"}"):
        text = (content.head + b"]" + end).decode("utf-8", "replace")
        try:
            return _mapping(msgspec.json.decode(text.removeprefix("\ufeff"), strict=False))
        except UNDECODABLE:
            continue
    return {}


def header_of(said: Mapping[str, Any], timeline: Timeline) -> Header:
    """Rank, job and clock of a file whose tables are read."""
    job = _mapping(said.get("distributedInfo"))
    return Header(
        utc=_is_utc(timeline),
        rank=integer(job.get("rank")),
        world_size=integer(job.get("world_size")),
        nccl=_text(job.get("nccl_version")),
        host=_text(said.get("host_name")),
        graph_level=False,
    )


def devices_of(said: Mapping[str, Any], timeline: Timeline) -> list[Device]:
    """The devices that worked, each with the process it worked for, as the file describes them."""
    described = said.get("deviceProperties")
    listed = cast(list[object], described) if isinstance(described, list) else []
    properties = {integer(one.get("id")): one for one in map(_mapping, listed)}
    gpu = timeline["gpu"]
    pairs = set(zip(gpu["device"].tolist(), gpu["process"].tolist(), strict=True))
    return [
        _device(number, process, properties.get(number, {})) for number, process in sorted(pairs)
    ]


def _device(number: int, process: int, properties: Mapping[str, Any]) -> Device:
    found = ((ours, integer(properties.get(theirs))) for theirs, ours in _LIMITS.items())
    return Device(
        number,
        _text(properties.get("name")),
        None if process == UNKNOWN else process,
        {name: value for name, value in found if value is not None},
    )


def tool_version(said: Mapping[str, Any]) -> str | None:
    """The versions of the tracing library, which is all that the file tells of its tool."""
    versions = [
        f"{name.removesuffix('_version')} {said[name]}"
        for name in ("cupti_version", "roctracer_version", "cuda_runtime_version")
        if isinstance(said.get(name), int)
    ]
    return ", ".join(versions) or None


def integer(value: object) -> int | None:
    """A value as an int, None where it is none."""
    found = int(ints([value])[0])
    return None if found == UNKNOWN else found


def _is_utc(timeline: Timeline) -> bool:
    """Whether the times are plausible as UTC."""
    for name in ("gpu", "api", "ranges"):
        starts = timeline[name]["start"]
        starts = starts[known(starts)]
        if len(starts):
            return int(np.median(starts)) >= _EPOCH_NS
    return True


def _mapping(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
