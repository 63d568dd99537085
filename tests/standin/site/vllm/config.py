"""Where the profiler's settings are."""

from vllm import Named


class ProfilerConfig(Named):
    """The profiler's settings."""
