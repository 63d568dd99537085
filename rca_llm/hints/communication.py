"""Causes between ranks: late peers, unstable or slow collectives, hand-overs, uneven experts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rca_llm import intervals, tsv
from rca_llm.attribute.collective_parts import Part
from rca_llm.attribute.collectives import Collective, summary_row
from rca_llm.attribute.parts import CODE, PARTS
from rca_llm.hints.case import Case, Spans
from rca_llm.hints.gates import end_skew
from rca_llm.hints.links import agreed
from rca_llm.hints.model import Charge, Hint, Stage, rule
from rca_llm.hints.wording import percent, plural, rate, size, time
from rca_llm.summary.stats import percentile
from rca_llm.table import Ints

ANY = tuple(part for part in PARTS if not part.startswith("unknown."))
"""Every part that says something."""

EXPLAINERS = {
    "scheduling.gc": "R08",
    "scheduling.gil": "R10",
    "scheduling.cpu_wait": "R07",
    "scheduling.jit": "R12",
    "scheduling.host": "R09",
    "scheduling.launch": "R03",
    "scheduling.sync": "R15",
    "scheduling.alloc": "R38",
    "scheduling.tokenize": "R11",
    "scheduling.detokenize": "R11",
    "io.page_fault": "R43",
    "io.file": "R49",
    "io.log": "R37",
    "io.h2d": "R18",
    "io.d2h": "R18",
    "compute.moe": "R31",
}
"""The rule that explains why a rank was late, by what it did meanwhile."""


@dataclass(frozen=True)
class _Arrival:
    """A complete collective: who came last, by how much, and how long the others waited."""

    collective: Collective
    last: int
    spread: int
    late: tuple[int, int]
    wait: int
    own: int
    transfer: int
    carried: int = 0
    """How much later than the others the last rank came only because its host was behind before."""

    @property
    def new(self) -> int:
        """What the others waited for a delay that was not there at the collective before, ns."""
        return sum(max(self.late[1] - part.start - self.carried, 0) for part in self._others)

    @property
    def fresh(self) -> tuple[int, int]:
        """From when to when the last rank came later than it would have by carrying on."""
        return min(self.late[0] + self.carried, self.late[1]), self.late[1]

    @property
    def _others(self) -> list[Part]:
        return [part for part in self.collective.parts if part.rank != self.last]


def _with_carried(case: Case, found: Sequence[_Arrival]) -> list[_Arrival]:
    """Arrivals by time, with what the last rank's host carried over from the collective before.

    A host that fell behind stays behind until it waits for the device, at the latest until the
    next step: where launching limits the pace, every later collective of the step shows the same
    lag, though nothing new delays the rank. Of a rank whose device had to wait for its host, only
    what was added to the lag counts. All of it counts where the recording tells no steps.
    """
    starts = {
        partition.rank.number: recording.steps.start[partition.steps]
        for recording, partition in case.job.ranks
    }
    before: dict[tuple[int, ...], Collective] = {}
    made: list[_Arrival] = []
    for one in sorted(found, key=lambda arrival: arrival.late[1]):
        key = tuple(sorted(part.rank for part in one.collective.parts))
        if key in before and one.last in starts:
            one = replace(one, carried=_carried(before[key], one, starts[one.last]))
        before[key] = one.collective
        made.append(one)
    return made


def _carried(before: Collective, one: _Arrival, steps: Ints) -> int:
    """How much of a rank's lateness is a lag that its host had at the collective before, ns."""
    mine, then = (_part_of(each, one.last) for each in (one.collective, before))
    if mine.issued is None or then.issued is None:
        return 0
    step, earlier = np.searchsorted(steps, [mine.issued, then.issued], "right")
    host_bound = mine.issued >= max(part.end for part in before.parts)
    if not host_bound or step != earlier or not step:
        return 0
    old, now = _lag(before, one.last), _lag(one.collective, one.last)
    added = None if old is None or now is None else max(now - max(old, 0), 0)
    return 0 if added is None else max(one.spread - added, 0)


def _part_of(one: Collective, rank: int) -> Part:
    return next(part for part in one.parts if part.rank == rank)


def _lag(one: Collective, rank: int) -> int | None:
    """How much later a rank's host issued a collective than all others, ns; None where untold."""
    times = {part.rank: part.issued for part in one.parts}
    own, others = times.pop(rank), [time for time in times.values() if time is not None]
    return None if own is None or len(others) < len(times) else own - max(others)


def _arrivals(case: Case) -> list[_Arrival]:
    """The complete collectives whose ranks arrived apart by more than the clocks are unsure of."""
    unsure = _uncertainty(case)
    found = [_arrival(one) for one in case.job.collectives if one.complete and not _is_pair(one)]
    return [one for one in found if one.spread > unsure or not one.spread]


def _is_pair(one: Collective) -> bool:
    """Whether a record is of a send and a receive, whose sides need not belong together."""
    return one.parts[0].op == "send_recv"


def _arrival(one: Collective) -> _Arrival:
    starts = sorted((part.start, part.rank) for part in one.parts)
    last, rank = starts[-1]
    waiters = [part for part in one.parts if part.rank != rank]
    return _Arrival(
        one,
        rank,
        last - starts[0][0],
        (starts[-2][0], last),
        sum(last - part.start for part in waiters),
        sum(max(part.end - part.start, 0) for part in waiters),
        max(max(part.end for part in one.parts) - last, 0),
    )


def _uncertainty(case: Case) -> int:
    """How far the ranks' clocks may be apart, ns."""
    told = [row["uncertainty_ns"] or 0 for row in case.summary["ranks"]]
    return max([*told, end_skew(case) if "G4" in case.failed else 0], default=0)


@rule(
    "R05",
    "PEER-WAIT",
    "scheduling",
    Stage.PEER,
    peers=True,
    disproof="ranks that arrive together, or each last about as often",
)
def peer_wait(case: Case) -> Hint | None:
    """Time in collectives is waiting for one rank that comes late.

    Symptom: waiting is `wait_share` of the time that ranks other than the last spend in
    collectives, and one rank is last in `last_share` of those in which anybody waits noticeably,
    and holds as much of the waiting. A lag that the last rank's host only carries on with, where
    launching limits the pace of all ranks, is not counted again. Source: threads C25, C37-C41,
    B54. Disproof: ranks that arrive together. What the late rank did meanwhile is the cause; do
    not tune NCCL.
    """
    limits = case.limits("R05")
    found = _with_carried(case, _arrivals(case))
    own, wait = sum(one.own for one in found), sum(one.new for one in found)
    if not own or wait < limits["wait_share"] * own:
        return None
    waited = [one for one in found if one.new >= limits["noticeable"] * max(one.own, 1)]
    rank, times = Counter(one.last for one in waited).most_common(1)[0]
    by_rank = sum(one.new for one in waited if one.last == rank)
    if times < limits["last_share"] * len(waited) or by_rank < limits["last_share"] * wait:
        return None
    late = [one.fresh for one in waited if one.last == rank]
    spans = intervals.union(*(np.array(side, np.int64) for side in zip(*late, strict=True)))
    charge = case.charge(ANY, spans)
    doing, share = _doing(case, rank, spans)
    explained = EXPLAINERS.get(doing) if doing and share >= limits["explained"] else None
    transfer = sum(one.transfer for one in found)
    op = max(waited, key=lambda one: one.new).collective.parts[0].op or "collectives"
    return Hint(
        f"{time(wait)} of {time(own)} in {op} is waiting for rank {rank}; transfer is only"
        f" {time(transfer)}" + (f". Rank {rank} spends the time in {doing}" if doing else ""),
        "high" if len(waited) >= limits["calls"] else "medium",
        charge,
        {
            "rank": rank,
            "wait_ns": wait,
            "carried_ns": sum(one.wait for one in found) - wait,
            "in_collectives_ns": own,
            "transfer_ns": transfer,
            "wait_share": wait / own,
            "last_share": times / len(waited),
            "collectives": len(found),
            "collectives_waited": len(waited),
            "late_rank_does": doing,
            "late_rank_does_share": share,
        },
        explained_by=(explained,) if explained else (),
    )


def _doing(case: Case, rank: int, spans: Spans) -> tuple[str | None, float]:
    """What a rank did most in some time, and the fraction of it."""
    member = next((m for m in case.job.ranks if m[1].rank.number == rank), None)
    total = int((spans[1] - spans[0]).sum())
    if member is None or not total:
        return None, 0.0
    sums = intervals.sums_in(member[1].segments.pieces, *spans, len(PARTS)).sum(axis=0)
    most = int(np.argmax(sums))
    return (PARTS[most], float(sums[most] / total)) if sums[most] else (None, 0.0)


@rule(
    "R06",
    "COLLECTIVE-JITTER",
    "communication",
    Stage.PEER,
    peers=True,
    disproof="a late rank, or other traffic, in the slow calls",
)
def collective_jitter(case: Case) -> list[Hint]:
    """A collective itself is unstable although its ranks arrive together.

    Symptom: among at least `calls` calls of one communicator, operation and size whose arrival
    spread is under `spread_share` of their duration, P99 is `ratio` times P50 or `tail_ns` more.
    Source: threads C34-C36, C42, C45, C46. Disproof: a late rank in the slow calls. NCCL versions
    are named only where a report fits version and condition.
    """
    limits = case.limits("R06")
    found: list[Hint] = []
    for (_, op, bytes_), calls in _buckets(case).items():
        together = [
            one
            for one in calls
            if one.spread < limits["spread_share"] * (one.spread + one.transfer)
            and not _contended(one.collective, case.limits("R24")["overlap"])
        ]
        lasting = sorted(one.spread + one.transfer for one in together)
        p50, p99 = percentile(lasting, 50), percentile(lasting, 99)
        if len(lasting) < limits["calls"] or not p50 or p99 is None:
            continue
        if p99 < limits["ratio"] * p50 and p99 - p50 <= limits["tail_ns"]:
            continue
        slow = [one for one in together if one.spread + one.transfer > limits["slow_ratio"] * p50]
        charge = case.charge(ANY, _beyond(slow, p50))
        found.append(_jitter(case, op, bytes_, together, (p50, p99), charge))
    return found


def _buckets(case: Case) -> dict[tuple[str | None, str | None, int | None], list[_Arrival]]:
    """Collectives of one communicator, operation and size."""
    groups: dict[tuple[str | None, str | None, int | None], list[_Arrival]] = defaultdict(list)
    for one in _arrivals(case):
        part = one.collective.parts[0]
        groups[part.comm, part.op, part.bytes].append(one)
    return groups


def _beyond(slow: Sequence[_Arrival], usual: int) -> Spans:
    """The time that slow calls last longer than usual."""
    start = np.array([min(p.start for p in one.collective.parts) for one in slow], np.int64)
    end = np.array([max(p.end for p in one.collective.parts) for one in slow], np.int64)
    return intervals.union(np.minimum(start + usual, end), end)


def _jitter(
    case: Case,
    op: str | None,
    bytes_: int | None,
    calls: Sequence[_Arrival],
    figures: tuple[int, int],
    charge: Charge,
) -> Hint:
    part, version = calls[0].collective.parts[0], _nccl(case)
    p50, p99 = figures
    how = [f"NCCL {version}" if version else "", part.algo or "", part.proto or ""]
    setting = ", ".join(filter(None, how))
    note = _version_note(case, op, bytes_)
    return Hint(
        f"{op or 'Collective'}{' of ' + size(bytes_) if bytes_ else ''} is unstable by itself (P99"
        f" {time(p99)}, P50 {time(p50)}) with ranks arriving together"
        + (f"; {setting}" if setting else ""),
        "medium",
        charge,
        {
            "op": op,
            "bytes": bytes_,
            "calls": len(calls),
            "p50_ns": p50,
            "p99_ns": p99,
            "largest_spread_ns": max(one.spread for one in calls),
            "nccl": version,
            "algo": part.algo,
            "proto": part.proto,
            "report": note,
        },
        advice=note,
    )


def _nccl(case: Case) -> str | None:
    return next(
        (r.timeline.header.nccl for r in case.job.recordings if r.timeline.header.nccl), None
    )


def _version_note(case: Case, op: str | None, bytes_: int | None) -> str | None:
    """A public report of a regression whose version and condition match, in words."""
    version = _nccl(case)
    for row in _reports():
        if version is None or not _same_version(version, row["version"]):
            continue
        devices = [str(row_["name"] or "") for row_ in case.summary["devices"]]
        fits = (
            (not row["op"] or row["op"] == op)
            and (not row["most_bytes"] or (bytes_ or 0) <= int(row["most_bytes"]))
            and (not row["least_bytes"] or (bytes_ or 0) >= int(row["least_bytes"]))
            and (not row["device"] or any(row["device"] in device for device in devices))
            and (not row["ranks"] or len(case.summary["ranks"]) >= int(row["ranks"]))
        )
        if fits:
            return (
                f"A regression was reported for NCCL {row['version']} ({row['effect']},"
                f" {row['thread']}, {row['status']})"
            )
    return None


def _same_version(version: str, reported: str) -> bool:
    return version == reported or version.startswith(f"{reported}.")


@cache
def _reports() -> tuple[dict[str, str], ...]:
    """Reports of NCCL regressions: `nccl_reports.tsv`."""
    return tuple(tsv.records("rca_llm.hints", "nccl_reports.tsv"))


@rule(
    "R24",
    "LINK-CONTENTION",
    "communication",
    Stage.DATA,
    disproof="collectives of that size as slow without the copies",
)
def link_contention(case: Case) -> list[Hint]:
    """Collectives are slower while peer copies use the same link.

    Symptom: peer copies run for `overlap` of a collective's own time, and those collectives last
    `ratio` times the median of the others of their size, which must be known. Source: thread C48
    (indirect). Disproof: collectives as slow without copies.
    """
    limits = case.limits("R24")
    groups: dict[tuple[str | None, str | None, int | None], list[Collective]] = defaultdict(list)
    for one in case.job.collectives:
        part = one.parts[0]
        if part.bytes is not None:
            groups[part.comm, part.op, part.bytes].append(one)
    found: list[Hint] = []
    for (_, op, bytes_), calls in groups.items():
        shared = [one for one in calls if _contended(one, limits["overlap"])]
        alone = [_transfer(one) for one in calls if not _contended(one, 0.0)]
        if len(shared) < limits["calls"] or len(alone) < limits["calls"]:
            continue
        usual = float(np.median(alone))
        slow = float(np.median([_transfer(one) for one in shared]))
        if not usual or slow < limits["ratio"] * usual:
            continue
        start = np.array([max(p.start for p in one.parts) for one in shared], np.int64)
        end = np.array([max(p.end for p in one.parts) for one in shared], np.int64)
        charge = case.charge(ANY, intervals.union(np.minimum(start + round(usual), end), end))
        found.append(
            Hint(
                f"{op or 'Collective'} is {percent(slow / usual - 1)} slower while peer copies use"
                " the same link",
                "medium",
                charge,
                {
                    "op": op,
                    "bytes": bytes_,
                    "median_with_copies_ns": round(slow),
                    "median_without_ns": round(usual),
                    "calls_with_copies": len(shared),
                    "calls_without": len(alone),
                },
            )
        )
    return found


def _contended(one: Collective, least: float) -> bool:
    """Whether peer copies ran for more than a fraction of a collective's own time."""
    shares = [
        (part.contended_ns or 0) / (part.end - part.start)
        for part in one.parts
        if part.end > part.start
    ]
    return max(shares, default=0.0) >= least if least else max(shares, default=0.0) > 0


def _transfer(one: Collective) -> int:
    """From the last arrival to the end, ns; the whole where arrivals are not known."""
    end = max(part.end for part in one.parts)
    return end - (one.arrived if one.arrived is not None else min(p.start for p in one.parts))


@rule(
    "R20",
    "TRANSPORT-FALLBACK",
    "communication",
    Stage.DATA,
    peers=True,
    disproof="the transport that the library logs",
)
def transport_fallback(case: Case) -> Hint | None:
    """Ranks of one host do not use the direct link between their devices.

    Symptom: large collectives of ranks on one host, whose devices have a direct link by their
    data sheet, reach less than `link_share` of it. Source: threads C43, C44. Disproof: the
    transport that the library logs.
    """
    limits, link = case.limits("R20"), _link(case)
    hosts = {r.timeline.header.host for r in case.job.recordings}
    if link is None or len(hosts) != 1 or None in hosts:
        return None
    rows = [summary_row(one.collective) for one in _arrivals(case)]
    large = [
        (row["busbw_bytes_s"], row["bytes"])
        for row in rows
        if isinstance(row["bytes"], int) and row["bytes"] >= limits["bytes"]
    ]
    speeds = [speed for speed, _ in large if isinstance(speed, int)]
    if len(speeds) < limits["calls"] or float(np.median(speeds)) >= limits["link_share"] * link:
        return None
    return Hint(
        f"Possible: ranks on this host do not use the direct link ({rate(float(np.median(speeds)))}"
        f" of {rate(link)} in large collectives)",
        "low",
        Charge(0, 0, population=plural(len(speeds), "collective")),
        {"median_busbw_bytes_s": float(np.median(speeds)), "link_bytes_s": link},
        unjudged=True,
    )


def _link(case: Case) -> float | None:
    """The rate between the devices at hand, one direction; None where unknown or different."""
    return agreed(case, lambda peak: peak.link_bytes_s)


@rule(
    "R21",
    "KV-TRANSFER-SLOW",
    "communication",
    Stage.DATA,
    disproof="a first token that comes as late without the hand-over",
)
def slow_hand_over(case: Case) -> Hint | None:
    """Handing the KV cache over takes much of the time to first token, or far below the link.

    Symptom: hand-overs are `ttft_share` of the time to first token of the requests they touch, or
    reach under `link_share` of the link; over `pieces` pieces of `piece_bytes` or less with
    `post_share` spent on posting name the reason. Source: threads C08, C12-C15.
    """
    limits = case.limits("R21")
    charge = case.charge(("communication.kv_transfer",))
    rows = case.summary["transfers"]
    if not charge.ns or not rows:
        return None
    ttft = sum(case.request_rows[id]["ttft_ns"] or 0 for id in charge.requests)
    spent = _before_first_token(case)
    total = sum(row["total_ns"] for row in rows)
    moved = sum(row["bytes"] or 0 for row in rows)
    pieces, posted = (
        sum(row["pieces"] or 0 for row in rows),
        sum(row["post_ns"] or 0 for row in rows),
    )
    speed = moved * 1e9 / total if total and moved else None
    link = min((row["link_bytes_s"] for row in rows if row["link_bytes_s"]), default=None)
    long = ttft > 0 and spent >= limits["ttft_share"] * ttft
    slow = speed is not None and link is not None and speed < limits["link_share"] * link
    if not (long or slow):
        return None
    tiny = _tiny_pieces(rows, limits)
    return Hint(
        f"KV hand-over {time(total)} for {size(moved)} in {plural(pieces, 'piece')}"
        + (f" ({rate(speed)})" if speed else "")
        + (f"; posting them takes {percent(posted / total)}" if tiny else ""),
        "high",
        charge,
        {
            "transfers": len(rows),
            "total_ns": total,
            "bytes": moved or None,
            "pieces": pieces or None,
            "bytes_a_piece": moved // pieces if pieces and moved else None,
            "post_ns": posted or None,
            "rate_bytes_s": speed,
            "link_bytes_s": link,
            "ttft_share": spent / ttft if ttft else None,
        },
    )


def _before_first_token(case: Case) -> int:
    code = CODE["communication.kv_transfer"]
    found = (life.totals_in(life.request.arrival, life.request.first_token) for life in case.lives)
    return sum(int(totals[code]) for totals in found if totals is not None)


def _tiny_pieces(rows: Sequence[Mapping[str, int | None]], limits: Mapping[str, float]) -> bool:
    """Whether a hand-over is many tiny pieces whose posting takes most of the time."""
    for row in rows:
        pieces, moved = row["pieces"] or 0, row["bytes"] or 0
        many = pieces > limits["pieces"] and moved <= limits["piece_bytes"] * pieces
        if many and (row["post_ns"] or 0) >= limits["post_share"] * (row["total_ns"] or 0):
            return True
    return False


@rule(
    "R31",
    "MOE-IMBALANCE",
    "communication",
    Stage.PEER,
    peers=True,
    disproof="expert kernels as long on every rank",
)
def uneven_experts(case: Case) -> Hint | None:
    """One rank has more expert work than the others, which wait for it.

    Symptom: per step, the expert kernel time of the busiest rank is `ratio` times the mean in
    `step_share` of the steps, and the others wait in collectives. Source: thread C71. Disproof:
    equal expert time.
    """
    limits = case.limits("R31")
    times = _expert_time(case) if len(case.job.ranks) > 1 else np.zeros((0, 0), np.int64)
    if not len(times):
        return None
    mean, top = times.mean(axis=1), times.max(axis=1)
    uneven = top >= limits["ratio"] * mean
    if uneven.mean() < limits["step_share"]:
        return None
    busiest = int(np.argmax(np.bincount(times.argmax(axis=1)[uneven])))
    rank = case.job.ranks[busiest][1].rank.number
    waited = [one for one in _arrivals(case) if one.last == rank and one.wait > 0]
    lost = int((top - mean)[uneven].sum())
    if not waited or not lost:
        return None
    spans = intervals.union(
        *(np.array(side) for side in zip(*(w.late for w in waited), strict=True))
    )
    more = float(times[uneven, busiest].sum() / mean[uneven].sum() - 1)
    charge = case.charge(ANY, spans)
    return Hint(
        f"Rank {rank} does {percent(more)} more expert work than the mean",
        "high",
        charge,
        {
            "rank": rank,
            "more_than_mean": more,
            "uneven_steps": int(uneven.sum()),
            "steps": len(times),
            "lost_ns": lost,
            "waited_ns": sum(one.wait for one in waited),
        },
    )


def _expert_time(case: Case) -> Ints:
    """The time of expert kernels by step and rank, ns, in steps that every rank made."""
    by_rank: list[dict[int, int]] = []
    for number, (recording, partition) in enumerate(case.job.ranks):
        ids = recording.steps.id[partition.steps].tolist()
        times = case.in_steps(number, ("compute.moe",)).tolist()
        by_rank.append(dict(zip(ids, times, strict=True)))
    common: set[int] = set(by_rank[0]).intersection(*by_rank[1:]) if by_rank else set()
    rows = [[row[id] for row in by_rank] for id in sorted(common)]
    found = np.array([row for row in rows if any(row)], np.int64)
    return found if found.ndim == 2 else np.zeros((0, 0), np.int64)
