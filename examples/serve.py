"""A small inference server: `python examples/serve.py --port 8000`.

NumPy and the standard library do the work; every phase of a request carries a probe. Trace it with
`rca-llm trace -- python examples/serve.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from server.api import Api, Capacity
from server.blocks import BlockPool
from server.config import ModelConfig
from server.engine import Deliver, Engine
from server.http import serve_connection
from server.model import Model, Transformer
from server.scheduler import Limits, Scheduler
from server.weights import Weights, WeightsError, load_weights, make_weights

Build = Callable[[ModelConfig, Weights, int], Model]
"""Makes a model of its sizes, its weights and the slots of its KV cache."""


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="A small inference server in NumPy.")
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 picks a free one")
    add("--port-file", type=Path, help="write the port there once listening")
    add(
        "--weights",
        type=Path,
        default=Path(tempfile.gettempdir()) / "rca-llm-example-weights",
        help="folder of the weights; made when it is not there (default: %(default)s)",
    )
    add("--layers", type=int, default=ModelConfig.layers, help="layers of weights to be made")
    add("--kv-blocks", type=int, default=256, help="blocks of the KV cache (default: %(default)s)")
    add("--block-size", type=int, default=16, help="tokens a block (default: %(default)s)")
    add("--step-tokens", type=int, default=Limits.step_tokens, help="token budget of a step")
    add("--max-running", type=int, default=Limits.running, help="sequences in a step")
    add("--max-waiting", type=int, default=Capacity.waiting, help="more are answered 503")
    add("--grace", type=float, default=5.0, help="seconds for open requests after SIGTERM")
    add("--access-log", type=Path, help="append one JSON line a request")
    return parser


def load_model(arguments: argparse.Namespace, build: Build) -> Model:
    """Make the weights where there are none, and load them."""
    if not (arguments.weights / "config.json").exists():
        make_weights(arguments.weights, ModelConfig(layers=arguments.layers))
    config, weights = load_weights(arguments.weights)
    return build(config, weights, arguments.kv_blocks * arguments.block_size)


async def serve(arguments: argparse.Namespace, model: Model, log: TextIO | None) -> None:
    """Serve until SIGTERM or SIGINT, then let open requests end; a second signal aborts them."""
    pool = BlockPool(arguments.kv_blocks, arguments.block_size)
    scheduler = Scheduler(Limits(arguments.step_tokens, arguments.max_running), pool)

    def make_engine(deliver: Deliver) -> Engine:
        return Engine(model, scheduler, deliver)

    positions = min(model.config.max_positions, pool.total * pool.block_size)
    api = Api(make_engine, Capacity(positions, arguments.max_waiting), log)
    stopping = stop_signals(api)
    server = await asyncio.start_server(
        partial(serve_connection, api.handle), arguments.host, arguments.port
    )
    api.engine.start()
    watcher = asyncio.create_task(api.watch())
    announce(server.sockets[0].getsockname()[:2], arguments.port_file)
    await stopping.wait()
    server.close()
    await api.drain(arguments.grace)
    watcher.cancel()
    api.engine.stop()


def stop_signals(api: Api) -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            api.abort_all()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopping


def announce(address: tuple[str, int], port_file: Path | None) -> None:
    """Say where the server listens; the port file appears whole."""
    host, port = address
    print(f"listening on http://{host}:{port}", flush=True)
    if port_file is not None:
        partial_file = port_file.with_name(f".{port_file.name}.{os.getpid()}")
        partial_file.write_text(f"{port}\n", encoding="ascii")
        os.replace(partial_file, port_file)


def run(arguments: argparse.Namespace, model: Model) -> None:
    """Open the access log and serve."""
    with contextlib.ExitStack() as stack:
        log = None
        if arguments.access_log is not None:
            log = stack.enter_context(arguments.access_log.open("a", encoding="utf-8"))
        asyncio.run(serve(arguments, model, log))


def main(build: Build = Transformer) -> int:
    """Load the model that `build` makes and serve; 2 with a line on stderr where that fails."""
    arguments = options().parse_args()
    try:
        run(arguments, load_model(arguments, build))
    except (WeightsError, OSError, ValueError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
