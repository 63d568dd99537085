"""Cuts a run off at an instant, as if every process had been killed then; the run stays raw.

    python benchmarks/gpu/cut.py RUN OUT SECONDS

OUT becomes a copy that ends SECONDS after the first request arrived. Segments only grow, so what
was recorded by then is what a segment held in front of its first later record.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from rca_llm.probes import format as layout  # noqa: E402  # the path above
from rca_llm.readers.segments import parse  # noqa: E402

TIMED = (layout.BUFFER, *layout.TIMED)


def cut(run: Path, out: Path, seconds: float) -> None:
    """Write the shortened copy."""
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("tables"))
    files = sorted((out / layout.SEGMENTS_NAME).glob("*" + layout.SEGMENT_SUFFIX))
    last = _first_arrival(files) + int(seconds * 1e9)
    for path in files:
        data = bytearray(path.read_bytes())
        del data[_end(path.name, data, last) :]
        # What was never finished says no length, and fills whole blocks.
        data[layout.LENGTH_OFFSET : layout.LENGTH_OFFSET + 8] = bytes(8)
        data += bytes(-len(data) % layout.FIRST_BLOCK_BYTES)
        path.write_bytes(data)


def _first_arrival(files: list[Path]) -> int:
    arrival = layout.REQUEST_EVENTS.index("arrival")
    found: list[int] = []
    for path in files:
        segment = parse(path.name, path.read_bytes())
        if segment is not None:
            cells = segment.cells[segment.of(layout.REQUEST)]
            found += cells["a"][cells["c"] == arrival].tolist()
    return min(found)


def _end(name: str, data: bytearray, last: int) -> int:
    """Where the first record later than `last` begins, else where the data ends."""
    segment = parse(name, data)
    if segment is None:
        return len(data)
    places = np.concatenate([segment.of(kind) for kind in TIMED])
    late = places[segment.cells["a"][places] > last]
    if not len(late):
        return len(data.rstrip(b"\0")) + layout.CELL_BYTES
    return layout.HEADER_BYTES + int(late.min()) * layout.CELL_BYTES


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
