"""The engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from torch import device_of


class AsyncLLM:
    """An engine without a core."""

    @classmethod
    def from_engine_args(cls, arguments: Any) -> AsyncLLM:
        """The engine."""
        return cls()

    async def generate(self, prompt: Any, sampling: Any, id: str) -> AsyncIterator[int]:
        """Three tokens, five kernels each."""
        for number in range(3):
            device_of().launch("stand_in_token", 5)
            await asyncio.sleep(0)
            yield number

    async def start_profile(self) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing."""
