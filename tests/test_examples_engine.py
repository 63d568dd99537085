"""The example server's model, cache, scheduler and engine, without HTTP."""

from __future__ import annotations

import queue
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from examples.server.batch import Batch, Chunk
from examples.server.blocks import BlockPool
from examples.server.config import ModelConfig
from examples.server.engine import Engine
from examples.server.model import Model, Transformer
from examples.server.scheduler import Limits, Output, Plan, Scheduler
from examples.server.sequence import Sequence
from examples.server.tokenizer import END, Detokenizer, encode
from examples.server.weights import Weights, WeightsError, load_weights, make_weights

SMALL = ModelConfig(dim=32, layers=2, heads=4, kv_heads=2, hidden=48, max_positions=128)
BLOCK = 4
SLOTS = 256
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, 256, 40)]
Doubles = NDArray[np.float64]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    folder = tmp_path_factory.mktemp("model") / "weights"
    make_weights(folder, SMALL)
    config, loaded = load_weights(folder)
    assert config == SMALL
    return loaded


def blocks(length: int, first: int = 0) -> list[int]:
    """A scattered block table: every third block, backwards."""
    return [first + 3 * number for number in range(-(-length // BLOCK))][::-1]


def logits(model: Transformer, *chunks: Chunk) -> NDArray[np.float32]:
    return model.forward(Batch.of(chunks, BLOCK))


def reference(weights: Weights, tokens: list[int]) -> Doubles:
    """Logits after the last token, position by position and head by head, in float64."""
    state = weights["embedding"]["embedding"][tokens].astype(np.float64)
    for index in range(SMALL.layers):
        layer = {
            name: tensor.astype(np.float64)
            for name, tensor in weights[f"layer-{index:02d}"].items()
        }
        state = state + _attention(layer, _norm(state, layer["attention_norm"])) @ layer["out"]
        gate_up = _norm(state, layer["mlp_norm"]) @ layer["gate_up"]
        gate, up = gate_up[:, : SMALL.hidden], gate_up[:, SMALL.hidden :]
        state = state + (gate / (1 + np.exp(-gate)) * up) @ layer["down"]
    last = _norm(state[-1:], weights["head"]["norm"].astype(np.float64))
    result: Doubles = (last @ weights["head"]["head"].astype(np.float64))[0]
    return result


def _norm(state: Doubles, weight: Doubles) -> Doubles:
    result: Doubles = state / np.sqrt((state**2).mean(-1, keepdims=True) + SMALL.norm_eps) * weight
    return result


def _attention(layer: dict[str, Doubles], state: Doubles) -> Doubles:
    width, queries = SMALL.head_dim, SMALL.heads
    heads = (state @ layer["qkv"]).reshape(len(state), -1, width)
    mixed = np.zeros((len(state), queries, width))
    for row in range(len(state)):
        for head in range(queries):
            shared = head // SMALL.group
            turned = _turn(heads[row, head], row)
            scores = np.array(
                [turned @ _turn(heads[past, queries + shared], past) for past in range(row + 1)]
            )
            chances = np.exp(scores / np.sqrt(width))
            chances /= chances.sum()
            values = heads[: row + 1, queries + SMALL.kv_heads + shared]
            mixed[row, head] = chances @ values
    return mixed.reshape(len(state), -1)


def _turn(head: Doubles, position: int) -> Doubles:
    """Rotary embedding as multiplication of complex numbers."""
    half = len(head) // 2
    pairs = head[:half] + 1j * head[half:]
    speeds = SMALL.rope_base ** (-2 * np.arange(half) / len(head))
    turned = pairs * np.exp(1j * position * speeds)
    return np.concatenate((turned.real, turned.imag))


def test_the_forward_pass_is_the_textbook_one(weights: Weights) -> None:
    model = Transformer(SMALL, weights, SLOTS)
    ours = logits(model, Chunk(TOKENS, 0, blocks(len(TOKENS))))
    np.testing.assert_allclose(ours[0], reference(weights, TOKENS), atol=2e-4)


@settings(max_examples=40)
@given(cuts=st.sets(st.integers(1, len(TOKENS) - 1)))
def test_cached_equals_recomputed_however_the_prompt_is_cut(
    weights: Weights, cuts: set[int]
) -> None:
    whole = logits(Transformer(SMALL, weights, SLOTS), Chunk(TOKENS, 0, blocks(len(TOKENS))))
    model = Transformer(SMALL, weights, SLOTS)
    edges = [0, *sorted(cuts), len(TOKENS)]
    for start, end in pairwise(edges):
        cached = logits(model, Chunk(TOKENS[start:end], start, blocks(len(TOKENS))))
    np.testing.assert_allclose(cached, whole, atol=2e-4)


def test_a_batch_gives_each_sequence_what_it_gets_alone(weights: Weights) -> None:
    chunks = [
        Chunk(TOKENS[:17], 0, blocks(17, first=0)),
        Chunk(TOKENS[5:6], 0, blocks(1, first=1)),
        Chunk(TOKENS[8:30], 0, blocks(22, first=2)),
    ]
    together = logits(Transformer(SMALL, weights, SLOTS), *chunks)
    for row, chunk in enumerate(chunks):
        alone = logits(Transformer(SMALL, weights, SLOTS), chunk)
        np.testing.assert_allclose(together[row], alone[0], atol=2e-4)


@pytest.mark.parametrize("shard", ["embedding", "layer-00", "layer-01", "head"])
def test_every_weight_matters(weights: Weights, shard: str) -> None:
    chunk = Chunk(TOKENS, 0, blocks(len(TOKENS)))
    before = logits(Transformer(SMALL, weights, SLOTS), chunk)
    for name, tensor in weights[shard].items():
        changed = {**weights, shard: {**weights[shard], name: tensor * np.float32(1.5)}}
        after = logits(Transformer(SMALL, changed, SLOTS), chunk)
        assert np.abs(after - before).max() > 1e-3, name


def test_one_seed_makes_one_set_of_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_weights(tmp_path / name, SMALL)
    shards = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(shards) == SMALL.layers + 3
    for shard in shards:
        assert (tmp_path / "a" / shard).read_bytes() == (tmp_path / "b" / shard).read_bytes()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _short(path: Path) -> None:
    np.save(path, np.zeros(7, dtype=np.float16))


def _pickle(path: Path) -> None:
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("damage", [_cut, _short, _pickle, Path.unlink])
def test_a_damaged_shard_is_named_in_one_line(tmp_path: Path, damage: object) -> None:
    make_weights(tmp_path / "weights", SMALL)
    shard = tmp_path / "weights" / "layer-01.npy"
    assert callable(damage)
    damage(shard)
    with pytest.raises(WeightsError) as caught:
        load_weights(tmp_path / "weights")
    assert str(shard) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"dim": 3}'])
def test_a_wrong_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"config\.json"):
        load_weights(tmp_path)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_gives_back_what_it_took(text: str) -> None:
    detokenizer = Detokenizer()
    pieces = [detokenizer.text([token]) for token in encode(text)]
    assert "".join(pieces) + detokenizer.text([], final=True) == text


def test_half_a_character_is_held_back_and_given_up_at_the_end() -> None:
    detokenizer = Detokenizer()
    first, second = "é".encode()
    assert detokenizer.text([first]) == ""
    assert detokenizer.text([second]) == "é"
    assert detokenizer.text([first, END], final=True) == "\ufffd"


def _check_plan(scheduler: Scheduler, plan: Plan) -> None:
    """What holds of every plan."""
    limits, pool = scheduler.limits, scheduler.pool
    assert plan.tokens <= limits.step_tokens
    assert len(scheduler.running) <= limits.running
    owned = [block for sequence in scheduler.running for block in sequence.blocks]
    assert len(owned) == len(set(owned)) == pool.total - pool.free
    assert all(not sequence.blocks for sequence in scheduler.waiting)
    for work in plan.work:
        assert 0 < work.count <= work.sequence.pending
        assert len(work.sequence.blocks) >= pool.needed(work.sequence.computed + work.count)
    planned = {work.sequence for work in plan.work}
    decoding = {sequence for sequence in scheduler.running if sequence.pending == 1}
    assert decoding <= planned, "a decoding sequence sits out a step"


requests = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=12
)


@given(
    requests=requests,
    running=st.integers(1, 6),
    extra=st.integers(0, 30),
    spare=st.integers(0, 30),
)
def test_the_scheduler_keeps_its_limits_and_finishes_everything(
    requests: list[tuple[int, int, int]], running: int, extra: int, spare: int
) -> None:
    largest = max(prompt + output for prompt, output, _ in requests)
    pool = BlockPool(-(-largest // BLOCK) + spare, BLOCK)
    scheduler = Scheduler(Limits(step_tokens=running + extra, running=running), pool)
    sequences = [
        Sequence(str(index), [1] * prompt, output)
        for index, (prompt, output, _) in enumerate(requests)
    ]
    arrivals = sorted(
        zip((at for _, _, at in requests), sequences, strict=True), key=lambda x: x[0]
    )
    for now in range(100_000):
        while arrivals and arrivals[0][0] <= now:
            scheduler.add(arrivals.pop(0)[1])
        if not arrivals and not scheduler.busy:
            break
        plan = scheduler.plan()
        _check_plan(scheduler, plan)
        assert plan.work or not scheduler.busy, "nothing runs although something could"
        scheduler.update(plan, [2] * len(plan.work))
    assert [len(each.output) for each in sequences] == [output for _, output, _ in requests]
    assert pool.free == pool.total


def test_removing_a_sequence_gives_its_blocks_back() -> None:
    scheduler = Scheduler(Limits(8, 2), BlockPool(10, BLOCK))
    waiting, running = Sequence("w", [1] * 30, 4), Sequence("r", [1] * 20, 4)
    scheduler.add(running)
    scheduler.plan()
    scheduler.add(waiting)
    assert scheduler.remove(running)
    assert scheduler.remove(waiting)
    assert not scheduler.remove(running)
    assert scheduler.pool.free == 10
    assert not scheduler.busy


def test_limits_that_would_starve_decoding_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Limits(step_tokens=3, running=4)


class Watched(Scheduler):
    """A scheduler that remembers its plans."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        super().__init__(limits, pool)
        self.plans: list[Plan] = []

    def plan(self) -> Plan:
        """Plan as ever."""
        self.plans.append(super().plan())
        return self.plans[-1]


def generate(model: Model, scheduler: Scheduler, sequences: list[Sequence]) -> dict[str, str]:
    """Run sequences through an engine in its thread; how each ended."""
    delivered: queue.Queue[Output] = queue.Queue()

    def deliver(outputs: list[Output]) -> None:
        for output in outputs:
            delivered.put(output)

    engine = Engine(model, scheduler, deliver)
    for sequence in sequences:
        engine.submit(sequence)
    engine.start()
    reasons: dict[str, str] = {}
    while len(reasons) < len(sequences):
        output = delivered.get(timeout=60)
        if output.finish_reason is not None:
            reasons[output.sequence.id] = output.finish_reason
    engine.stop()
    return reasons


def some_sequences() -> list[Sequence]:
    return [Sequence(str(n), TOKENS[n : 2 * n + 6], 12 + n, ignore_end=True) for n in range(6)]


def test_preemption_changes_no_token(weights: Weights) -> None:
    roomy, tight = some_sequences(), some_sequences()
    wide = Watched(Limits(16, 6), BlockPool(64, BLOCK))
    generate(Transformer(SMALL, weights, 64 * BLOCK), wide, roomy)
    narrow = Watched(Limits(16, 6), BlockPool(12, BLOCK))
    generate(Transformer(SMALL, weights, 12 * BLOCK), narrow, tight)
    assert not any(plan.preempted for plan in wide.plans)
    assert any(plan.preempted for plan in narrow.plans)
    phases = {work.phase for plan in narrow.plans for work in plan.work}
    assert phases == {"prefill", "decode", "recompute"}
    assert [each.output for each in tight] == [each.output for each in roomy]


def test_generation_stops_at_the_end_token_unless_told_otherwise() -> None:
    class AlwaysEnd:
        config = SMALL

        def forward(self, batch: Batch) -> NDArray[np.float32]:
            return np.eye(1, SMALL.vocab, END, dtype=np.float32).repeat(len(batch.last), axis=0)

    stopping, going = Sequence("s", [1], 9), Sequence("g", [1], 9, ignore_end=True)
    reasons = generate(AlwaysEnd(), Scheduler(Limits(), BlockPool(8, BLOCK)), [stopping, going])
    assert reasons == {"s": "stop", "g": "length"}
    assert (stopping.output, going.output) == ([END], [END] * 9)


def test_a_failing_model_ends_every_request_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        config = SMALL

        def forward(self, batch: Batch) -> NDArray[np.float32]:
            raise FloatingPointError("broken on purpose")

    reasons = generate(Broken(), Scheduler(Limits(), BlockPool(8, BLOCK)), some_sequences())
    assert set(reasons.values()) == {"error"}
    assert "broken on purpose" in capsys.readouterr().err


def test_the_torch_model_computes_the_same(weights: Weights) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the torch example is not tried")
    from examples.server.torch_model import load_torch_model

    model, ours = load_torch_model(SMALL, weights, SLOTS), Transformer(SMALL, weights, SLOTS)
    one, other = blocks(30), blocks(18, first=1)
    prefill = Batch.of([Chunk(TOKENS[:9], 0, one), Chunk(TOKENS[5:22], 0, other)], BLOCK)
    mixed = Batch.of([Chunk(TOKENS[9:30], 9, one), Chunk(TOKENS[22:23], 17, other)], BLOCK)
    for batch in (prefill, mixed):
        np.testing.assert_allclose(model.forward(batch), ours.forward(batch), atol=2e-4)
