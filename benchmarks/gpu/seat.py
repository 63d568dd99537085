"""A program's side of working in turns: it waits at a socket for what to do, and answers.

The benchmark that started the program (`turns.py`) names socket and seat in the environment.
Standard library only: it is imported by programs that are measured.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

SOCKET = "RCA_TURNS_SOCKET"
NAME = "RCA_TURNS_SEAT"


class Seat:
    """The connection; one message is one line of JSON, each way."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[SOCKET])
        self._file = self._socket.makefile("rw", encoding="utf-8")
        self.answer({"seat": os.environ[NAME], "pid": os.getpid()})

    def wait(self) -> dict[str, Any]:
        """The next message; `{"do": "quit"}` where the other side has gone."""
        line = self._file.readline()
        return json.loads(line) if line else {"do": "quit"}

    def answer(self, content: dict[str, Any]) -> None:
        """Reply to a message."""
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()
