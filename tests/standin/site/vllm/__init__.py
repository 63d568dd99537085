"""A stand-in for vLLM: an engine whose requests launch some kernels each."""

from typing import Any


class Named:
    """Arguments by name."""

    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


class AsyncEngineArgs(Named):
    """Of the engine."""


class SamplingParams(Named):
    """Of a request."""
