"""The clock of a launching thread in a replay: what its instants become."""

from __future__ import annotations

import numpy as np

from rca_llm.intervals import Pieces
from rca_llm.table import Array, Ints
from rca_llm.whatif.change import Floats


class Clock:
    """The new time of the launching thread of a rank: scaled pieces, shifted at every wait.

    `rate` is the factor of each piece, of what the thread takes another time for; the rest of its
    time stays. `moves` are the most shifts that there may be.
    """

    def __init__(self, pieces: Pieces, rate: Floats, moves: int) -> None:
        # A piece of no time in front is the one before all others.
        self._start = np.append(_FIRST, pieces.start.astype(np.float64))
        self._end = np.append(_FIRST, pieces.end.astype(np.float64))
        self._more = np.append(0.0, rate - 1)
        added = (self._end - self._start) * self._more
        self._added = np.cumsum(added) - added
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
        if len(self._start) == 1:
            return at
        row = np.searchsorted(self._start, at, "right") - 1
        inside = np.minimum(at, self._end[row]) - self._start[row]
        return np.asarray(at + self._added[row] + inside * self._more[row], np.float64)

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
        return np.asarray(self(times) - self._idle[self._last_move(times)], np.float64)

    def shifted(self, times: Array, scaled: Floats) -> Floats:
        """The new times of instants whose scaled ones are known."""
        if len(times) and times.min() >= self.last:
            # Mostly so: a replay asks for what was launched since a wait.
            return np.asarray(scaled + self.shift, np.float64)
        return np.asarray(scaled + self._shifts[self._last_move(times)], np.float64)

    def _last_move(self, times: Array) -> Ints:
        """The last shift up to each instant."""
        # A replay asks for every wait: the method does without what `np.searchsorted` checks.
        return self._times[: self._moves].searchsorted(times, "right") - 1


_FIRST = float(np.iinfo(np.int64).min)
"""Before every instant."""
