"""The partition of a rank's window: each instant gets one part (CONTRACT section 5, rules 3-5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rca_llm import intervals
from rca_llm.attribute import contention, device, host, neighbours, pauses, step_work, steps
from rca_llm.attribute.codes import GRAPH_LAUNCH, SYNC, call_codes
from rca_llm.attribute.device import Activity
from rca_llm.attribute.host import HostRecords
from rca_llm.attribute.links import Links, among, link
from rca_llm.attribute.neighbours import SharedDevice
from rca_llm.attribute.parts import CLASS_OF, CLASSES, CODE, NO_PART, PARTS
from rca_llm.attribute.ranks import Rank, find_ranks
from rca_llm.attribute.serving import Serving
from rca_llm.attribute.step_work import StepWork
from rca_llm.attribute.steps import Steps
from rca_llm.attribute.stretches import Shared, shared
from rca_llm.intervals import Pieces
from rca_llm.table import Ints, RowsBy, known
from rca_llm.trace import Timeline


@dataclass(frozen=True)
class Recording:
    """A timeline with what attribution needs to know of it as a whole."""

    timeline: Timeline
    ranks: list[Rank]
    links: Links
    gpu_parts: Ints
    calls: Ints
    host: HostRecords
    launched_by: Ints
    on_gpu: bool
    steps: Steps

    @cached_property
    def shared_devices(self) -> list[SharedDevice]:
        """The devices that several of its ranks work on."""
        return [] if len(self.ranks) < 2 else neighbours.shared_devices(self.timeline)

    @cached_property
    def strangers(self) -> frozenset[int]:
        """The processes that share a device with an engine, and run none of its steps."""
        return neighbours.strangers(self.timeline, self.steps.process, self.shared_devices)

    @cached_property
    def serving(self) -> Serving:
        """Which requests its threads work for."""
        return Serving(self.timeline, self.host.threads, self.host.range_thread)

    @cached_property
    def _by_request(self) -> RowsBy:
        """The rows of `ranges` that have a kind and name a request, by request."""
        ranges = self.timeline["ranges"]
        if "request" not in ranges:
            return RowsBy(intervals.EMPTY.label)
        rows = np.flatnonzero((ranges["request"] >= 0) & (ranges["kind"] >= 0))
        return RowsBy(ranges["request"], rows)

    def spans_of_request(self, code: int) -> Ints:
        """The rows of `ranges` that have a kind and name a request (a text code)."""
        return self._by_request[code]


@dataclass(frozen=True)
class Segments:
    """A rank's window as a partition: disjoint, ascending pieces that leave nothing out.

    `part` indexes `PARTS`; `step` is a row of the recording's steps, -1 between steps; `activity`
    a row of the rank's activities, -1 where the devices are idle.
    """

    start: Ints
    end: Ints
    part: Ints
    step: Ints
    activity: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def pieces(self) -> Pieces:
        """The segments as pieces labelled with their part."""
        return Pieces(self.start, self.end, self.part)

    @cached_property
    def shared(self) -> Shared:
        """What they show all requests, which is worked out once."""
        return shared(self.pieces, self.step)

    def take(self, rows: Ints) -> Segments:
        """An ascending selection."""
        fields = (self.start, self.end, self.part, self.step, self.activity)
        return Segments(*(values[rows] for values in fields))


@dataclass(frozen=True)
class RankPartition:
    """A rank, its activities and steps, and where its time went."""

    rank: Rank
    activity: Activity
    segments: Segments
    work: StepWork
    hidden: dict[str, int]
    contended: Pieces = intervals.EMPTY
    """When its work waited for another process that had the device, by the id of that process."""

    @property
    def steps(self) -> Ints:
        """Rows of the recording's steps that this rank runs."""
        return self.work.rows

    @property
    def step_end(self) -> Ints:
        """The end of every step of the recording on this rank, work included."""
        return self.work.end

    @property
    def step_of(self) -> Ints:
        """The step of every `gpu` row, -1 for none and for other ranks' rows."""
        return self.work.of_gpu

    @property
    def totals(self) -> Ints:
        """The time of every part, ns."""
        return self.segments.pieces.sums(len(PARTS))


def prepare(timeline: Timeline) -> Recording:
    """Everything about a timeline that does not depend on the rank."""
    ranks = find_ranks(timeline)
    gpu, api = timeline["gpu"], timeline["api"]
    links = link(gpu, api)
    on_gpu = host.is_gpu_engine(timeline, ranks)
    records = host.host_records(timeline, on_gpu=on_gpu)
    return Recording(
        timeline,
        ranks,
        links,
        device.gpu_parts(gpu, timeline.strings),
        call_codes(timeline.strings, api["name"]),
        records,
        host.launching_threads(records, links),
        on_gpu,
        steps.find_steps(timeline),
    )


def activities(recording: Recording, rank: Rank) -> tuple[Activity, StepWork]:
    """A rank's device work, and the steps that it belongs to."""
    timeline = recording.timeline
    rows = steps.of_rank(recording.steps, rank, recording.strangers)
    mine = among(timeline["gpu"]["process"], [*rank.processes])
    work = step_work.find(timeline, recording.links, recording.steps, rows, mine)
    return device.activities(timeline, rank, recording.gpu_parts, work.of_gpu), work


def partition(
    recording: Recording, rank: Rank, activity: Activity, work: StepWork
) -> RankPartition:
    """Give every instant of a rank's window its part."""
    shared, links = recording.shared_devices, recording.links
    contended = contention.contended(recording.timeline, links, rank, shared)
    segments = _segments(recording, rank, activity, work, contended)
    hidden = _hidden(recording, rank, activity, segments)
    return RankPartition(rank, activity, segments, work, hidden, contended)


def _segments(
    recording: Recording, rank: Rank, activity: Activity, work: StepWork, contended: Pieces
) -> Segments:
    """Device work where there is some; else waits for others' work, and what the host did."""
    busy, part = _busy(rank, activity)
    idle = part == NO_PART
    current = steps.current(recording.steps.lasting(work.end), work.rows)
    explained = _idle(recording, rank, (busy.start[idle], busy.end[idle]), current, contended)
    start = np.concatenate([busy.start[~idle], explained.start])
    order = np.argsort(start, kind="stable")
    rows = Pieces(start, np.concatenate([busy.end[~idle], explained.end]), np.arange(len(start)))
    worker = np.concatenate([busy.label[~idle], np.full(len(explained), -1, np.int64)])
    labels = np.concatenate([part[~idle], explained.label])
    return _with_steps(rows.take(order), labels, worker, activity, current)


def _busy(rank: Rank, activity: Activity) -> tuple[Pieces, Ints]:
    """The window in pieces labelled with their activity, and the part of each; -1 where idle."""
    if rank.traced:
        return device.split_waits(device.occupied(activity, rank), activity)
    if rank.span == 0:
        return intervals.EMPTY, intervals.EMPTY.label
    start, end, nobody = (np.array([value]) for value in (rank.start, rank.end, -1))
    return Pieces(start, end, nobody), np.array([CODE["unknown.not_traced"]])


def _with_steps(
    rows: Pieces, part: Ints, worker: Ints, activity: Activity, current: Pieces
) -> Segments:
    """Cut at step edges and name the step of each piece; labels of `rows` lead to the columns."""
    edges = intervals.distinct(np.concatenate([current.start, current.end]))
    rows = intervals.cut(rows, edges) if len(rows) else rows
    part, worker = part[rows.label], worker[rows.label]
    found = intervals.at(current, rows.start)
    by_time = np.append(current.label, -1)[found]
    by_work = np.append(activity.step, -1)[worker]
    return Segments(rows.start, rows.end, part, np.where(by_work >= 0, by_work, by_time), worker)


def _idle(
    recording: Recording,
    rank: Rank,
    gaps: tuple[Ints, Ints],
    current: Pieces,
    contended: Pieces,
) -> Pieces:
    """The part of every idle instant: what nobody recorded, waits for neighbours, else the host's.

    What nobody recorded are pauses, and replays without kernels.
    """
    if not len(gaps[0]):
        return intervals.EMPTY
    threads = _responsible(recording, rank, gaps[1])
    engine = _engine_thread(recording, threads)
    if engine != host.NO_THREAD:
        gaps = _cut_at_steps(gaps, current)
        threads = _responsible(recording, rank, gaps[1])
        threads = np.where(intervals.at(current, gaps[0]) < 0, engine, threads)
    explained = host.explain(recording.host, gaps, threads, engine)
    lost = intervals.within(_unrecorded(recording, rank), gaps)
    paused = intervals.within(pauses.unknown(recording.timeline), gaps)
    queued = intervals.within(contended, gaps)
    queued = Pieces(queued.start, queued.end, np.full(len(queued), CODE["scheduling.queue"]))
    layers = [own for own in (paused, lost, queued) if len(own)]
    if not layers:
        return explained
    pieces, _ = intervals.overlay([*layers, explained], rank.start, rank.end)
    return pieces.take(np.flatnonzero(pieces.label != NO_PART))


def _responsible(recording: Recording, rank: Rank, gap_end: Ints) -> Ints:
    gpu = recording.timeline["gpu"]
    rows = np.flatnonzero(among(gpu["process"], [*rank.processes]) & known(gpu["start"]))
    launched_by = recording.launched_by[rows]
    counts = host.launch_counts(recording.host, launched_by)
    main = host.main_thread(recording.host, counts, rank.processes)
    return host.responsible(gap_end, gpu["start"][rows], launched_by, main)


def _engine_thread(recording: Recording, thread: Ints) -> int:
    """The thread that makes the steps, where it belongs to another process than those charged.

    Between steps it is charged itself; within them, where the others recorded nothing.
    """
    processes = set(np.unique(recording.steps.process).tolist())
    used: list[int] = intervals.distinct(thread).tolist()
    owners = {recording.host.threads[number][0] for number in used if number >= 0}
    if not processes or not recording.host.threads or owners & processes:
        return host.NO_THREAD
    nobody = np.zeros(len(recording.host.threads), np.int64)
    return host.main_thread(recording.host, nobody, tuple(processes))


def _cut_at_steps(gaps: tuple[Ints, Ints], current: Pieces) -> tuple[Ints, Ints]:
    edges = intervals.distinct(np.concatenate([current.start, current.end]))
    pieces = intervals.cut(Pieces(*gaps, np.arange(len(gaps[0]))), edges)
    return pieces.start, pieces.end


def _unrecorded(recording: Recording, rank: Rank) -> Pieces:
    """Where device work may have run of which nothing is left.

    All the time, of an input that ends early. Else where graph replays ran that left neither
    kernels nor a record of their own:
    from each such launch to the next device record, the end of the next synchronisation on its
    thread, or the next launch, whichever comes first.
    """
    if rank.cut:
        whole = (rank.start, rank.end, CODE["unknown.not_recorded"])
        start, end, part = (np.array([value], np.int64) for value in whole)
        return Pieces(start, end, part)
    timeline = recording.timeline
    api, gpu = timeline["api"], timeline["gpu"]
    launches = np.flatnonzero(
        (recording.calls == GRAPH_LAUNCH) & among(api["process"], [*rank.processes])
    )
    launches = launches[np.isin(launches, recording.links.api_row, invert=True)]
    if not len(launches) or not rank.traced:
        return intervals.EMPTY
    start = np.sort(api["start"][launches])
    stops = [
        start,
        gpu["start"][known(gpu["start"])],
        api["end"][recording.calls == SYNC],
        np.array([rank.end], np.int64),
    ]
    edges = intervals.distinct(np.concatenate(stops))
    after = np.minimum(np.searchsorted(edges, start, "right"), len(edges) - 1)
    end = edges[after]
    keep = end > start
    part = np.full(int(keep.sum()), CODE["unknown.not_recorded"], np.int64)
    return Pieces(start[keep], end[keep], part)


def unrecorded_graphs(recording: Recording) -> int:
    """How many graph launches left neither kernels nor a record of their own."""
    launches = np.flatnonzero(recording.calls == GRAPH_LAUNCH)
    return int(np.isin(launches, recording.links.api_row, invert=True).sum())


def _hidden(
    recording: Recording, rank: Rank, activity: Activity, segments: Segments
) -> dict[str, int]:
    """For each class, how long something of it ran while another part was charged.

    What a record says of a pause is neither charged nor hidden: nobody knows what it hid behind.
    """
    records = recording.host
    mine = np.array([process in rank.processes for process, _ in records.threads], bool)
    rows = np.flatnonzero(mine[records.thread]) if len(records.thread) else records.thread
    start = np.concatenate([activity.start, records.start[rows]])
    end = np.concatenate([activity.end, records.end[rows]])
    group = CLASS_OF[np.concatenate([activity.part, records.part[rows]])]
    charged = CLASS_OF[segments.part]
    paused = pauses.within(recording.timeline, segments.pieces)
    found: dict[str, int] = {}
    for name in ("communication", "io", "scheduling"):
        own, paid = group == CLASSES.index(name), charged == CLASSES.index(name)
        ran = intervals.union(
            np.clip(start[own], rank.start, rank.end),
            np.clip(end[own], rank.start, rank.end),
        )
        total = int((ran[1] - ran[0]).sum())
        paid_for = intervals.union(
            np.concatenate([segments.start[paid], paused.start]),
            np.concatenate([segments.end[paid], paused.end]),
        )
        found[name] = total - intervals.common(ran, paid_for)
    return found
