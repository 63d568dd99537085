"""Runs one cause by itself, for instance under a trace of one's own.

python -m rca_llm.inject CAUSE [--magnitude M] [--seed N] [--truth FILE] [--without]
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from rca_llm.errors import RcaError
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
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rca-llm-inject-") as folder:
        try:
            wanted = _order(given, folder)
            truth = workload(wanted.cause)(wanted)
        except RcaError as error:
            print(f"rca-llm inject: {error}", file=sys.stderr)
            return error.status
    if given.truth:
        truth.write(given.truth)
    return 0


def _order(given: argparse.Namespace, folder: str) -> Order:
    place = given.folder or folder
    return order(given.cause, given.magnitude, given.seed, place, without=given.without)


if __name__ == "__main__":
    sys.exit(main())
