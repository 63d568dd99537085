"""The demonstration behind `make demo`: the server under more load than it can take.

Starts `serve.py` on a free port, sends requests faster than it answers them, so that a queue
forms and the KV cache runs out now and then, stops it with SIGTERM, and ends with its status.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
START_SECONDS = 60.0
STOP_SECONDS = 30.0


def start_server(port_file: Path, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start the server, which will write its port to that file."""
    folder = port_file.parent
    command = [sys.executable, str(HERE / "serve.py"), "--port", "0"]
    command += ["--port-file", str(port_file), "--access-log", str(folder / "access.log")]
    command += ["--weights", str(arguments.weights or folder / "weights")]
    command += ["--kv-blocks", str(arguments.kv_blocks)]
    return subprocess.Popen(command)


def wait_for_port(port_file: Path, server: subprocess.Popen[bytes]) -> int:
    """The server's port, once it listens; ends the demonstration where it never does."""
    deadline = time.monotonic() + START_SECONDS
    while not port_file.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("demo.py: the server did not start")
        time.sleep(0.05)
    return int(port_file.read_text(encoding="ascii"))


def send_load(port: int, arguments: argparse.Namespace) -> int:
    """Run the load generator to its end; its status."""
    command = [sys.executable, str(HERE / "load.py"), "--url", f"http://127.0.0.1:{port}"]
    command += ["--requests", str(arguments.requests), "--rate", str(arguments.rate)]
    if arguments.json is not None:
        command += ["--json", str(arguments.json)]
    return subprocess.run(command, check=False).returncode


def stop_server(server: subprocess.Popen[bytes]) -> int:
    """Ask the server to end, and insist where it does not; its status."""
    server.send_signal(signal.SIGTERM)
    try:
        return server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def raise_exit(number: int, _frame: object) -> None:
    """End through the `finally` that stops the server."""
    raise SystemExit(128 + number)


def main() -> int:
    """Server, load, stop; the server's status, or the load generator's where only that failed."""
    parser = argparse.ArgumentParser(description="The example server under load.")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rate", type=float, default=40.0, help="arrivals a second")
    parser.add_argument("--kv-blocks", type=int, default=80, help="a small cache: preemption shows")
    parser.add_argument("--weights", type=Path, help="keep the weights there")
    parser.add_argument("--json", type=Path, help="write the client's times there")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, raise_exit)
    with tempfile.TemporaryDirectory(prefix="rca-llm-demo-") as folder:
        port_file = Path(folder) / "port"
        server = start_server(port_file, arguments)
        try:
            load_status = send_load(wait_for_port(port_file, server), arguments)
        finally:
            status = stop_server(server)
    return status if status else load_status


if __name__ == "__main__":
    sys.exit(main())
