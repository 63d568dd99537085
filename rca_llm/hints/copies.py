"""Causes in the way data moves: host copies, weight loading, PCIe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca_llm import intervals
from rca_llm.hints import issuing, lead, records
from rca_llm.hints.case import Case, Spans
from rca_llm.hints.links import by_link, by_pinned, pcie
from rca_llm.hints.loads import NETWORK, casts, find_load, window
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.moved import COPY_PARTS, DELAYED_PARTS, H2D, HostCopies, host_copies
from rca_llm.hints.wording import name, rate, size, time
from rca_llm.table import known
from rca_llm.trace import MEMCPY


def _copies(count: int) -> str:
    return "1 copy uses" if count == 1 else f"{count:,} copies use"


@rule(
    "R18",
    "PAGEABLE-COPY",
    "io",
    Stage.DATA,
    disproof="copies of the same size from pinned memory that take as long",
)
def pageable_copies(case: Case) -> Hint | None:
    """Copies use pageable host memory, which blocks the caller and halves the rate.

    Symptom: they take `step_share` of the steps (without steps, of the requests), or an
    asynchronous one over `async_bytes` runs in a decode step. Where less than `own_share` of what
    they and their calls take is copying, the calls waited for the work queued before them, and
    confidence is low: pinned memory would not shorten that. Charged are the copies, their calls
    and, where a call waited for the device, the idle time until what is launched next comes. The
    saving leaves the time that the bytes take at the rate that `pinned` pinned copies of the same
    direction, at least half as large, reach in the same trace (their median), else at the link's
    rate less the headers of its packets, where the device is known; synchronous calls wait that
    long. Source: proposal; threads C53, C54. Disproof: pinned copies as slow.
    """
    limits = case.limits("R18")
    copies = host_copies(case)
    copies = copies.take(copies.pageable & copies.inside)
    if not len(copies):
        return None
    loss = case.of_service(COPY_PARTS, intervals.union(*copies.spans))
    blocking = copies.asynchronous & copies.decode & (copies.size > limits["async_bytes"])
    if not (loss.share >= limits["step_share"] or blocking.any()):
        return None
    called = case.charge(COPY_PARTS, copies.spans).ns
    if not called:
        return None
    left = [_left_behind(case, number, copies) for number in range(len(case.job.ranks))]
    charge = case.charge(DELAYED_PARTS, _within(case, copies, left))
    speed, link = copies.rate, pcie(case)
    pinned = by_pinned(case, copies, limits["pinned"])
    own = case.charge(COPY_PARTS[:2], copies.spans).ns / called
    waited = own < limits["own_share"]
    what = "their calls mostly wait for earlier work" if waited else "blocking"
    return Hint(
        f"{_copies(len(copies))} pageable memory ({what}{', ' + rate(speed) if speed else ''})",
        "low" if waited else "high",
        charge,
        {
            "copies": len(copies),
            "bytes": copies.bytes,
            "copy_ns": copies.lasting,
            "rate_bytes_s": speed,
            "own_share": own,
            f"{loss.of}_share": loss.share,
            "asynchronous_in_decode": int(blocking.sum()),
            "idle_after_calls_ns": sum(int((end - start).sum()) for start, end in left),
            **pinned.told(link),
        },
        kept=pinned.left(copies) | {"scheduling.sync": _synchronous(copies)},
    )


def _synchronous(copies: HostCopies) -> float:
    """The share of calls, by their time, that wait for their copy from whatever memory it is."""
    lasting = np.where(copies.thread >= 0, copies.call_end - copies.call_start, 0)
    waiting = int(lasting[~copies.asynchronous].sum())
    return waiting / max(int(lasting.sum()), 1)


def _left_behind(case: Case, number: int, copies: HostCopies) -> Spans:
    """The idle time that calls of a rank leave behind which return only when their copy has begun.

    Of copies to the device alone: whoever reads a copy to the host waits for it in any case.
    """
    member = case.job.ranks[number]
    waited = (copies.call_start < copies.start) & (copies.call_end > copies.start)
    rows = np.flatnonzero(waited & copies.to_device & (copies.rank == number))
    calls = copies.call_start[rows], copies.call_end[rows]
    lost = lead.lost(member, lead.of_rank(case, number), calls, copies.thread[rows])
    return intervals.union(*lost)


def _within(case: Case, copies: HostCopies, left: Sequence[Spans]) -> Spans:
    """When some copies ran or were asked for, with what they left behind on every rank."""
    found: list[Spans] = []
    for number, more in enumerate(left):
        own = copies.take(np.flatnonzero(copies.rank == number))
        found.append(lead.within(case.job.ranks[number], own.spans, COPY_PARTS, more))
    return intervals.union(*records.joined(found))


@rule(
    "R19",
    "SMALL-COPIES",
    "io",
    Stage.DATA,
    disproof="the same bytes in one copy that take as long",
)
def small_copies(case: Case) -> Hint | None:
    """Many small copies, each with its own cost of a call.

    Symptom: a median of `copies` copies a step with a median size of `bytes` or less; or more than
    `many` copies at an effective rate under `rate_bytes_s` that take `step_share` of the steps, or
    without steps of the requests.
    Charged are the copies, their calls and, of copies that the host issues one after another (each
    within `gap_ns` of the one before, with nothing else between them), the idle time in which it
    does so and until what it launches next comes. The saving leaves the time that the bytes take at
    the link's rate, less the headers of its packets, where the device is known. Source: threads
    C56, C14, C15. Disproof: one copy of all bytes as slow.
    """
    limits = case.limits("R19")
    copies = host_copies(case)
    copies = copies.take(copies.inside & known(copies.size))
    if not len(copies):
        return None
    spans = intervals.union(*copies.spans)
    loss = case.of_service(COPY_PARTS, spans)
    middle = float(np.median(copies.size))
    a_step = int(copies.steady.sum()) / loss.steps if loss.steps else None
    taken = int((spans[1] - spans[0]).sum())
    effective = copies.bytes * 1e9 / taken if taken else 0.0
    dense = a_step is not None and a_step >= limits["copies"] and middle <= limits["bytes"]
    slow = (
        len(copies) > limits["many"]
        and effective < limits["rate_bytes_s"]
        and loss.share >= limits["step_share"]
    )
    if not (slow or (dense and loss.share >= limits["least_share"])):
        return None
    ranks, pause = range(len(case.job.ranks)), limits["gap_ns"]
    runs = [issuing.issued(case, number, copies, limits["bytes"], pause) for number in ranks]
    charge = case.charge(DELAYED_PARTS, _within(case, copies, [run.spans for run in runs]))
    link = pcie(case)
    whole = by_link(link)
    if not charge.ns:
        return None
    return Hint(
        f"{len(copies):,} copies of about {size(middle)} ({rate(effective)}): the cost of each call"
        " dominates",
        "high" if dense else "medium",
        charge,
        {
            "copies": len(copies),
            "copies_per_step": a_step,
            "median_bytes": middle,
            "effective_bytes_s": effective,
            f"{loss.of}_share": loss.share,
            "copies_in_runs": sum(run.copies for run in runs),
            "runs": sum(run.count for run in runs),
            **whole.told(link),
        },
        kept=whole.left(copies),
        merged=True,
    )


@rule(
    "R32",
    "PCIE-BOUND",
    "io",
    Stage.DATA,
    disproof="steps that stay as long with fewer bytes to copy",
)
def pcie_bound(case: Case) -> Hint | None:
    """Steps, or requests, wait for copies that run near the rate of the PCIe link.

    Symptom: copies between host and device, with nothing else running, take `step_share` of the
    steps (without steps, of the requests) at `link_share` of the link's rate. Needs a known device;
    the state of an idle link says nothing. Source: threads C56, C70. Disproof: steps as long with
    fewer bytes.
    """
    limits = case.limits("R32")
    copies = host_copies(case)
    copies = copies.take(copies.inside & ~copies.pageable)
    link = pcie(case)
    loss = case.of_service(COPY_PARTS[:2], intervals.union(copies.start, copies.end))
    if link is None or not loss.ns or loss.share < limits["step_share"]:
        return None
    speed = copies.rate
    if speed is None or speed < limits["link_share"] * link:
        return None
    return Hint(
        f"{loss.of.capitalize()}s wait for PCIe: {size(copies.bytes)} at {rate(speed)}"
        f" (link {rate(link)})",
        "high",
        case.charge(COPY_PARTS[:2], intervals.union(copies.start, copies.end)),
        {
            "bytes": copies.bytes,
            "rate_bytes_s": speed,
            "link_bytes_s": link,
            f"{loss.of}_share": loss.share,
        },
    )


@rule(
    "R16",
    "WEIGHTS-IO-BOUND",
    "io",
    Stage.DATA,
    disproof="a load as long from memory",
)
def weights_io(case: Case) -> Hint | None:
    """Loading the weights waits for storage.

    Symptom: reads and page faults take `read_share` of the load, the device's copies idle
    meanwhile, and the rate is under `rate_bytes_s` on a network file system, or the median read is
    `read_bytes` or less. Source: threads C57-C59. Disproof: a load as long from memory.
    """
    limits, load = case.limits("R16"), find_load(case)
    if load is None or load.end <= load.start:
        return None
    spans, copying = load.spans, host_copies(case)
    reading = int((spans[1] - spans[0]).sum())
    idle = reading - intervals.common(spans, intervals.union(copying.start, copying.end))
    whole = load.end - load.start
    speed = load.bytes * 1e9 / reading if reading and load.bytes else None
    if idle < limits["read_share"] * whole or speed is None:
        return None
    network = [fs for fs in load.file_systems if fs.lower().startswith(NETWORK)]
    small = load.read_bytes
    slow = bool(network) and speed < limits["rate_bytes_s"]
    if not slow and (small is None or small > limits["read_bytes"]):
        return None
    where = f" on {name(network[0])}" if network else ""
    where += f" (mmap, {load.faults:,} page-fault waits)" if load.faults else ""
    return Hint(
        f"{time(reading)} of {time(whole)} reading weights at {rate(speed)}{where}",
        "high",
        Charge(idle, whole, (), load.start, load.end, "the load of the weights"),
        {
            "reading_ns": reading,
            "load_ns": whole,
            "read_share": reading / whole,
            "bytes": load.bytes,
            "rate_bytes_s": speed,
            "median_read_bytes": small,
            "file_systems": ", ".join(load.file_systems) or None,
            "reads": load.count,
            "page_fault_waits": load.faults,
        },
    )


@rule(
    "R17",
    "LOAD-DTYPE-CONVERT",
    "io",
    Stage.DATA,
    disproof="stored and requested number formats that are the same",
)
def load_conversion(case: Case) -> Hint | None:
    """Weights are converted to another number format while they are loaded.

    Symptom: cast spans take `cast_share` of the load; or the bytes copied to the device differ from
    those read by a factor of two within `tolerance`; or anonymous memory grows to `rss_ratio` times
    the checkpoint. Source: thread C60. Disproof: equal formats.
    """
    limits, load = case.limits("R17"), find_load(case)
    start, end = window(case, load)
    if end <= start:
        return None
    spans = casts(case, start, end)
    casting, whole = int((spans[1] - spans[0]).sum()), end - start
    read = load.bytes if load else 0
    copied = _copied_until(case, start, end)
    factor = copied / read if read and copied else None
    resized = factor is not None and any(
        abs(factor / wanted - 1) <= limits["tolerance"] for wanted in (2.0, 0.5, 4.0, 0.25)
    )
    grown = _grown(case, start, end)
    bloated = bool(read and grown is not None and grown >= limits["rss_ratio"] * read)
    cast = casting >= limits["cast_share"] * whole
    if not (cast or resized or bloated):
        return None
    more = f", +{size(grown - read)}" if grown is not None and grown > read > 0 else ""
    return Hint(
        f"Weights are converted while loading: {time(casting)}{more}"
        if cast
        else f"Weights are converted while loading: {size(read)} read, "
        + (f"{size(copied)} copied to the device" if resized else f"{size(grown or 0)} in memory"),
        "high" if cast else "medium" if resized else "low",
        Charge(casting, whole, (), start, end, "the load of the weights"),
        {
            "cast_ns": casting,
            "load_ns": whole,
            "cast_share": casting / whole,
            "bytes_read": read or None,
            "bytes_copied": copied or None,
            "copied_over_read": factor,
            "memory_grown_bytes": grown,
        },
        unjudged=not cast,
    )


def _copied_until(case: Case, start: int, end: int) -> int:
    """Bytes copied from host to device in a load."""
    moved = 0
    for recording in case.job.recordings:
        gpu = recording.timeline["gpu"]
        rows = (gpu["kind"] == MEMCPY) & (gpu["copy"] == H2D) & known(gpu["bytes"])
        rows &= (gpu["start"] >= start) & (gpu["start"] < end)
        moved += int(gpu["bytes"][rows].sum())
    return moved


def _grown(case: Case, start: int, end: int) -> int | None:
    """How much anonymous memory grew over its value before a load, bytes."""
    values = records.samples(case, "process.rss_anon_bytes")
    before = [value for t, value in values if t <= start]
    during = [value for t, value in values if start < t <= end]
    return round(max(during) - before[-1]) if before and during else None
