"""Which host call launched which device work, and on which thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rca_llm.table import UNKNOWN, Array, Ints, Mask, Table, first_rows, known

NO_ROW = -1


@dataclass(frozen=True)
class Links:
    """The launch of every `gpu` row: its row in `api`, -1 where none is known."""

    api_row: Ints

    def of_api(self, column: Array, missing: int = UNKNOWN) -> Ints:
        """A column of `api` for every `gpu` row, `missing` where the launch is not known."""
        if not len(column):
            return np.full(len(self.api_row), missing, np.int64)
        found = column[np.maximum(self.api_row, 0)]
        return np.where(self.api_row >= 0, found, missing).astype(np.int64)


def link(gpu: Table, api: Table) -> Links:
    """Match device work to calls by correlation id, process by process.

    Correlation ids are unique within a process only. Where runtime and driver calls carry the
    same id, the one that was called first is taken.
    """
    found = np.full(len(gpu), NO_ROW, np.int64)
    gpu_process, api_process = gpu["process"], api["process"]
    gpu_id, api_id = gpu["correlation"], api["correlation"]
    for process in np.unique(gpu_process).tolist():
        rows = np.flatnonzero((gpu_process == process) & known(gpu_id))
        calls = np.flatnonzero((api_process == process) & known(api_id))
        if len(rows) and len(calls):
            calls = calls[np.argsort(api["start"][calls], kind="stable")]
            found[rows] = np.append(calls, NO_ROW)[first_rows(api_id[calls], gpu_id[rows])]
    return Links(found)


def dense_threads(*tables: Table) -> tuple[list[tuple[int, int]], list[Ints]]:
    """Number the threads that occur in some tables.

    Returns every (process, thread) pair, and for each table the number of each row's pair.
    """
    process = np.concatenate([table["process"] for table in tables])
    thread = np.concatenate([table["thread"] for table in tables])
    processes, p = np.unique(process, return_inverse=True)
    threads, t = np.unique(thread, return_inverse=True)
    pairs, number = np.unique(p * len(threads) + t, return_inverse=True)
    names = [
        (int(processes[pair // len(threads)]), int(threads[pair % len(threads)]))
        for pair in pairs.tolist()
    ]
    cuts = np.cumsum([len(table) for table in tables])[:-1]
    return names, np.split(number.astype(np.int64), cuts)


def among(values: Array, wanted: list[int]) -> Mask:
    """Which values are among a few wanted ones."""
    found = np.zeros(len(values), bool)
    for value in wanted:
        found |= values == value
    return found
