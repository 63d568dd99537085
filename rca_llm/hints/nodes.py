"""Causes in where on a machine a process runs: NUMA nodes far from its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rca_llm import intervals
from rca_llm.attribute.links import among
from rca_llm.attribute.partition import Recording
from rca_llm.hints import records
from rca_llm.hints.case import Case, Spans, rank_rows, ranks_of, used
from rca_llm.hints.model import Hint, Stage, rule
from rca_llm.hints.moved import host_copies
from rca_llm.hints.wording import percent, plural, time
from rca_llm.probes.nodes import MOST_CPUS, is_number, numbers
from rca_llm.probes.pages import METRIC
from rca_llm.readers.events_values import as_dict
from rca_llm.table import Ints, Mask, known
from rca_llm.trace import NODES, Device

COPY_PARTS = ("io.h2d", "io.d2h")
"""What can be charged: the copies that cross from one socket to the other."""

MOST_PAGES = 1 << 50
"""A sample of more is nonsense."""


@dataclass(frozen=True)
class Place:
    """Where a rank (an index) runs, and where its GPU is.

    `gpu` is the GPU's node, `far` the nodes that are not near it; `on_cpu` holds ns by node, of the
    threads that launch where that is known (`launching`), `unknown_ns` what no look placed;
    `pages` are those looked at, by node, at the last of `looks` looks.
    """

    rank: int
    number: int
    gpu: int
    far: frozenset[int]
    on_cpu: Mapping[int, int]
    unknown_ns: int
    launching: bool
    pages: Mapping[int, int]
    looks: int
    device: str | None

    def far_of(self, by_node: Mapping[int, int]) -> float:
        """The share of something by node that is on far ones."""
        total = sum(by_node.values())
        return sum(by_node[node] for node in by_node if node in self.far) / total if total else 0.0


@dataclass(frozen=True)
class Rate:
    """How fast large copies to a rank's device were, and as those of which memory."""

    bytes_s: float
    pageable: bool
    copies: int
    spans: Spans


@dataclass(frozen=True)
class Compared:
    """A rank's rate of large copies to its device, and the usual one of ranks near theirs."""

    own: Rate | None
    usual: float | None

    @property
    def share(self) -> float | None:
        """The one over the other."""
        return self.own.bytes_s / self.usual if self.own and self.usual else None


@rule(
    "R36",
    "NUMA-REMOTE",
    "io",
    Stage.DATA,
    disproof="copies and steps as fast with the process and its memory bound to the GPU's node",
)
def far_from_gpu(case: Case) -> Hint | None:
    """A rank's threads or memory are on another socket than its GPU.

    Symptom: its launching threads (all of its process where launches were not recorded) spend
    `cpu_share` of their time on CPUs of nodes that are `distance` or more from the GPU's node, or
    `page_share` of its memory lies there; at least `least_ns` on known CPUs, which are
    `known_share` of all, or `pages` pages looked at. Where another rank is near its GPU, of the
    same kind, and both made `copies` copies to the device of `copy_bytes` or more from the same
    kind of memory, the far one's rate must be `rate_share` of the near one's or less, or confidence
    is low; only then is there a saving: what the copies took above the near rate. Without such a
    rank nobody knows what the way costs, and memory alone has low confidence. No verdict on
    machines with one node, or where the GPU's node is not known. Source: thread C65. Disproof: the
    same speed when bound.
    """
    places = [place for number in range(len(case.job.ranks)) if (place := _place(case, number))]
    near = [place for place in places if _verdict(case, place) == "near"]
    far = [place for place in places if _verdict(case, place) in ("cpu", "pages")]
    found = [(place, _compared(case, place, near)) for place in far]
    return _hint(case, *max(found, key=_weight), len(far)) if found else None


def _weight(found: tuple[Place, Compared]) -> tuple[float, float, float]:
    """By how much a rank is worse off: its copies above all, as far as that was measured."""
    place, compared = found
    lost = 0.0 if compared.share is None else 1 - compared.share
    return lost, place.far_of(place.on_cpu), place.far_of(place.pages)


def _hint(case: Case, place: Place, compared: Compared, count: int) -> Hint:
    by_cpu, share = _verdict(case, place) == "cpu", compared.share
    slower = share is not None and share <= case.limits("R36")["rate_share"]
    own, spans = compared.own, _copies(case, place, compared.own)
    charge = case.charge(COPY_PARTS[:1] if slower else COPY_PARTS, spans)
    if not charge.population:
        charge = replace(charge, population=_looked_at(place))
    return Hint(
        _title(place, count, by_cpu=by_cpu),
        "high" if slower else "medium" if by_cpu and share is None else "low",
        charge,
        {
            "rank": place.number,
            "ranks_affected": count,
            "gpu_node": place.gpu,
            "cpu_share": place.far_of(place.on_cpu) if place.on_cpu else None,
            "on_cpu_by_node": _by_node(place.on_cpu),
            "on_cpu_ns": sum(place.on_cpu.values()),
            "on_unknown_cpu_ns": place.unknown_ns,
            "threads": "those that launch" if place.launching else "all of the process",
            "page_share": place.far_of(place.pages) if place.pages else None,
            "pages_by_node": _by_node(place.pages),
            "pages_looked_at": sum(place.pages.values()) or None,
            "looks_at_pages": place.looks,
            "copy_bytes_s": own.bytes_s if own else None,
            "near_copy_bytes_s": compared.usual,
            "copies_compared": own.copies if own and compared.usual else None,
            "saving_assumes": _assumed(share, slower=slower),
        },
        saving_ns=round(charge.ns * (1 - share)) if slower and share is not None else None,
        unjudged=not slower,
        advice=f"The GPU of worker {place.number} is on node {place.gpu}: start that process by"
        f" numactl --cpunodebind={place.gpu} --membind={place.gpu} COMMAND.",
    )


def _looked_at(place: Place) -> str:
    """What the shares were computed over, where no request's copies are charged."""
    pages = plural(sum(place.pages.values()), "page")
    return f"{time(sum(place.on_cpu.values()))} on known CPUs and {pages} of worker {place.number}"


def _assumed(share: float | None, *, slower: bool) -> str:
    """What a saving rests on, or why there is none."""
    if slower:
        return "copies as fast as those of ranks near their GPUs"
    if share is None:
        return "unknown: no rank near its GPU made such copies to compare with"
    return "unknown: copies of ranks near their GPUs are hardly faster"


def _title(place: Place, count: int, *, by_cpu: bool) -> str:
    share = place.far_of(place.on_cpu if by_cpu else place.pages)
    verb, what = ("runs", "on-CPU time") if by_cpu else ("has memory", "memory")
    others = f"; so {'is' if count == 2 else 'are'} {count - 1:,} more" if count > 1 else ""
    return (
        f"Worker {place.number} {verb} on the far socket: {percent(share)} of its {what} is far"
        f" from its GPU's node {place.gpu}{others}"
    )


def _by_node(found: Mapping[int, int]) -> str | None:
    total = sum(found.values())
    told = [f"node {node}: {percent(found[node] / total)}" for node in sorted(found) if total]
    return ", ".join(told) or None


def _verdict(case: Case, place: Place) -> str | None:
    """Whether a rank's threads (`cpu`), or its memory alone (`pages`), are far from its GPU.

    `near` where its threads are not, nor its memory as far as that is known; None: nobody knows.
    """
    limits, told = case.limits("R36"), sum(place.on_cpu.values())
    judged = told >= limits["least_ns"]
    judged = judged and told >= limits["known_share"] * (told + place.unknown_ns)
    if judged and place.far_of(place.on_cpu) >= limits["cpu_share"]:
        return "cpu"
    enough = sum(place.pages.values()) >= limits["pages"]
    if enough and place.far_of(place.pages) >= limits["page_share"]:
        return "pages"
    return "near" if judged else None


def _place(case: Case, number: int) -> Place | None:
    """Where a rank runs; None where that, its GPU's node or the machine's are not known."""
    member = case.job.ranks[number]
    recording, _ = member
    nodes = _nodes(recording)
    if len(nodes) < 2:
        return None
    rows = np.flatnonzero(rank_rows(member, recording.timeline["gpu"]))
    devices = _devices(recording, rows)
    at, names = ({device.node for device in devices}, {device.name for device in devices})
    own = at.pop() if len(at) == 1 else None
    if own is None:
        return None
    processes = sorted({device.process for device in devices if device.process is not None})
    threads, launching = _threads(recording, rows)
    on_cpu, unknown = _on_cpu(recording, nodes, processes, threads)
    pages, looks = _pages(recording, processes)
    return Place(
        number, ranks_of(member), own, _far(nodes, own, case.limits("R36")["distance"]),
        on_cpu, unknown, launching, pages, looks, names.pop() if len(names) == 1 else None,
    )  # fmt: skip


def _devices(recording: Recording, rows: Ints) -> list[Device]:
    """Every device that each process used, as far as it is described."""
    gpu = recording.timeline["gpu"]
    process, device = gpu["process"][rows], gpu["device"][rows]
    told = {(one.process, one.device): one for one in recording.timeline.devices}
    found: list[Device] = []
    for own in np.unique(process).tolist():
        for number in np.unique(device[process == own]).tolist():
            one = told.get((own, number)) or told.get((None, number)) or Device(number)
            found.append(replace(one, process=own))
    return found


def _nodes(recording: Recording) -> dict[int, Mapping[str, Any]]:
    """The machine's nodes by number, as the header tells them; one may be a foreign file's."""
    told = as_dict(recording.timeline.header.extra.get(NODES))
    rows = {node: as_dict(row) for node, row in told.items()}
    return {
        int(node): row
        for node, row in rows.items()
        if is_number(node) and isinstance(row.get("cpus"), str)
    }


def _far(nodes: Mapping[int, Mapping[str, Any]], own: int, least: float) -> frozenset[int]:
    """The nodes that are far from one; one of unknown distance is."""
    told = as_dict(nodes.get(own, {}).get("distances"))
    apart = {node: told.get(str(node)) for node in nodes if node != own}
    return frozenset(
        node for node, far in apart.items() if not isinstance(far, int) or far >= least
    )


def _threads(recording: Recording, rows: Ints) -> tuple[set[tuple[int, int]], bool]:
    """The threads that launched some device work, and whether any launch is known."""
    launched = recording.launched_by[rows]
    found = np.unique(launched[launched >= 0]).tolist()
    return {recording.host.threads[thread] for thread in found}, bool(found)


def _on_cpu(
    recording: Recording,
    nodes: Mapping[int, Mapping[str, Any]],
    processes: Sequence[int],
    threads: set[tuple[int, int]],
) -> tuple[dict[int, int], int]:
    """How long threads were seen to run on each node, and on no known one, ns.

    Of all threads of the processes where none are given.
    """
    states = recording.timeline["states"]
    running = states["state"] == recording.timeline.strings.find("running")
    rows = running & (states["state"] >= 0) & among(states["process"], [*processes])
    rows &= known(states["start"]) & known(states["end"])
    if threads:
        rows &= _of_threads(states["process"], states["thread"], threads)
    lasting = (states["end"] - states["start"])[rows]
    node = _node_of_cpu(nodes)[np.clip(states["cpu"][rows], -1, MOST_CPUS - 1)]
    sums = {
        int(one): int(lasting[node == one].sum()) for one in np.unique(node).tolist() if one >= 0
    }
    return sums, int(lasting[node < 0].sum())


def _of_threads(process: Ints, thread: Ints, wanted: set[tuple[int, int]]) -> Mask:
    found = np.zeros(len(process), bool)
    for own, number in wanted:
        found |= (process == own) & (thread == number)
    return found


def _node_of_cpu(nodes: Mapping[int, Mapping[str, Any]]) -> Ints:
    """The node of every CPU, -1 for none; the last is that of a CPU that is not known."""
    found = np.full(MOST_CPUS + 1, -1, np.int64)
    for node, row in nodes.items():
        found[[cpu for cpu in numbers(row["cpus"]) if cpu < MOST_CPUS]] = node
    return found


def _pages(recording: Recording, processes: Sequence[int]) -> tuple[dict[int, int], int]:
    """The pages of some processes by node, each as it was looked at last, and how many looks."""
    found: dict[int, int] = {}
    looks = 0
    for node, metric in _page_metrics(recording):
        for process, values in records.process_samples(recording, metric).items():
            if process in processes:
                count = max(values)[1]
                found[node] = found.get(node, 0) + (int(count) if 0 <= count < MOST_PAGES else 0)
                looks = max(looks, len(values))
    return found, looks


def _page_metrics(recording: Recording) -> Iterator[tuple[int, str]]:
    strings = recording.timeline.strings
    for code in used(recording.timeline["samples"]["metric"]):
        text = strings[code]
        number = text[len(METRIC) :]
        if text.startswith(METRIC) and is_number(number):
            yield int(number), text


def _compared(case: Case, place: Place, near: Sequence[Place]) -> Compared:
    """A rank's copies to its device beside those of ranks that are near theirs, of its kind.

    Of the kind of memory for which both are known, else of any.
    """
    near = [other for other in near if other.device == place.device]
    own = [_rate(case, place.rank, pageable=kind) for kind in (False, True)]
    for mine in own:
        others = [_rate(case, other.rank, pageable=mine.pageable) for other in near] if mine else []
        told = [other.bytes_s for other in others if other]
        if told:
            return Compared(mine, float(np.median(told)))
    return Compared(next((mine for mine in own if mine), None), None)


def _rate(case: Case, rank: int, *, pageable: bool) -> Rate | None:
    """The rate of the large copies to a rank's device from one kind of memory."""
    limits, copies = case.limits("R36"), host_copies(case)
    rows = (copies.rank == rank) & copies.to_device & (copies.pageable == pageable)
    copies = copies.take(rows & (copies.size >= limits["copy_bytes"]))
    if len(copies) < limits["copies"] or copies.rate is None:
        return None
    return Rate(copies.rate, pageable, len(copies), (copies.start, copies.end))


def _copies(case: Case, place: Place, own: Rate | None) -> Spans:
    """When a rank's copies ran: those that are compared, else all."""
    if own is not None:
        return intervals.union(*own.spans)
    copies = host_copies(case)
    mine = copies.rank == place.rank
    return intervals.union(copies.start[mine], copies.end[mine])
