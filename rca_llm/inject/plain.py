"""Causes in how the service is loaded: none, and a queue."""

from __future__ import annotations

from rca_llm.inject.catalogue import Order
from rca_llm.inject.serving import Fault, Load, Service
from rca_llm.inject.truth import Ledger, Truth


def run(order: Order) -> Truth:
    """Serve a load that fits, or bursts of `magnitude` requests to an engine that runs two."""
    ledger = Ledger()
    if order.cause.name == "clean":
        Service(Load(first=order.first), Fault(1, ledger), order.seed).run()
        return Truth(order, ledger)
    burst = max(round(order.magnitude), 1)
    at_once = 3 * burst if order.without else 2
    load = Load(3 * burst, burst=burst, most_running=at_once, between=4.0, first=order.first)
    Service(load, Fault(order.magnitude, ledger), order.seed).run()
    for served in ledger.requests.values():
        waited = served.scheduled - served.arrival
        ledger.add(served.arrival, served.scheduled, waited, served.id)
    return Truth(order, ledger)
