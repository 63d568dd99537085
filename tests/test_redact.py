"""Secrets leave command lines; everything else stays readable."""

from __future__ import annotations

import pytest

from rca_llm.redact import command


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["serve", "--api-key", "abc"], ["serve", "--api-key", "***"]),
        (["serve", "--api-key", "-abc"], ["serve", "--api-key", "***"]),
        (["serve", "--hf-token=abc"], ["serve", "--hf-token=***"]),
        (["env", "HF_TOKEN=abc", "x"], ["env", "HF_TOKEN=***", "x"]),
        (["AWS_SECRET_ACCESS_KEY=abc"], ["AWS_SECRET_ACCESS_KEY=***"]),
        (["x", "--max-num-batched-tokens", "512"], ["x", "--max-num-batched-tokens", "512"]),
        (["x", "--max-tokens=512"], ["x", "--max-tokens=512"]),
        (["x", "--tokenizer", "meta/llama"], ["x", "--tokenizer", "meta/llama"]),
        (["x", "--use-auth", "--model", "m"], ["x", "--use-auth", "--model", "m"]),
        (["x", "redis://me:pw@host/0"], ["x", "redis://***@host/0"]),
        (["curl", "http://h/?a=1&token=abc&b=2"], ["curl", "http://h/?a=1&token=***&b=2"]),
        (["curl", "-H", "Authorization: Bearer abc"], ["curl", "-H", "Authorization: ***"]),
        (["curl", "http://u:pw@h/?key=abc"], ["curl", "http://***@h/?key=***"]),
        (["mysql", "-ps3cr3tP", "-u", "me"], ["mysql", "-p***", "-u", "me"]),
        (["x", "-p8000", "-p", "8000", "-path"], ["x", "-p8000", "-p", "8000", "-path"]),
        (["docker", "-p8000:8000/tcp"], ["docker", "-p8000:8000/tcp"]),
        (['{"api_key": "abc"}'], ['{"api_key": "***"}']),
        (
            ['{"a": 1, "accessToken":"a=b\\"c", "n": "x"}'],
            ['{"a": 1, "accessToken":"***", "n": "x"}'],
        ),
        (["--config={'password': 'abc'}"], ["--config={'password': '***'}"]),
        (['--c={"max_tokens": "512"}'], ['--c={"max_tokens": "512"}']),
        (["x", "--accessToken", "abc"], ["x", "--accessToken", "***"]),
        (["x", "hf_abcdefghijkl"], ["x", "***"]),
        (["x", "sk-proj-abcdefghijkl"], ["x", "***"]),
        (["python", "-c", "key = 'abc'"], ["python", "-c", "***"]),
        (["sh", "-c", "TOKEN=abc serve"], ["sh", "-c", "***"]),
        (["vllm", "serve", "m", "--port", "8000"], ["vllm", "serve", "m", "--port", "8000"]),
        ([], []),
    ],
)
def test_command(argv: list[str], kept: list[str]) -> None:
    assert command(argv) == kept
