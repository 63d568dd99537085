"""A vLLM engine that serves bursts of requests when told to: the program that `burst.py` traces.

The engine runs as in a server: `AsyncLLM` in this process, its EngineCore in a child. Every answer
holds times on CLOCK_MONOTONIC as the client of the engine sees them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

from seat import Seat

PROMPTS = (7, 81, 15, 601, 25, 181, 11, 41, 301, 17, 121, 61)
"""Tokens of the prompts of one burst; each answer has `OUTPUT` tokens."""
OUTPUT = 24


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, help="engine arguments as JSON")
    parser.add_argument("--profiles", help="where torch.profiler may write")
    return parser.parse_args()


class Server:
    """The engine and its requests."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from vllm import AsyncEngineArgs, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        chosen: dict[str, Any] = json.loads(arguments.engine)
        if arguments.profiles:
            from vllm.config import ProfilerConfig

            chosen["profiler_config"] = ProfilerConfig(
                profiler="torch", torch_profiler_dir=arguments.profiles,
                torch_profiler_with_stack=False, ignore_frontend=True,
            )  # fmt: skip
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**chosen))
        self.sampling = SamplingParams(
            max_tokens=OUTPUT, ignore_eos=True, temperature=0.0, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        numbers = random.Random(0)
        self.prompts = [[numbers.randrange(3, 250) for _ in range(count)] for count in PROMPTS]
        self.served = 0

    async def request(self, prompt: list[int]) -> tuple[int, int, int]:
        """Serve one request: times of its submission, its first token and its end."""
        self.served += 1
        begun, first = time.monotonic_ns(), 0
        tokens: Any = {"prompt_token_ids": prompt}
        async for _ in self.engine.generate(tokens, self.sampling, f"request-{self.served}"):
            first = first or time.monotonic_ns()
        return begun, first, time.monotonic_ns()

    async def burst(self) -> dict[str, Any]:
        """All prompts at once: wall time, and the time to each one's first token."""
        times = await asyncio.gather(*map(self.request, self.prompts))
        begun = min(times)[0]
        return {
            "wall": max(end for _, _, end in times) - begun,
            "ttft": [first - submitted for submitted, first, _ in times],
        }

    async def serial(self) -> dict[str, Any]:
        """The prompts one after another, which makes the same kernels in every process."""
        begun = time.monotonic_ns()
        for prompt in self.prompts:
            await self.request(prompt)
        return {"wall": time.monotonic_ns() - begun}

    async def profile(self) -> dict[str, Any]:
        """Switch torch.profiler on, as vLLM's own endpoint does."""
        begun = time.monotonic_ns()
        await self.engine.start_profile()
        return {"took": time.monotonic_ns() - begun}


async def serve(server: Server) -> None:
    """Do what the benchmark asks for, until it lets go."""
    seat, loop = Seat(), asyncio.get_running_loop()
    actions = {"burst": server.burst, "serial": server.serial, "profile": server.profile}
    while True:
        message = await loop.run_in_executor(None, seat.wait)
        if message["do"] == "quit":
            return
        seat.answer(await actions[message["do"]]())


async def main() -> None:
    """Start the engine and serve."""
    server = Server(options())
    try:
        await serve(server)
    finally:
        server.engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
