"""Completions with llama-cpp-python, each stamped: python llama_work.py MODEL TOLD"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from llama_cpp import Llama

from rca_llm import request


def main(path: str, told: Path) -> None:
    """Plain, streamed, within a scope, and one whose reader leaves."""
    model = Llama(path, n_ctx=256, n_threads=1, seed=1, verbose=False, logits_all=False)
    rows: list[dict[str, Any]] = []
    for prompt, count in (("hello there", 8), ("a" * 60, 12)):
        begun = time.monotonic_ns()
        whole = model.create_completion(prompt, max_tokens=count, temperature=0)
        row = {"begin": begun, "end": time.monotonic_ns(), "usage": whole["usage"]}
        rows.append(row | {"text": whole["choices"][0]["text"]})
    with request("scoped"):
        text, first = "", 0
        begun = time.monotonic_ns()
        for piece in model.create_completion("stream me", max_tokens=6, temperature=0, stream=True):
            first = first or time.monotonic_ns()
            text += piece["choices"][0]["text"]
        rows.append({"begin": begun, "first": first, "end": time.monotonic_ns(), "text": text})
    stream = model.create_completion("leave me", max_tokens=50, temperature=0, stream=True)
    next(stream)
    stream.close()
    told.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
