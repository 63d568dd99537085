"""Controlled bottlenecks: real workloads with one known cause of known size.

`python -m rca_llm.inject CAUSE` runs a workload by itself, `rca-llm inject CAUSE` runs it under a
trace. Either way the workload measures what the cause costs it, with clocks of its own, and writes
that as `truth.json`. Importing this package loads nothing heavy.
"""
