"""A streaming FastAPI application that stamps its own requests, for `test_asgi.py`.

    python streaming_app.py PORT FOLDER [h11|httptools]

One thread computes a piece of one answer at a time, as a small model on a CPU would. The stamps of
every request go to FOLDER/stamps.json when the server ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from rca_llm import span

stamps: dict[str, dict[str, int]] = {}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Write the stamps before the server lets the signal that ended it end the process."""
    yield
    (Path(sys.argv[2]) / "stamps.json").write_text(json.dumps(stamps))


worker = ThreadPoolExecutor(1)
app = FastAPI(lifespan=lifespan)
App = Callable[[Any, Any, Any], Awaitable[None]]


class Stamped:
    """Middleware around everything: when the application saw a request begin and end."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        own = stamps.setdefault(headers.get("x-request-id", "none"), {})
        own["begin"] = time.monotonic_ns()

        async def noted(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                own.setdefault("first", time.monotonic_ns())
                own["last"] = time.monotonic_ns()

        await self.app(scope, receive, noted)


def compute(seconds: float, number: int) -> str:
    """Busy for so long, most of it without the interpreter's lock."""
    with span("compute piece", kind="compute"):
        ends, square = time.monotonic() + seconds, np.ones((200, 200), np.float32)
        while time.monotonic() < ends:
            square = square @ square / 200
    return f"piece {number} {square[0, 0]:.0f}\n"


async def pieces(count: int, seconds: float) -> AsyncIterator[str]:
    """One piece of an answer after another; between two, others get their turn."""
    loop = asyncio.get_running_loop()
    for number in range(count):
        yield await loop.run_in_executor(worker, compute, seconds, number)


@app.post("/generate")
async def generate(request: Request) -> StreamingResponse:
    """Answer with as many pieces as the body asks for."""
    asked: dict[str, Any] = await request.json()
    return StreamingResponse(pieces(asked["count"], asked["seconds"]), media_type="text/plain")


@app.post("/sleeps-and-computes")
def sleeps_and_computes() -> dict[str, bool]:
    """An endpoint that is no coroutine: the server runs it in a thread of its pool."""
    time.sleep(0.15)
    ends = time.thread_time() + 0.15
    while time.thread_time() < ends:
        pass
    return {"done": True}


@app.get("/fails")
async def fails() -> None:
    """An answer that says no."""
    raise HTTPException(503)


@app.post("/breaks")
async def breaks() -> None:
    """An application that raises."""
    raise ValueError("broken")


@app.get("/health")
async def health() -> dict[str, str]:
    """Asked before the load begins."""
    return {"state": "up"}


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    port = int(sys.argv[1])
    chosen: Any = sys.argv[3] if len(sys.argv) > 3 else "auto"
    app.add_middleware(Stamped)
    config = uvicorn.Config(app, port=port, http=chosen, log_level="error", access_log=False)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
