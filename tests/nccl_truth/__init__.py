"""What recordings of NCCL say, held against what the recorded program says it did.

The program is `benchmarks/gpu/nccl_work.py`, which reads no trace and writes `truth-RANK.json`.
The benchmark compares fresh recordings, `tests/test_h200x2.py` those it brought home.
"""
