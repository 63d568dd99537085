"""A load generator for `serve.py`: `python examples/load.py --url http://127.0.0.1:8000`.

Standard library only. Open loop (`--rate`: requests arrive whether or not the server keeps up) or
closed loop (`--concurrency`). Where RCA-LLM is installed and the generator is traced together with
the server, it marks when each request was submitted, so that the report knows the client's time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit

# The load generator is useful without it.
PROBES = find_spec("rca_llm") is not None
WORDS = ("cache", "token", "batch", "kernel", "layer", "queue", "prefill", "decode", "stream")


@dataclass(frozen=True)
class Job:
    """A request to send: after `delay_s` seconds in an open loop, at its turn in a closed one."""

    id: str
    prompt: str
    max_tokens: int
    delay_s: float


@dataclass
class Outcome:
    """What the client saw of one request; times are ns of the monotonic clock, None = never."""

    id: str
    submit_ns: int = 0
    token_ns: list[int] = field(default_factory=list[int])
    end_ns: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def latency_ns(self) -> int:
        """From submission to the end of the response."""
        return self.end_ns - self.submit_ns

    @property
    def ttft_ns(self) -> int | None:
        """From submission to the first token; None where none came."""
        return self.token_ns[0] - self.submit_ns if self.token_ns else None

    @property
    def itl_ns(self) -> list[int]:
        """The times between successive tokens."""
        return [later - earlier for earlier, later in pairwise(self.token_ns)]


def make_jobs(arguments: argparse.Namespace) -> list[Job]:
    """Requests of mixed lengths; the same seed makes the same ones."""
    chance = random.Random(arguments.seed)
    delay_s = 0.0
    jobs: list[Job] = []
    for number in range(arguments.requests):
        length = log_uniform(chance, *arguments.prompt_tokens)
        jobs.append(
            Job(
                id=f"{arguments.id_prefix}-{number:04d}",
                prompt=make_prompt(chance, length),
                max_tokens=log_uniform(chance, *arguments.output_tokens),
                delay_s=delay_s,
            )
        )
        delay_s += chance.expovariate(arguments.rate) if arguments.rate else 0.0
    return jobs


def log_uniform(chance: random.Random, low: int, high: int) -> int:
    """A length between the two; short ones are as frequent as long ones, octave by octave."""
    return round(low * math.exp(math.log(high / low) * chance.random()))


def make_prompt(chance: random.Random, length: int) -> str:
    """Words of `length` bytes together."""
    text = ""
    while len(text) < length:
        text += chance.choice(WORDS) + " "
    return text[:length]


def mark_submission(id: str) -> None:
    """Tell the trace, where there is one, that the client sends this request now."""
    if PROBES:
        from rca_llm import request

        request(id).client_submit()


async def complete(host: str, port: int, job: Job) -> Outcome:
    """Send one request, read its stream, and note when each token came."""
    outcome = Outcome(job.id, submit_ns=monotonic_ns())
    mark_submission(job.id)
    try:
        await _exchange(host, port, job, outcome)
    except (OSError, EOFError, ValueError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.end_ns = monotonic_ns()
    if outcome.error is None and outcome.finish_reason not in ("stop", "length"):
        outcome.error = f"ended by {outcome.finish_reason}"
    return outcome


async def _exchange(host: str, port: int, job: Job, outcome: Outcome) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(encode_request(host, port, job))
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass  # the headers: the server is known to stream in chunks
        if status != 200:
            outcome.error = f"HTTP {status}"
            return
        async for event in events(reader):
            note(event, outcome)
    finally:
        writer.close()


def encode_request(host: str, port: int, job: Job) -> bytes:
    """The request as bytes."""
    fields = {
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "stream": True,
        # An untrained model ends at random; fixed lengths make two runs comparable.
        "ignore_eos": True,
    }
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nX-Request-Id: {job.id}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The server-sent events of a chunked response, up to `[DONE]`."""
    pending = b""
    while True:
        size = int(await reader.readline(), 16)
        pending += (await reader.readexactly(size + 2))[:-2]
        *whole, pending = pending.split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            yield json.loads(data)
        if size == 0:
            raise EOFError("the stream ended early")


def note(event: dict[str, Any], outcome: Outcome) -> None:
    """Take in one event, which is one token or the end without one."""
    outcome.finish_reason = event["choices"][0]["finish_reason"]
    if outcome.finish_reason in (None, "stop", "length"):
        outcome.token_ns.append(monotonic_ns())
    if "usage" in event:
        outcome.prompt_tokens = event["usage"]["prompt_tokens"]
        outcome.output_tokens = event["usage"]["completion_tokens"]


async def run(arguments: argparse.Namespace, jobs: Sequence[Job]) -> list[Outcome]:
    """Send all requests, open or closed loop, and wait for their ends."""
    address = urlsplit(str(arguments.url))
    host, port = address.hostname or "127.0.0.1", address.port or 80
    turns = asyncio.Semaphore(arguments.concurrency or len(jobs))

    async def one(job: Job) -> Outcome:
        await asyncio.sleep(job.delay_s)
        async with turns:
            return await complete(host, port, job)

    return list(await asyncio.gather(*map(one, jobs)))


def percentile(values: Sequence[int], share: float) -> int | None:
    """The percentile by nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts, rates (a second), and percentiles (ns) over the requests that succeeded."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    start = min(outcome.submit_ns for outcome in outcomes)
    seconds = (max(outcome.end_ns for outcome in outcomes) - start) / 1e9
    tokens = sum(outcome.output_tokens or 0 for outcome in good)
    series = {
        "latency_ns": [outcome.latency_ns for outcome in good],
        "ttft_ns": [outcome.ttft_ns for outcome in good if outcome.ttft_ns is not None],
        "itl_ns": [gap for outcome in good for gap in outcome.itl_ns],
    }
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "seconds": round(seconds, 3),
        "requests_s": round(len(good) / seconds, 2),
        "output_tokens_s": round(tokens / seconds, 1),
        **{
            name: {f"p{share}": percentile(values, share / 100) for share in (50, 90, 99)}
            for name, values in series.items()
        },
    }


def print_table(outcomes: Sequence[Outcome], rows: int) -> None:
    """The slowest requests, then the percentiles, in milliseconds."""
    slowest = sorted(outcomes, key=lambda outcome: -outcome.latency_ns)[:rows]
    print(f"{'request':<14}{'prompt':>8}{'output':>8}{'ttft ms':>10}{'latency ms':>12}  error")
    for outcome in slowest:
        print(
            f"{outcome.id:<14}{number(outcome.prompt_tokens):>8}{number(outcome.output_tokens):>8}"
            f"{milliseconds(outcome.ttft_ns):>10}{milliseconds(outcome.latency_ns):>12}"
            f"  {outcome.error or ''}"
        )
    summary = summarize(outcomes)
    print(f"\n{'':<14}{'p50':>10}{'p90':>10}{'p99':>10}")
    for name in ("ttft", "itl", "latency"):
        cells = (milliseconds(value) for value in summary[f"{name}_ns"].values())
        print(f"{name + ' ms':<14}" + "".join(f"{cell:>10}" for cell in cells))
    print(
        f"\n{summary['requests']} requests, {summary['failed']} failed, {summary['seconds']} s, "
        f"{summary['requests_s']} requests/s, {summary['output_tokens_s']} output tokens/s"
    )


def number(value: int | None) -> str:
    """A count, or a dash where it is unknown."""
    return "-" if value is None else str(value)


def milliseconds(value: int | None) -> str:
    """Nanoseconds as milliseconds, or a dash where they are unknown."""
    return "-" if value is None else f"{value / 1e6:.1f}"


def write_json(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Summary and every request as JSON."""
    requests = [
        {**asdict(outcome), "latency_ns": outcome.latency_ns, "ttft_ns": outcome.ttft_ns}
        for outcome in outcomes
    ]
    text = json.dumps({"summary": summarize(outcomes), "requests": requests}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def length_range(text: str) -> tuple[int, int]:
    """Parse `LOW:HIGH`."""
    low, _, high = text.partition(":")
    if not 0 < int(low) <= int(high or low):
        raise ValueError(text)
    return int(low), int(high or low)


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="A load generator for serve.py.")
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000")
    add("--requests", type=int, default=50)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=float, help="mean arrivals a second, exponential gaps")
    pace.add_argument("--concurrency", type=int, help="requests under way at a time")
    add("--prompt-tokens", type=length_range, default=(16, 400), metavar="LOW:HIGH")
    add("--output-tokens", type=length_range, default=(8, 64), metavar="LOW:HIGH")
    add("--seed", type=int, default=0)
    add("--id-prefix", default="load")
    add("--rows", type=int, default=10, help="slowest requests to print")
    add("--json", type=Path, help="write every request there")
    return parser


def main() -> int:
    """Run the load and print what came of it; 1 where a request failed."""
    arguments = options().parse_args()
    outcomes = asyncio.run(run(arguments, make_jobs(arguments)))
    print_table(outcomes, arguments.rows)
    if arguments.json is not None:
        write_json(arguments.json, outcomes)
    return int(any(outcome.error is not None for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
