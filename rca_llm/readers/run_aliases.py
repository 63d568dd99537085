"""The ids that clients know requests by, in place of those that an engine made for itself.

An engine that gives every request an internal id records once, where the request comes in, which id
stands for which. Other processes of the engine only know the internal one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rca_llm.probes import format as layout
from rca_llm.readers.segments import Segment

_ALIAS = layout.REQUEST_EVENTS.index("alias")


def rename(segments: list[Segment]) -> None:
    """Replace internal ids in the names of all segments.

    An id that clients used for more than one request would join them: those keep their own.
    """
    known_as = dict(_aliases(segments))
    uses = Counter(known_as.values())
    unique = {own: outside for own, outside in known_as.items() if uses[outside] == 1}
    if not unique:
        return
    for segment in segments:
        segment.names = {id: unique.get(text, text) for id, text in segment.names.items()}


def _aliases(segments: Iterable[Segment]) -> Iterator[tuple[str, str]]:
    for segment in segments:
        cells, places = segment.cells, segment.of(layout.REQUEST)
        for place in places[cells["c"][places] == _ALIAS].tolist():
            own = segment.names.get(int(cells["d"][place]))
            outside = segment.names.get(int(cells["b"][place]))
            if own is not None and outside is not None:
                yield own, outside
