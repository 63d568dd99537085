"""Causes at the service's edges: tokenising, serialising, and clients that read slowly."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from time import perf_counter_ns

from rca_llm import span
from rca_llm.inject.arithmetic import np
from rca_llm.inject.catalogue import Order
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Truth

CHUNK = 1 << 17
"""Bytes that a token's message has."""


def run(order: Order) -> Truth:
    """Serve with a slow tokeniser, large messages, or slow clients."""
    ledger, load = Ledger(), Load(first=order.first)
    made = {"tokeniser": Tokeniser, "serialisation": Messages}
    if order.cause.name == "slow_client":
        slow = SlowClients(0 if order.without else order.magnitude, ledger, load)
        Service(load, slow, order.seed).run()
        slow.account()
        return Truth(order, ledger)
    fault = Fault(0, ledger) if order.without else made[order.cause.name](order.magnitude, ledger)
    Service(load, fault, order.seed).run()
    return Truth(order, ledger)


class Tokeniser(Fault):
    """A tokeniser that takes `magnitude` ms: look-ups by sorting, which leaves the lock free."""

    def begin(self) -> None:
        """Find out how much text takes as long as is wanted."""
        self._text = np.random.default_rng(0).integers(0, 50_000, 20_000)
        self._passes = 1
        quickest = min(self._timed() for _ in range(5))
        self._passes = max(round(self.magnitude * 1e6 / quickest), 1)

    def _timed(self) -> int:
        begun = perf_counter_ns()
        self._tokenise()
        return perf_counter_ns() - begun

    def _tokenise(self) -> None:
        for _ in range(self._passes):
            np.sort(self._text, kind="stable")

    def before(self, id: str) -> None:
        """Tokenise the request's prompt."""
        with self.ledger.delay(id), span("tokenise", kind="tokenize", request=id):
            self._tokenise()


class Messages(Fault):
    """`magnitude` thousand objects a step, pickled for another process as engines do."""

    def begin(self) -> None:
        """Start the process that takes the messages."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._link: Connection = here
        self._process = context.Process(target=take, args=(there,), daemon=True)
        self._process.start()
        there.close()
        count = int(self.magnitude * 1000)
        self._message = [{"id": n, "tokens": (n, n + 1), "text": str(n)} for n in range(count)]

    def in_step(self, number: int) -> None:
        """Pickle and send."""
        with self.ledger.delay(), span("pickle outputs", kind="serialize"):
            data = pickle.dumps(self._message)
            self._link.send_bytes(data[:CHUNK])

    def end(self) -> None:
        """End the process."""
        self._link.send_bytes(b"")
        self._process.join()
        self._link.close()


def take(link: Connection) -> None:
    """Take messages until an empty one comes."""
    while link.recv_bytes():
        pass


_READER = """
import socket, sys, time
pause = float(sys.argv[1]) / 1000
chunk = int(sys.argv[2])
ends = [socket.socket(fileno=int(number)) for number in sys.argv[3:]]
import threading
def read(end):
    while True:
        time.sleep(pause)
        left = chunk
        while left:
            data = end.recv(left)
            if not data:
                return
            left -= len(data)
threads = [threading.Thread(target=read, args=(end,)) for end in ends]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


class SlowClients(Fault):
    """Clients that read a token's message only every `magnitude` ms; sending blocks meanwhile."""

    delivers = True

    def __init__(self, magnitude: float, ledger: Ledger, load: Load) -> None:
        super().__init__(magnitude, ledger)
        self.load = load

    def begin(self) -> None:
        """Open a connection a request and start the process that reads them."""
        pairs = [socket.socketpair() for _ in range(self.load.requests)]
        for mine, theirs in pairs:
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ends = [str(theirs.fileno()) for _, theirs in pairs]
        self._reader = subprocess.Popen(
            [sys.executable, "-I", "-c", _READER, str(self.magnitude), str(CHUNK), *ends],
            pass_fds=[theirs.fileno() for _, theirs in pairs],
        )
        self._links = {self.load.id(number): mine for number, (mine, _) in enumerate(pairs)}
        self._sent: list[tuple[str, int, int]] = []
        for _, theirs in pairs:
            theirs.close()
        self.ledger.measured_by = "the wall clock around sends, after the engine's last token"

    def deliver(self, id: str, token: int) -> None:
        """Send a token's message."""
        begun = perf_counter_ns()
        with span("send", kind="network", request=id, bytes=CHUNK):
            self._links[id].sendall(bytes(CHUNK))
        self._sent.append((id, begun, perf_counter_ns()))

    def end(self) -> None:
        """Close the connections; the reader then ends."""
        for link in self._links.values():
            link.close()
        self._reader.wait()

    def account(self) -> None:
        """Write down what the sends cost: that after the engine was done with the request."""
        for id, begun, ended in self._sent:
            begun = max(begun, self.ledger.served(id).last_token)
            self.ledger.add(begun, ended, ended - begun, id)
