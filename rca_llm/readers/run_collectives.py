"""Collectives of a run: the spans that the wrappers of torch.distributed leave.

The name is the operation, the step the sequence number, the path `communicator|ranks|type`; a
NUMBER cell tells since when the thread waited, which differs from the call for `async_op`.
"""

from __future__ import annotations

import numpy as np

from rca_llm.attribute.collective_names import element_type
from rca_llm.probes import format as layout
from rca_llm.readers.segments import Codes, Segment, coded
from rca_llm.table import UNKNOWN, Ints, Mask, Strings, Table
from rca_llm.trace import COLLECTIVES

KIND = "collective"


def table(segment: Segment, codes: Codes, places: Ints, strings: Strings) -> Table:
    """The collectives whose SPAN cells stand at some places; open ones have no end."""
    cells = segment.cells
    more, told = segment.followers(places, layout.MORE)
    places, more = places[told], more[told]
    number, waited = segment.followers(places, layout.NUMBER, 2)
    said = {code: _said(strings[code]) for code in set(coded(codes, cells["c"][more]).tolist())}
    each = [said[code] for code in coded(codes, cells["c"][more]).tolist()]
    return Table(
        COLLECTIVES,
        {
            "comm": strings.codes(comm for comm, _, _ in each),
            "op": coded(codes, cells["e"][places]),
            "seq": cells["a"][more],
            "process": np.full(len(places), segment.pid),
            "bytes": _or_unknown(cells["b"][more], cells["b"][more] >= 0),
            "dtype": strings.codes(dtype for _, _, dtype in each),
            "group_size": np.array([size for _, size, _ in each], np.int64),
            "start": cells["a"][places],
            "end": _or_unknown(cells["b"][places], cells["b"][places] != 0),
            "waited_from": _or_unknown(cells["b"][number], waited),
        },
    )


def _said(path: str) -> tuple[str, int, str | None]:
    """Communicator, number of ranks and type."""
    comm, _, rest = path.rpartition("|")
    comm, _, size = comm.rpartition("|")
    return comm, int(size) if size.isdigit() else UNKNOWN, element_type(rest or None)[0]


def _or_unknown(values: Ints, told: Mask) -> Ints:
    return np.where(told, values, UNKNOWN)
