"""The clock of a launching thread in a replay: what its instants become."""

from __future__ import annotations

import numpy as np

from rca_llm.intervals import Pieces
from rca_llm.table import Array
from rca_llm.whatif.change import Floats


class Clock:
    """The new time of the launching thread of a rank: scaled pieces, shifted at every wait.

    `rate` is the factor of each piece, `moves` the most shifts that there may be.
    """

    def __init__(self, pieces: Pieces, rate: Floats, moves: int) -> None:
        self._edge = pieces.start.astype(np.float64)
        self._rate = rate
        lasting = (pieces.end - pieces.start) * self._rate
        first = self._edge[:1] if len(self._edge) else np.zeros(1)
        self._sum = np.concatenate([first, first + np.cumsum(lasting)])
        self.shift = 0.0
        self._times = np.full(moves + 1, -np.inf)
        self._shifts = np.zeros(moves + 1)
        self._idle = np.zeros(moves + 1)
        self._moves = 1

    @property
    def last(self) -> float:
        """The instant of the last shift."""
        return float(self._times[self._moves - 1])

    def scaled(self, times: Array) -> Floats:
        """The time that the pieces alone give, without any shift."""
        at = np.asarray(times, np.float64)
        if not len(self._edge):
            return at
        row = np.maximum(np.searchsorted(self._edge, at, "right") - 1, 0)
        return self._sum[row] + (at - self._edge[row]) * self._rate[row]

    def move(self, at: int, scaled: float, wanted: float, *, idle: bool = False) -> None:
        """From an instant on, let the new time be such that the instant becomes `wanted`.

        `idle`: because the thread has nothing to do until then, or less long than it had.
        """
        before, self.shift = self.shift, wanted - scaled
        place = self._moves
        self._times[place] = at
        self._shifts[place] = self.shift
        self._idle[place] = self._idle[place - 1] + (self.shift - before if idle else 0.0)
        self._moves += 1

    def __call__(self, times: Array) -> Floats:
        """The new times of instants on this thread."""
        return self.shifted(times, self.scaled(times))

    def busy(self, times: Array) -> Floats:
        """The new times, as they would be had it never waited for requests longer or shorter."""
        row = np.searchsorted(self._times[: self._moves], np.asarray(times), "right") - 1
        return np.asarray(self(times) - self._idle[row], np.float64)

    def shifted(self, times: Array, scaled: Floats) -> Floats:
        """The new times of instants whose scaled ones are known."""
        row = np.searchsorted(self._times[: self._moves], np.asarray(times), "right") - 1
        return np.asarray(scaled + self._shifts[row], np.float64)
