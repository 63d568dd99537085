"""Perfetto's protobuf trace, for ui.perfetto.dev and `trace_processor`.

Tracks by process, thread, stream, step and request; flows from launches to what they launched;
counters for sampled metrics. Fields: protos/perfetto/trace/perfetto_trace.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rca_llm.exporters.protobuf import double, fixed64, message, number, text
from rca_llm.exporters.tracks import Counter, Processes, Slice, Track, counters, tracks

if TYPE_CHECKING:
    from rca_llm.report import Report

suffix = ".pftrace"

_SEQUENCE = number(10, 1)
_CLEARED, _NEEDED = number(13, 1), number(13, 2)
"""Sequence flags: interned texts start anew; this packet uses them."""

_BEGIN, _END, _COUNTER = number(9, 1), number(9, 2), number(9, 4)
_BUFFER = 1 << 20


def write(report: Report, target: Path) -> None:
    """Write the trace."""
    with target.open("wb") as file:
        _Writer(file).trace(report)


class _Writer:
    """Writes packets; texts are written once and referred to by number."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._fresh = bytearray()
        self._uuid = 0

    def trace(self, report: Report) -> None:
        """All packets of a report."""
        self._packet(_CLEARED)
        processes = Processes()
        homes: dict[int, int] = {}
        for track in tracks(report, processes):
            home = homes.get(track.process) or self._process(homes, track.process, processes)
            self._track(track, home)
        for counter in counters(report, processes):
            home = homes.get(counter.process) or self._process(homes, counter.process, processes)
            self._counter(counter, home)
        self._file.write(self._buffer)

    def _packet(self, content: bytes) -> None:
        """One packet, after the texts that it is the first to use."""
        if self._fresh:
            content += message(12, bytes(self._fresh))
            self._fresh.clear()
        self._buffer += message(1, _SEQUENCE + content)
        if len(self._buffer) > _BUFFER:
            self._file.write(self._buffer)
            self._buffer.clear()

    def _descriptor(self, content: bytes) -> int:
        self._uuid += 1
        self._packet(message(60, number(1, self._uuid) + content))
        return self._uuid

    def _process(self, homes: dict[int, int], process: int, processes: Processes) -> int:
        named = number(1, process) + text(6, processes.names[process])
        homes[process] = self._descriptor(message(3, named))
        return homes[process]

    def _track(self, track: Track, home: int) -> None:
        for lane, slices in enumerate(track.lanes()):
            name = f"{track.name} ({lane + 1})" if lane else track.name
            if track.thread is None or lane:
                uuid = self._descriptor(number(5, home) + text(2, name))
            else:
                ids = number(1, track.process) + number(2, track.thread)
                uuid = self._descriptor(number(5, home) + message(4, ids + text(5, name)))
            for packet in self._slices(slices, number(11, uuid)):
                self._packet(packet)

    def _slices(self, slices: list[Slice], track: bytes) -> Iterator[bytes]:
        """Begins and ends, properly nested."""
        open_ends: list[int] = []
        ending = message(11, _END + track)
        for piece in slices:
            while open_ends and open_ends[-1] <= piece.start:
                yield number(8, open_ends.pop()) + ending
            event = message(11, _BEGIN + track + self._about(piece))
            yield number(8, piece.start) + _NEEDED + event
            open_ends.append(piece.end)
        while open_ends:
            yield number(8, open_ends.pop()) + ending

    def _about(self, piece: Slice) -> bytes:
        """A slice's name, category, flow and annotations."""
        content = number(10, self._interned(self._names, 2, piece.name))
        content += number(3, self._interned(self._categories, 1, piece.category))
        if piece.flow is not None:
            content += fixed64(47 if piece.launches else 48, piece.flow)
        for key, value in piece.about.items():
            content += message(4, number(1, self._interned(self._keys, 3, key)) + _value(value))
        return content

    def _interned(self, known: dict[str, int], field: int, value: str) -> int:
        found = known.get(value)
        if found is None:
            found = known[value] = len(known) + 1
            self._fresh += message(field, number(1, found) + text(2, value))
        return found

    def _counter(self, counter: Counter, home: int) -> None:
        uuid = self._descriptor(number(5, home) + text(2, counter.name) + message(8, b""))
        track = _COUNTER + number(11, uuid)
        for time, value in counter.points:
            self._packet(number(8, time) + message(11, track + double(44, value)))


def _value(value: str | int | float) -> bytes:
    """The value of a debug annotation."""
    if isinstance(value, str):
        return text(6, value)
    return double(5, value) if isinstance(value, float) else number(4, value)
