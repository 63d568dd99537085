"""Real PyTorch on the CPU: forward passes of a module as steps, and the module as it was.

RCA_LLM_VLLM_PYTHON names an interpreter with torch (`make test-engines`), RCA_LLM_HF_PYTHON
another.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.traced import environment, texts, trace

PYTHON = os.environ.get("RCA_LLM_HF_PYTHON") or os.environ.get("RCA_LLM_VLLM_PYTHON", "")
if not PYTHON:
    pytest.skip("RCA_LLM_VLLM_PYTHON is not set (make test-engines)", allow_module_level=True)

PROGRAM = """
import copy, pickle
import torch
from torch import nn
from rca_llm import request
from rca_llm.probes import instrument
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x): return self.b(self.a(x))
net = instrument(Net())
assert instrument(net) is net and isinstance(net, Net) and instrument(5) == 5
x = torch.ones(2, 8)
with torch.inference_mode():
    with request("A"): y = net(x)
    net(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(other) is Net and torch.equal(other(x), y)
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(x), y)
try: net(1)
except TypeError: print("raised")
"""


@pytest.mark.parametrize(("mode", "passes"), [("off", 3), ("auto", 6)])
def test_forward_passes_are_steps(tmp_path: Path, mode: str, passes: int) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = trace(tmp_path, PYTHON, str(script), env=environment(RCA_LLM_TORCH=mode))
    assert (done.status, done.stdout) == (0, "raised\n")
    timeline = done.timeline()
    names = texts(timeline, "ranges", "name")
    assert names.count("forward Net") + names.count("forward OptimizedModule") == passes
    assert len(timeline["steps"]) == passes
    assert texts(timeline, "batch", "request") == ["A"]
