"""How long requests wait until the engine first works for them, and would with other steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rca_llm.attribute.links import among
from rca_llm.attribute.parts import CODE
from rca_llm.attribute.requests import Life
from rca_llm.table import Array, Ints

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

    @property
    def arrival(self) -> int:
        """The instant from which on it was tokenised."""
        return self.ready - self.text

    def since(self, base: int) -> Admission:
        """The same with instants counted from `base`."""
        return replace(self, at=self.at - base, ready=self.ready - base)


def admission(life: Life) -> Admission | None:
    """The admission of a request; None where its arrival is not known."""
    arrival, label = life.request.arrival, life.pieces.label
    if arrival is None or not len(life.pieces):
        return None
    admitted = np.flatnonzero(
        ~among(label, [CODE["scheduling.queue"], CODE["scheduling.tokenize"]])
    )
    at = int(life.pieces.start[admitted[0]]) if len(admitted) else arrival
    text = min(int(life.totals[CODE["scheduling.tokenize"]]), at - arrival)
    return Admission(at, arrival + text, text)


@dataclass(frozen=True)
class Turns:
    """The steps of a rank as a request meets them: when each begins and ends, ascending, ns."""

    start: Ints
    end: Ints

    def waited(self, one: Admission, ready: float, clock: Clock) -> float:
        """How long a request waits that is ready at `ready`, where `clock` says what times become.

        An engine that comes later than it did is waited for all the longer. One that comes earlier
        would be there too soon and go on without the request, which joins a later step, as one
        that is tokenised sooner joins an earlier step: it waits for steps of their new length.
        """
        at = float(clock(np.array([one.at]))[0])
        if at > one.at:
            return self._rest(one, ready, np.asarray) + at - one.at
        rest = self._rest(one, ready, clock)
        return min(rest, at - ready) if at >= ready else rest

    def _rest(self, one: Admission, ready: float, clock: Clock) -> float:
        """The rest of the step that a request meets, and how long it was passed over after that.

        It comes as long after the step's beginning as it did; where steps are shorter than that,
        others began meanwhile. A request that met no step waits as it did.
        """
        was, met = self._met(one.ready, one.at), self._met(ready, one.at)
        if was is None or met is None:
            return one.at - one.ready
        begun, ended, free, at = clock(np.array([*met, was[1], one.at], np.float64)).tolist()
        length = ended - begun
        rest = length - (ready - met[0]) % length if length > 0 else 0.0
        return float(rest + at - free)

    def _met(self, time: float, until: int) -> tuple[int, int] | None:
        """The step in which an instant lies, from its start to the next one's, `until` at most."""
        row = int(np.searchsorted(self.start, time, "right")) - 1
        if row < 0 or time >= self.end[row]:
            return None
        following = int(self.start[row + 1]) if row + 1 < len(self.start) else until
        return int(self.start[row]), min(following, until)
