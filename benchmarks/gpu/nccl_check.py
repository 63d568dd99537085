"""Compares recordings of the NCCL benchmark with what its program says it did.

    python nccl_check.py sizes --truth folder run.rca

What is compared with is `truth-RANK.json` of `nccl_work.py`, which reads no trace. Prints JSON:
`checks` that hold or not, each with what was found and wanted, and `facts`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.nccl_truth.calls import expect
from tests.nccl_truth.checks import CHECKS
from tests.nccl_truth.truth import recording, truths


def main() -> None:
    """Check one recording and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--expect", action="append", default=[], help="ALGO=RING, PROTO=LL …")
    parser.add_argument("recording", type=Path, nargs="+")
    arguments = parser.parse_args()
    told, recorded = truths(arguments.truth), recording(arguments.recording)
    found = CHECKS[arguments.check](recorded, told)
    for wanted in arguments.expect:
        expect(found, recorded, told, *wanted.split("="))
    print(json.dumps(found.told()))


if __name__ == "__main__":
    main()
