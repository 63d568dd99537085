"""Where PyTorch's profiler is defined."""

from torch import profile

__all__ = ["profile"]
