"""How long requests wait until the engine first works for them, and would with other steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.life import Life
from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.table import Array, Ints, Mask

Clock = Callable[[Array], Array]
"""The new times of instants, ns."""


@dataclass(frozen=True)
class Admission:
    """When the engine first worked for a request, when it could have, and its tokenising before.

    `at` and `ready` are instants, `text` is a time, ns.
    """

    at: int
    ready: int
    text: int


def admission(life: Life) -> Admission | None:
    """The admission of a request; None where its arrival is not known."""
    arrival, pieces = life.request.arrival, life.pieces
    if arrival is None or not len(pieces):
        return None
    waiting = among(pieces.label, [CODE["scheduling.queue"], CODE["scheduling.tokenize"]])
    if len(life.contended):
        waiting &= intervals.at(life.contended, pieces.start) < 0
    first = int(np.argmin(waiting))
    if waiting[first]:  # nothing but waits
        return Admission(arrival, arrival, 0)
    at = int(pieces.start[first])
    text = int(pieces.clip(arrival, at).sums(len(PARTS))[CODE["scheduling.tokenize"]])
    return Admission(at, arrival + text, text)


@dataclass(frozen=True)
class Turns:
    """The steps of a rank as a request meets them: when each begins and ends, ascending, ns."""

    start: Ints
    end: Ints

    def waited(self, at: Ints, ready: Ints, wanted: Array, clock: Clock, busy: Clock) -> Array:
        """How long requests wait that are ready at `wanted`, where `clock` says what times become.

        `busy` says the same without the waits of an engine that has nothing to do, which lengthen
        no step.

        They were ready at `ready` and admitted `at`. An engine that comes later than it did is
        waited for all the longer. One that comes earlier would be there too soon and go on without
        the request, which joins a later step, as one that is tokenised sooner joins an earlier
        step: it waits for steps of their new length.
        """
        new = clock(at)
        rest, free = self._rest(at, ready, wanted, busy), new - wanted
        sooner = np.where(free >= 0, np.minimum(rest, free), rest)
        late = self._rest(at, ready, wanted, np.asarray) + new - at
        return np.where(new > at, late, sooner)

    def _rest(self, at: Ints, ready: Ints, wanted: Array, clock: Clock) -> Array:
        """The rest of the steps that requests meet, and how long they were passed over after that.

        They come as long after the step's beginning as they did; where steps are shorter than that,
        others began meanwhile. A request that met no step waits as it did.
        """
        was, _, over = self._met(ready, at)
        met, begun, until = self._met(wanted, at)
        length = clock(until) - clock(begun)
        part = np.mod(wanted - begun, np.where(length > 0, length, 1))
        rest = np.where(length > 0, length - part, 0) + clock(at) - clock(over)
        return np.where(was & met, rest, at - ready)

    def _met(self, times: Array, until: Ints) -> tuple[Mask, Ints, Ints]:
        """The steps in which instants lie, each from its start to the next one's, `until` at most.

        Whether there is one, and its edges.
        """
        row = np.searchsorted(self.start, times, "right") - 1
        inside = (row >= 0) & (times < np.append(self.end, _FIRST)[row])
        begun = np.where(inside, np.append(self.start, 0)[row], until)
        following = np.append(self.start[1:], [_LAST, _LAST])[row]
        return inside, begun, np.where(inside, np.minimum(following, until), until)


_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
