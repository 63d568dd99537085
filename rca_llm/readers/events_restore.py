"""What an exported event file says beyond its records: devices, findings, how it was recorded."""

from __future__ import annotations

from typing import Any

from rca_llm.readers.events_values import as_dict, as_list
from rca_llm.trace import Device, Timeline


def restore(timeline: Timeline) -> None:
    """Take devices, findings and the graph mode from the header, where they were told."""
    extra = timeline.header.extra
    for told in map(as_dict, as_list(extra.pop("devices", None))):
        if type(told.get("device")) is int:
            timeline.devices.append(_device(told))
    for told in map(as_dict, as_list(extra.pop("findings", None))):
        code, count = told.get("code"), told.get("count")
        if isinstance(code, str) and type(count) is int and count > 0:
            timeline.note(code, count, str(told.get("where", "")), str(told.get("detail", "")))
    if isinstance(extra.get("graph_level"), bool):
        timeline.header.graph_level = extra.pop("graph_level")


def _device(told: dict[str, Any]) -> Device:
    name, process = told.get("name"), told.get("process")
    limits = {k: v for k, v in as_dict(told.get("limits")).items() if type(v) is int}
    uuid, node = told.get("uuid"), told.get("node")
    return Device(
        told["device"],
        name if isinstance(name, str) else None,
        process if type(process) is int else None,
        limits,
        uuid if isinstance(uuid, str) else None,
        node if type(node) is int and node >= 0 else None,
    )
