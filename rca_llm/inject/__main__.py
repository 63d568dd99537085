"""Runs one cause by itself, for instance under a trace of one's own.

python -m rca_llm.inject CAUSE [--magnitude M] [--seed N] [--truth FILE] [--without]
python -m rca_llm.inject CAUSE --in-turns M,M,… --truth FOLDER [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rca_llm.errors import RcaError
from rca_llm.inject import turns
from rca_llm.inject.catalogue import Order, order, workload


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit status is that of the contract."""
    parser = argparse.ArgumentParser(prog="python -m rca_llm.inject", description=__doc__)
    parser.add_argument("cause")
    parser.add_argument("--magnitude", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth", help="write what the cause cost to this file")
    parser.add_argument("--folder", help="where files of the workload go")
    parser.add_argument("--without", action="store_true", help="the same load without the cause")
    parser.add_argument(
        "--in-turns",
        type=_sizes,
        metavar="M,M,…",
        help="several sizes, each between two runs without the cause; --truth is a folder",
    )
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rca-llm-inject-") as folder:
        try:
            wanted = _order(given, folder)
            if given.in_turns:
                turns.run(wanted, given.in_turns, Path(given.truth or "turns"))
                return 0
            truth = workload(wanted.cause)(wanted)
        except RcaError as error:
            print(f"rca-llm: {error}", file=sys.stderr)
            return error.status
    if given.truth:
        truth.write(given.truth)
    return 0


def _sizes(text: str) -> list[float]:
    """The sizes that an option lists."""
    sizes = [float(one) for one in text.split(",")]
    if not all(0 < size < float("inf") for size in sizes):
        raise argparse.ArgumentTypeError("sizes must be greater than 0")
    return sizes


def _order(given: argparse.Namespace, folder: str) -> Order:
    place = given.folder or folder
    return order(given.cause, given.magnitude, given.seed, place, without=given.without)


if __name__ == "__main__":
    sys.exit(main())
