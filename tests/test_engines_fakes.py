"""Wrappers of SGLang, LMDeploy and TensorRT-LLM on fakes of their classes: none of them runs here.

The fakes have the names and signatures of `data/signatures`, and as little else as shows the order
in which the real ones call.
"""

from __future__ import annotations

from pathlib import Path

from rca_llm.table import UNKNOWN
from rca_llm.trace import Timeline
from tests.test_engines import _run
from tests.traced import texts

_SGLANG_BATCH = """
class Mode:
    def __init__(self, name): self.name = name
    def is_decode(self): return self.name == "DECODE"
    def is_extend(self): return self.name in ("EXTEND", "MIXED")
class Req:
    def __init__(self, rid, prompt):
        self.rid, self.origin_input_ids, self.output_ids, self.done = rid, [1] * prompt, [], False
    def finished(self): return self.done
class ScheduleBatch:
    def __init__(self, reqs, mode, lens=None, decoding=()):
        self.reqs, self.forward_mode, self.extend_lens = reqs, Mode(mode), lens
        self.decoding_reqs = list(decoding)
    def copy(self):
        return ScheduleBatch(list(self.reqs), self.forward_mode.name, self.extend_lens)
    def retract_decode(self, server_args=None):
        gone, self.reqs = self.reqs[-1:], self.reqs[:-1]
        return gone, 0.5, []
"""
_SGLANG = """
from sglang.srt.managers.tp_worker import TpModelWorker
class Result: pass
class Scheduler:
    tp_rank, enable_overlap = 0, True
    def __init__(self, plan):
        self.plan, self.waiting_queue, self.worker = plan, [], TpModelWorker()
        self.running_batch = type("Running", (), {"reqs": []})
    def _add_request_to_queue(self, req, is_retracted=False): self.waiting_queue.append(req)
    def get_next_batch_to_run(self): return self.plan.pop(0) if self.plan else None
    def run_batch(self, batch, pp_proxy_tensors=None):
        self.worker.forward_batch_generation(batch)
        return Result()
    def process_batch_result(self, batch, result):
        for req in batch.reqs:
            req.output_ids.append(7)
            req.done = len(req.output_ids) == 2
    def process_input_requests(self, recv_reqs): pass
    def event_loop_overlap(self):
        queue, last = [], None
        while True:
            batch = self.get_next_batch_to_run()
            if batch: queue.append((batch.copy(), self.run_batch(batch)))
            if last: self.process_batch_result(*queue.pop(0))
            if not batch and not last: return
            last = batch
"""
_SGLANG_WORKER = """
class TpModelWorker:
    def forward_batch_generation(self, batch, forward_batch=None): return "logits"
"""
_SGLANG_FRONT = """
class TokenizerManager:
    async def generate_request(self, obj, request=None):
        await self._tokenize_one_request(obj)
        await self._send_one_request(obj)
        yield "piece"
    async def _tokenize_one_request(self, obj): return obj
    async def _send_one_request(self, tokenized_obj): pass
    async def _handle_batch_output(self, recv_obj): return "handled"
"""
_SGLANG_PROGRAM = """
import asyncio
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tokenizer_manager import TokenizerManager
class Obj:
    def __init__(self, rid): self.rid = rid
class Out:
    rids = ["A", "B", "C"]; finished_reasons = [{"type": "stop"}, {"type": "abort"}, None]
manager = TokenizerManager()
async def front():
    for rid in "ABC":
        assert [p async for p in manager.generate_request(Obj(rid), None)] == ["piece"]
asyncio.run(front())
a, b = Req("A", 8), Req("B", 5)
first = ScheduleBatch([a], "EXTEND", [8])
mixed = ScheduleBatch([b, a], "MIXED", [5, 1], decoding=[a])
lost = ScheduleBatch([a, b], "DECODE")
plan = [first, mixed]
scheduler = Scheduler(plan)
for req in (a, b): scheduler._add_request_to_queue(req)
plan.append(ScheduleBatch(lost.retract_decode(None)[0], "EXTEND", [6]))
scheduler.event_loop_overlap()
assert asyncio.run(manager._handle_batch_output(Out())) == "handled"
print("ran")
"""


def _sglang(folder: Path) -> Timeline:
    done = _run(
        folder,
        _SGLANG_PROGRAM,
        sglang__srt__managers__schedule_batch=_SGLANG_BATCH,
        sglang__srt__managers__tp_worker=_SGLANG_WORKER,
        sglang__srt__managers__scheduler=_SGLANG,
        sglang__srt__managers__tokenizer_manager=_SGLANG_FRONT,
    )
    assert (done.status, done.stdout, done.stderr) == (0, "ran\n", "")
    timeline = done.timeline()
    assert timeline.header.extra["probes"]["failed"] == []
    return timeline


def _batches(timeline: Timeline) -> list[tuple[int, str | None, str | None, int]]:
    batch = timeline["batch"]
    return sorted(
        zip(
            batch["step"].tolist(),
            texts(timeline, "batch", "request"),
            texts(timeline, "batch", "phase"),
            batch["tokens"].tolist(),
            strict=True,
        )
    )


def test_sglang_steps_overlap_and_keep_their_batches(tmp_path: Path) -> None:
    timeline = _sglang(tmp_path)
    steps = timeline["steps"]
    assert steps["id"].tolist() == [1, 2, 3]
    assert steps["start"][1] < steps["end"][0] < steps["end"][1]
    assert timeline.header.extra["settings"] == {"async_scheduling": True}
    assert _batches(timeline) == [
        (0, "A", "prefill", 8),
        (1, "A", "decode", 1),
        (1, "B", "recompute", 5),
        (2, "B", "recompute", 6),
    ]


def test_sglang_requests_begin_end_and_are_retracted(tmp_path: Path) -> None:
    timeline = _sglang(tmp_path)
    table = timeline["requests"]
    ids = texts(timeline, "requests", "id")
    status = dict(zip(ids, texts(timeline, "requests", "status"), strict=True))
    assert status == {"A": "finished", "B": "aborted", "C": None}
    prompts = dict(zip(ids, table["prompt_tokens"].tolist(), strict=True))
    assert prompts == {"A": 8, "B": 5, "C": UNKNOWN}
    outputs = dict(zip(ids, table["output_tokens"].tolist(), strict=True))
    assert outputs == {"A": 2, "B": 2, "C": UNKNOWN}
    marks = set(
        zip(texts(timeline, "marks", "name"), texts(timeline, "marks", "request"), strict=True)
    )
    assert {("queued", "A"), ("scheduled", "A"), ("preempted", "B"), ("resumed", "B")} <= marks


_LMDEPLOY = """
class Status:
    def __init__(self, name): self.name = name
class Output:
    def __init__(self, name, tokens): self.status, self.token_ids = Status(name), tokens
class EngineInstance:
    async def async_stream_infer(self, session_id, input_ids, gen_config=None, **kwargs):
        for _ in range(3): yield Output("SUCCESS", [1, 2])
        yield Output("FINISH", [3])
"""
_LMDEPLOY_AGENT = """
class BaseModelAgent:
    async def _async_step(self, inputs, delta=None): return inputs
"""
_LMDEPLOY_PROGRAM = """
import asyncio
from lmdeploy.pytorch.engine.engine_instance import EngineInstance
from lmdeploy.pytorch.engine.model_agent.agent import BaseModelAgent
async def main():
    whole = EngineInstance().async_stream_infer(4, [1, 2, 3], gen_config=None)
    print([len(each.token_ids) async for each in whole])
    left = EngineInstance().async_stream_infer(5, input_ids=[1])
    await left.__anext__(); await left.aclose()
    print(await BaseModelAgent()._async_step("inputs"))
asyncio.run(main())
"""


def test_lmdeploy_streams_are_requests_and_forward_passes_steps(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        _LMDEPLOY_PROGRAM,
        lmdeploy__pytorch__engine__engine_instance=_LMDEPLOY,
        lmdeploy__pytorch__engine__model_agent__agent=_LMDEPLOY_AGENT,
    )
    assert (done.status, done.stdout, done.stderr) == (0, "[2, 2, 2, 1]\ninputs\n", "")
    timeline = done.timeline()
    table = timeline["requests"]
    assert texts(timeline, "requests", "id") == ["lmdeploy-4-1", "lmdeploy-5-2"]
    assert texts(timeline, "requests", "status") == ["finished", "aborted"]
    assert table["prompt_tokens"].tolist() == [3, 1]
    assert table["output_tokens"].tolist() == [7, 2]
    assert len(timeline["steps"]) == 1


_TENSORRT = """
class PyExecutor:
    def _prepare_and_schedule_batch(self): return "batch"
    def _forward_step(self, scheduled_batch, *args, **kwargs): return "outputs"
    def _update_requests(self, sample_state): pass
    def _handle_responses(self): return [self.request]
"""
_TENSORRT_PROGRAM = """
from tensorrt_llm._torch.pyexecutor.py_executor import PyExecutor
class R:
    def __init__(self, id): self.py_request_id = id
class Batch: context_requests, generation_requests = [R(1)], [R(2)]
class State: scheduled_requests = Batch
executor = PyExecutor(); executor.request = R(2)
executor._prepare_and_schedule_batch()
print(executor._forward_step(Batch))
executor._update_requests(State)
print(len(executor._handle_responses()))
"""


def test_tensorrt_llm_batches_are_steps(tmp_path: Path) -> None:
    name = {"tensorrt_llm___torch__pyexecutor__py_executor": _TENSORRT}
    done = _run(tmp_path, _TENSORRT_PROGRAM, **name)
    assert (done.status, done.stdout, done.stderr) == (0, "outputs\n1\n", "")
    timeline = done.timeline()
    assert _batches(timeline) == [(0, "1", "prefill", UNKNOWN), (0, "2", "decode", 1)]
    assert texts(timeline, "requests", "status") == [None, "finished"]
