"""The wrappers of engines on small stand-ins for their classes, traced in real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rca_llm.trace import Timeline
from tests.traced import Traced, environment, texts, trace

SCHEDULER = """
class Scheduler:
    scheduler_config = SimpleNamespace(async_scheduling=True)
    def __init__(self):
        self.requests, self.running, self.waiting = {}, [], []
        self.kv_cache_manager = SimpleNamespace(
            usage=0.5, block_pool=SimpleNamespace(get_num_free_blocks=lambda: 7))
    def schedule(self, throttle_prefills=False):
        return self.plan.pop(0)
    def update_from_output(self, scheduler_output, model_runner_output):
        return model_runner_output
    def add_request(self, request):
        self.requests[request.request_id] = request
    def _preempt_request(self, request, timestamp):
        request.num_computed_tokens = 0
"""
FRONTEND = """
class OutputProcessor:
    def __init__(self):
        self.request_states = {}
    def add_request(self, request, prompt, parent_req=None, request_index=0, queue=None):
        self.request_states[request.request_id] = request
    def process_outputs(self, outputs, engine_core_timestamp=None, iteration_stats=None):
        for output in outputs:
            if output.finish_reason is not None:
                del self.request_states[output.request_id]
    def abort_requests(self, request_ids, internal):
        for name in request_ids:
            del self.request_states[name]
"""
PROGRAM = """
import time
from types import SimpleNamespace as N
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.output_processor import OutputProcessor

def step(new=(), cached=(), computed=(), resumed=(), ended=(), **tokens):
    return N(num_scheduled_tokens=tokens, scheduled_new_reqs=[N(req_id=n) for n in new],
             total_num_scheduled_tokens=sum(tokens.values()), finished_req_ids=set(ended),
             scheduled_cached_reqs=N(req_ids=list(cached), num_computed_tokens=list(computed),
                                     resumed_req_ids=set(resumed)))

def out(**ended):
    return {0: N(outputs=[N(request_id=n, new_token_ids=[5], finish_reason=e)
                          for n, e in ended.items()])}

frontend, engine = OutputProcessor(), Scheduler()
for name in ("a", "b"):
    request = N(request_id=name, external_req_id="client-" + name, arrival_time=time.time(),
                prompt_token_ids=[1] * 8, num_prompt_tokens=8, num_computed_tokens=9)
    frontend.add_request(request, None)
    engine.add_request(request)
one, two = step(new="a", a=8), step(new="b", cached="a", computed=[8], a=1, b=8)
engine.plan = [one, two]
engine.schedule(); engine.schedule()
engine.update_from_output(one, out(a=None)); engine.update_from_output(two, out(a=None, b=None))
engine._preempt_request(engine.requests["a"], time.monotonic())
three = step(cached="ab", computed=[0, 8], resumed="a", a=10, b=1)
engine.plan = [three]
engine.schedule()
ended = engine.update_from_output(three, out(a="stop", b=None))
frontend.process_outputs(ended[0].outputs, time.monotonic(), None)
frontend.abort_requests(["b"], internal=True)
print("ran")
"""


def _install(folder: Path, name: str, code: str) -> None:
    """A module of a stand-in package."""
    path = folder.joinpath(*name.split("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.relative_to(folder).parents[:-1]:
        folder.joinpath(parent, "__init__.py").touch()
    path.with_suffix(".py").write_text("from types import SimpleNamespace\n" + code)


def _run(folder: Path, program: str = PROGRAM, **modules: str) -> Traced:
    site = folder / "site"
    for name, code in modules.items():
        _install(site, name.replace("__", "."), code)
    script = folder / "program.py"
    script.write_text(program)
    path = f"{environment()['PYTHONPATH']}:{site}"
    return trace(folder, sys.executable, str(script), env=environment(PYTHONPATH=path))


def _vllm(folder: Path) -> Timeline:
    done = _run(
        folder,
        vllm__v1__core__sched__scheduler=SCHEDULER,
        vllm__v1__engine__output_processor=FRONTEND,
    )
    assert (done.status, done.stdout, done.stderr) == (0, "ran\n", "")
    return done.timeline()


def test_vllm_steps_overlap_and_keep_their_batches(tmp_path: Path) -> None:
    timeline = _vllm(tmp_path)
    steps, batch = timeline["steps"], timeline["batch"]
    assert steps["id"].tolist() == [1, 2, 3]
    assert steps["start"][1] < steps["end"][0] < steps["end"][1]
    assert timeline.header.extra["settings"] == {"async_scheduling": True}
    rows = zip(
        batch["step"].tolist(),
        texts(timeline, "batch", "request"),
        texts(timeline, "batch", "phase"),
        batch["tokens"].tolist(),
        strict=True,
    )
    assert sorted(rows) == [
        (0, "client-a", "prefill", 8),
        (1, "client-a", "decode", 1),
        (1, "client-b", "prefill", 8),
        (2, "client-a", "recompute", 10),
        (2, "client-b", "decode", 1),
    ]


def test_vllm_requests_have_the_ids_of_clients_and_their_ends(tmp_path: Path) -> None:
    timeline = _vllm(tmp_path)
    table = timeline["requests"]
    assert texts(timeline, "requests", "id") == ["client-a", "client-b"]
    assert texts(timeline, "requests", "status") == ["finished", "aborted"]
    assert table["prompt_tokens"].tolist() == [8, 8]
    assert table["output_tokens"].tolist() == [3, 2]
    assert (table["arrival"] <= table["scheduled"]).all()
    assert (table["scheduled"] < table["first_token"]).all()
    marks = list(
        zip(texts(timeline, "marks", "name"), texts(timeline, "marks", "request"), strict=True)
    )
    assert ("preempted", "client-a") in marks
    assert ("resumed", "client-a") in marks


DECODING = PROGRAM.replace(
    'print("ran")',
    """
frontend.request_states["b"] = None
for names, tokens in (("ab", "ab"), ("ab", "ab"), ("ab", "a"), ("ab", "ab"), ("a", "a"), ("a", "")):
    more = step(cached=names, computed=[20, 20][:len(names)], **dict.fromkeys(names, 1))
    engine.plan = [more]
    engine.schedule()
    engine.update_from_output(more, out(**dict.fromkeys(tokens)))
print("ran")
""",
)


def _decoding(folder: Path) -> list[tuple[int, list[str | None], int]]:
    """Of the steps that only decode: their number, their batch, and the tokens that came out."""
    modules = {
        "vllm__v1__core__sched__scheduler": SCHEDULER,
        "vllm__v1__engine__output_processor": FRONTEND,
    }
    done = _run(folder, DECODING, **modules)
    assert (done.status, done.stdout, done.stderr) == (0, "ran\n", "")
    timeline = done.timeline()
    steps, batch = timeline["steps"], timeline["batch"]
    names = np.array(texts(timeline, "batch", "request"))
    phases = np.array(texts(timeline, "batch", "phase"))
    ends = timeline["tokens"]["t"]
    found: list[tuple[int, list[str | None], int]] = []
    for row in np.argsort(steps["start"])[3:].tolist():
        mine = batch["step"] == row
        assert set(phases[mine]) == {"decode"}
        assert batch["tokens"][mine].tolist() == [1] * int(mine.sum())
        out = int((ends == steps["end"][row]).sum())
        found.append((int(steps["id"][row]), sorted(names[mine]), out))
    return found


def test_steps_that_decode_the_same_requests_keep_batch_and_tokens(tmp_path: Path) -> None:
    """Their batch is written once; one that ends otherwise than they did is written anew."""
    both: list[str | None] = ["client-a", "client-b"]
    assert _decoding(tmp_path) == [
        (4, both, 2),
        (5, both, 2),
        (6, both, 1),
        (7, both, 2),
        (8, ["client-a"], 1),
        (9, ["client-a"], 0),
    ]


def test_vllm_samples_its_queues_and_its_cache(tmp_path: Path) -> None:
    timeline = _vllm(tmp_path)
    metrics = texts(timeline, "samples", "metric")
    values = dict(zip(metrics, timeline["samples"]["value"].tolist(), strict=True))
    assert (values["kv.usage"], values["kv.free_blocks"], values["queue.waiting"]) == (0.5, 7, 0)


def test_an_engine_without_the_names_we_know_runs_as_it_is(tmp_path: Path) -> None:
    program = "from vllm.v1.core.sched.scheduler import Scheduler\nprint(Scheduler().schedule())"
    done = _run(
        tmp_path,
        program,
        vllm__v1__core__sched__scheduler="class Scheduler:\n  def schedule(self): return 3\n",
    )
    assert (done.status, done.stdout, done.stderr) == (0, "3\n", "")
    probes = done.timeline().header.extra["probes"]
    names = [
        f"vllm.v1.core.sched.scheduler.Scheduler.{name}" for name in ("schedule", "add_request")
    ]
    assert probes["attached"] == names[:1]
    assert names[1] in probes["missing"]
    assert probes["failed"] == []


def test_an_engine_that_fails_fails_as_without_us(tmp_path: Path) -> None:
    program = (
        "from vllm.v1.core.sched.scheduler import Scheduler\n"
        "try: Scheduler().schedule(1, throttle_prefills=2)\n"
        "except KeyError as error: print(repr(error))"
    )
    code = "class Scheduler:\n  def schedule(self, *a, **k): raise KeyError(a, k)\n"
    done = _run(tmp_path, program, vllm__v1__core__sched__scheduler=code)
    assert done.stdout == "KeyError((1,), {'throttle_prefills': 2})\n"
    assert done.stderr == ""


CONNECTOR = """
class KVConnectorBase_V1:
    def save_kv_layer(self, name): raise NotImplementedError
class Moving(KVConnectorBase_V1):
    def start_load_kv(self, context): return "loading"
    def wait_for_save(self): return "saved"
class Mine(Moving):
    def update_state_after_alloc(self, request, blocks, num_external_tokens): return blocks
class KVConnectorFactory:
    @classmethod
    def create_connector(cls, config, role): return Mine()
"""
OFFLOAD = """
class OffloadingWorker:
    def get_finished(self):
        return [SimpleNamespace(job_id=1, success=True, transfer_size=4096, transfer_time=0.25)]
"""
MOVES = """
from types import SimpleNamespace as N
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_offload.worker.worker import OffloadingWorker

connector = KVConnectorFactory.create_connector("config", role=1)
scheduler = Scheduler()
print(connector.start_load_kv(None), connector.wait_for_save(), OffloadingWorker().get_finished())
for name, tokens in (("far", 64), ("near", 0)):
    print(connector.update_state_after_alloc(N(request_id=name), "blocks", tokens))
scheduler.plan = [N(num_scheduled_tokens={"far": 8, "near": 8}, total_num_scheduled_tokens=16,
                    scheduled_new_reqs=[N(req_id="far"), N(req_id="near")], finished_req_ids=set(),
                    scheduled_cached_reqs=N(req_ids=[], num_computed_tokens=[]))]
scheduler.schedule()
"""


def test_vllm_hand_over_of_keys_and_values_is_told(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        MOVES,
        vllm__distributed__kv_transfer__kv_connector__factory=CONNECTOR,
        vllm__v1__core__sched__scheduler=SCHEDULER,
        vllm__v1__kv_offload__worker__worker=OFFLOAD,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("loading saved [namespace(job_id=1")
    timeline = done.timeline()
    ranges = timeline["ranges"]
    rows = {
        name: row
        for row, name in enumerate(texts(timeline, "ranges", "name"))
        if str(name).startswith("vllm kv")
    }
    names = {"vllm kv start load", "vllm kv wait for save", "vllm kv offload", "vllm kv fetch"}
    assert set(rows) == names
    kinds = texts(timeline, "ranges", "kind")
    assert {kinds[row] for row in rows.values()} == {"kv_transfer"}
    moved = rows["vllm kv offload"]
    assert ranges["bytes"][moved] == 4096
    assert ranges["end"][moved] - ranges["start"][moved] == 250_000_000
    assert texts(timeline, "ranges", "request")[rows["vllm kv fetch"]] == "far"


OLD = """
from types import SimpleNamespace as N
from vllm.v1.core.sched.scheduler import Scheduler

def step(cached, computed, resumed, **tokens):
    return N(num_scheduled_tokens=tokens, scheduled_new_reqs=[], finished_req_ids=set(),
             total_num_scheduled_tokens=sum(tokens.values()),
             scheduled_cached_reqs=N(req_ids=list(cached), num_computed_tokens=list(computed),
                                     resumed_from_preemption=resumed))

old = Scheduler()
requests = [N(request_id=n, num_prompt_tokens=8, num_tokens=12, status=N(name="RUNNING"))
            for n in "ab"]
old.requests = {r.request_id: r for r in requests}
old.plan = [step("ab", [11, 11], [False, False], a=1, b=1), step("a", [12], [False], a=1),
            step("ab", [13, 0], [False, True], a=1, b=12)]
old.schedule()
requests[1].status.name = "PREEMPTED"
old.waiting = [requests[1], N(request_id="new", status=N(name="WAITING"))]
old.schedule()
old.waiting = []
old.schedule()
"""


def test_preemption_is_seen_where_vllm_has_no_function_for_it(tmp_path: Path) -> None:
    code = SCHEDULER.replace("_preempt_request", "_other")
    done = _run(tmp_path, OLD, vllm__v1__core__sched__scheduler=code)
    assert (done.status, done.stderr) == (0, "")
    timeline = done.timeline()
    marks = zip(texts(timeline, "marks", "name"), texts(timeline, "marks", "request"), strict=True)
    assert list(marks) == [("preempted", "b"), ("resumed", "b")]
    requests = texts(timeline, "batch", "request")
    places = zip(timeline["batch"]["step"].tolist(), requests, strict=True)
    phases = dict(zip(places, texts(timeline, "batch", "phase"), strict=True))
    assert phases == {
        (0, "a"): "decode",
        (0, "b"): "decode",
        (1, "a"): "decode",
        (2, "a"): "decode",
        (2, "b"): "recompute",
    }
