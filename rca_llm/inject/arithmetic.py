"""Work of a fixed amount: matrix products on one CPU, in units of about a millisecond.

Workloads take NumPy from here: it must not be imported before its threads are limited.
"""

from __future__ import annotations

import os
from time import perf_counter_ns

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # a pool of helpers would compete with what is measured

import numpy as np  # noqa: E402

__all__ = ["PRODUCTS", "SIZE", "UNIT_NS", "Arithmetic", "np"]

UNIT_NS = 1_000_000
PRODUCTS = "RCA_LLM_INJECT_PRODUCTS"
"""A variable with the products of a unit, so that several runs do exactly the same work."""

SIZE = 128


class Arithmetic:
    """Multiplies matrices; a unit takes about `UNIT_NS` on an idle CPU of this machine."""

    def __init__(self) -> None:
        self._matrix = np.full((SIZE, SIZE), 1.0 / SIZE, np.float32)
        self._out = np.empty_like(self._matrix)
        self._repeats = 1
        self.unit_ns = UNIT_NS

    def warm_up(self) -> None:
        """Find out how many products make a unit: told, else from the quickest of several tries."""
        quickest = min(self._timed(20) for _ in range(15)) / 20
        told = os.environ.get(PRODUCTS, "")
        self._repeats = int(told) if told.isdecimal() else max(round(UNIT_NS / quickest), 1)
        self.unit_ns = round(self._repeats * quickest)

    @property
    def products(self) -> int:
        """How many products make a unit."""
        return self._repeats

    def _timed(self, count: int) -> int:
        begun = perf_counter_ns()
        for _ in range(count):
            np.matmul(self._matrix, self._matrix, out=self._out)
        return perf_counter_ns() - begun

    def __call__(self, units: int) -> None:
        """Do some units of work; the interpreter's lock is free for most of it."""
        for _ in range(units * self._repeats):
            np.matmul(self._matrix, self._matrix, out=self._out)
