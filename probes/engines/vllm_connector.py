"""vLLM's KV connectors and off-loading: fetching, handing over and saving keys and values.

The methods of connectors are abstract where they are declared, so the class of each connector that
vLLM makes is wrapped, not the base. What waits for a fetch in the scheduler is told as a span of
the request, from the allocation of its blocks until it is scheduled.
"""

from __future__ import annotations

from time import perf_counter_ns

from . import emit
from .guard import around
from .patch import spanned, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Requests whose keys and values are being fetched, and since when.
_fetching: dict[str, int] = {}
MAX_FETCHING = 65536
TOKENS = "num_external_tokens"

BASES = ("KVConnectorBase_V1", "SupportsHMA", "ABC", "object")


def version(module: Any) -> str:
    """Nothing: the scheduler's file tells it."""
    return ""


def fetched(request: str, time: int) -> None:
    """A request is scheduled at ``time``: what it waited for has arrived."""
    if _fetching:
        since = _fetching.pop(request, None)
        if since is not None:
            emit.span("vllm kv fetch", "kv_transfer", since, time, request, overlaps=True)


def forget(request: str) -> None:
    """A request has ended."""
    _fetching.pop(request, None)


def _nothing(*_: Any) -> None:
    """There is nothing to do on this side of a call."""


def _allocating(args: Any, kwargs: Any) -> None:
    request, tokens = _given(args, kwargs, 1, "request"), _given(args, kwargs, 3, TOKENS)
    if tokens > 0:
        if len(_fetching) >= MAX_FETCHING:
            _fetching.clear()
        _fetching[request.request_id] = perf_counter_ns()


def _given(args: Any, kwargs: Any, place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs[name]


def _created(_state: Any, connector: Any, _error: Any) -> None:
    for owner in type(connector).__mro__:
        if owner.__name__ not in BASES:
            for name, make in METHODS.items():
                wrap(owner, name, make)


def _finished(_state: Any, results: Any, _error: Any) -> None:
    for result in results or ():
        _transferred(result)


def _transferred(result: Any) -> None:
    """A transfer that is over; it ended at the latest when vLLM noticed, which is now."""
    lasted = getattr(result, "transfer_time", None)
    if lasted is not None:
        now, size = perf_counter_ns(), getattr(result, "transfer_size", None)
        start = now - int(lasted * 1e9)
        emit.span("vllm kv offload", "kv_transfer", start, now, overlaps=True, size=size)


CREATED = around(_nothing, _created)
OFFLOADED = around(_nothing, _finished)
METHODS = {
    "start_load_kv": spanned("vllm kv start load", "kv_transfer"),
    "wait_for_layer_load": spanned("vllm kv wait for layer", "kv_transfer"),
    "save_kv_layer": spanned("vllm kv save layer", "kv_transfer"),
    "wait_for_save": spanned("vllm kv wait for save", "kv_transfer"),
    "update_state_after_alloc": around(_allocating, _nothing),
}
TARGETS = {
    "vllm.distributed.kv_transfer.kv_connector.factory": {
        "KVConnectorFactory.create_connector": CREATED,
        "KVConnectorFactory.create_connector_v1": CREATED,  # up to vLLM 0.10
    },
    "vllm.v1.kv_offload.worker.worker": {"OffloadingWorker.get_finished": OFFLOADED},
    "vllm.v1.kv_offload.cpu.gpu_worker": {"CPUOffloadingWorker.get_finished": OFFLOADED},
}
