"""The helper process of the Kineto reader: reads its share of a file and writes it to stdout."""

from __future__ import annotations

import pickle
import sys

from rca_llm.readers.files import source
from rca_llm.readers.kineto_pieces import drawn, read_share
from rca_llm.readers.pieces import Pieces


def main(path: str, tickets: int) -> None:
    """Read the pieces whose tickets this process draws from a pipe."""
    with source(path).open() as stream:
        share = read_share(Pieces(stream), drawn(tickets))
    pickle.dump(share, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
