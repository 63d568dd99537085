"""A small but real inference server in NumPy: model, KV cache, scheduler, engine, HTTP front end.

In the order a request meets them: `http` (the wire), `api` (routes and validation), `tokenizer`,
`engine` (the loop in its own thread), `scheduler` and `blocks` (who runs, and where its keys and
values lie), `batch` and `model` (the forward pass), `weights` (what is read from disk at start-up).
"""

from __future__ import annotations

import os

# Before NumPy is imported. The matrices of a step are small: a second BLAS thread gains a third at
# best and takes the core that the HTTP thread and the load generator need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
