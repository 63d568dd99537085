"""Serialising: pickle, msgpack, msgspec's functions, and what ZeroMQ and shared memory carry.

Sending is work on a message and is recorded. Receiving waits for whoever sends: what that is doing
explains the time, so only the unpacking is recorded. Encoder objects of msgspec are written in C
and cannot be wrapped; what engines put around them is, in the engines' files.
"""

from __future__ import annotations

from .timing import long_calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def version(module: Any) -> str:
    """Nothing: no engine. Makes the functions of pickle what they say that they are.

    They are pickled by their names themselves, and the name that they have from `_pickle` would
    lead to other objects.
    """
    if module.__name__ == "pickle":
        for name in TARGETS["pickle"]:
            function = getattr(module, name, None)
            if getattr(function, "__module__", "") == "_pickle":
                function.__module__ = "pickle"
    return ""


def _both(name: str, ways: str) -> dict[str, Any]:
    return {way: long_calls(name + " " + way, "serialize") for way in ways.split()}


TARGETS: dict[str, dict[str, Any]] = {
    "pickle": _both("pickle", "dumps dump loads load"),
    "multiprocessing.reduction": {
        "ForkingPickler.dumps": long_calls("pickle dumps", "serialize"),
        # Bound when the class was made, perhaps before pickle was wrapped.
        "ForkingPickler.loads": long_calls("pickle loads", "serialize"),
    },
    "msgpack": _both("msgpack", "packb unpackb pack unpack"),
    "msgspec.msgpack": _both("msgpack", "encode decode"),
    "msgspec.json": _both("json", "encode decode"),
    "zmq.sugar.socket": {
        "Socket.send": long_calls("zmq send", "serialize"),
        "Socket.send_multipart": long_calls("zmq send", "serialize"),
        "Socket.send_pyobj": long_calls("zmq send", "serialize"),
    },
    "vllm.distributed.device_communicators.shm_broadcast": {
        "MessageQueue.enqueue": long_calls("vllm enqueue", "serialize"),
    },
}
