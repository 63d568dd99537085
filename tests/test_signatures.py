"""Wrappers of SGLang, LMDeploy, transformers and llama-cpp-python against real versions of each.

The tables are made by `tests/engines/signatures.py` from wheels. TensorRT-LLM has no table: no
wheel of it could be opened.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import signatures

TABLES = Path(__file__).with_name("data") / "signatures"
VERSIONS = {
    "sglang": ("0.4.10.post2", "0.5.3.post3", "0.5.6.post2", "0.5.13", "0.5.23"),
    "lmdeploy": ("0.9.2", "0.10.2", "0.12.3", "0.15.0", "0.18.0"),
    "transformers": ("4.40.2", "4.46.3", "4.51.3", "4.57.6", "5.24.0"),
    "llama_cpp": ("0.3.35",),
}
EVERYWHERE = {
    "sglang": {
        "Scheduler._add_request_to_queue": "self req",
        "Scheduler.get_next_batch_to_run": "self",
        "Scheduler.run_batch": "self batch",
        "Scheduler.process_batch_result": "self batch result",
        "ScheduleBatch.retract_decode": "self",
        "TpModelWorker.forward_batch_generation": "self",
        "TokenizerManager.generate_request": "self obj request?",
        "TokenizerManager._tokenize_one_request": "self obj",
        "TokenizerManager._send_one_request": "self",
        "TokenizerManager._handle_batch_output": "self recv_obj",
    },
    "lmdeploy": {
        "EngineInstance.async_stream_infer": "self session_id input_ids",
        "TurboMindInstance.async_stream_infer": "self session_id input_ids",
        "Scheduler.schedule": "self is_prefill",
    },
    "transformers": {
        "GenerationMixin.generate": "self inputs?",
        "GenerationMixin.prepare_inputs_for_generation": "self",
        "GenerationMixin._update_model_kwargs_for_generation": "self outputs",
        "StoppingCriteriaList.__call__": "self input_ids",
        "BatchEncoding.to": "self device",
        "PreTrainedTokenizerBase.__call__": "self",
        "PreTrainedTokenizerBase.decode": "self",
    },
    "llama_cpp": {
        "Llama._create_completion": "self prompt",
        "Llama.generate": "self tokens",
        "Llama.eval": "self tokens",
        "Llama.sample": "self",
    },
}
"""What explanations rest on, with the parameters that wrappers take by place."""

SOMEWHERE = {
    "lmdeploy": ("BaseModelAgent._async_step", "BaseModelAgent._async_step_background"),
}
"""Of these every version must have one, with `self inputs` in front."""


def _rows(package: str) -> list[list[str]]:
    return [line.split("\t") for line in (TABLES / f"{package}.tsv").read_text().splitlines()]


@pytest.mark.parametrize("package", VERSIONS)
def test_every_target_was_looked_up_in_every_version(package: str) -> None:
    looked_up = {tuple(row[:3]) for row in _rows(package)}
    targets = signatures.targets(package)
    assert looked_up == {(v, *target) for v in VERSIONS[package] for target in targets}


@pytest.mark.parametrize(
    ("package", "version"), [(name, v) for name, all in VERSIONS.items() for v in all]
)
def test_what_explanations_rest_on_is_in_every_version(package: str, version: str) -> None:
    told = {name: found for v, _, name, found in _rows(package) if v == version and found}
    for name, leading in EVERYWHERE[package].items():
        places = leading.split()
        assert told[name].split()[: len(places)] == places, name
    for names in [SOMEWHERE[package]] if package in SOMEWHERE else []:
        found = [told[name] for name in names if name in told]
        assert found
        assert all(each.startswith("self inputs") for each in found)
