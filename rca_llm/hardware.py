"""Limits and peaks of GPUs, and what follows from them for a launch: occupancy, waves, tail."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from rca_llm import tsv

WARP = 32
REGISTER_UNIT = 256
SUB_PARTITIONS = 4
SHARED_UNIT = 128
DEPENDENT_CYCLES = 4
"""From an arithmetic instruction to one that needs its result, from Volta on: Jia et al.,
"Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018."""

BUSY_WARPS = SUB_PARTITIONS * DEPENDENT_CYCLES
"""Warps with which every scheduler of a multiprocessor has an instruction for each cycle."""


def occupancy(threads: int, registers: int, shared: int, limits: Mapping[str, int]) -> float | None:
    """The theoretical occupancy of a launch, a fraction; None where a limit is not known.

    `threads` a block, `registers` a thread, `shared` bytes a block. Formula: `cuda_occupancy.h` of
    CUDA 13.0. `limits` are device attributes as `Device.limits` names them.
    """
    blocks = blocks_per_sm(threads, registers, shared, limits)
    if blocks is None:
        return None
    warps, most = -(-threads // WARP), limits["max_threads_per_sm"] // WARP
    return min(blocks * warps / most, 1.0)


def blocks_per_sm(
    threads: int, registers: int, shared: int, limits: Mapping[str, int]
) -> int | None:
    """How many blocks of a launch fit one multiprocessor; None where a limit is not known.

    Arguments and formula as for `occupancy`.
    """
    needed = (
        "max_threads_per_sm",
        "max_blocks_per_sm",
        "registers_per_sm",
        "shared_per_sm",
    )
    if threads <= 0 or any(name not in limits for name in needed):
        return None
    warps = -(-threads // WARP)
    most_warps = limits["max_threads_per_sm"] // WARP
    blocks = min(limits["max_blocks_per_sm"], most_warps // warps)
    if registers > 0:
        a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        fitting = limits["registers_per_sm"] // SUB_PARTITIONS // a_warp * SUB_PARTITIONS
        blocks = min(blocks, fitting // warps)
    reserved = limits.get("shared_reserved_per_block", 0)
    used = -(-(shared + reserved) // SHARED_UNIT) * SHARED_UNIT
    if used > 0:
        blocks = min(blocks, limits["shared_per_sm"] // used)
    return blocks


@dataclass(frozen=True)
class Waves:
    """How the blocks of a launch fill a device.

    `waves` is blocks over what all multiprocessors hold at once; `efficiency` the fraction of the
    block slots, over all waves begun, that have a block; `busy_sms` how many multiprocessors get
    one.
    """

    blocks: int
    waves: float
    efficiency: float
    busy_sms: int
    sms: int


def waves(blocks: int, per_sm: int, sms: int) -> Waves | None:
    """How `blocks` fill `sms` multiprocessors that hold `per_sm` each; None of nothing.

    A grid that does not fill one wave is judged by the multiprocessors that stay empty: those that
    hold fewer blocks than they could are no loss by themselves.
    """
    if blocks <= 0 or per_sm <= 0 or sms <= 0:
        return None
    count = blocks / (per_sm * sms)
    filled = min(blocks / sms, 1.0) if count <= 1 else count / math.ceil(count)
    return Waves(blocks, count, filled, min(blocks, sms), sms)


def tail_share(blocks: int, threads: int, per_sm: int, sms: int) -> float | None:
    """The fraction of its time that a grid would not take with its work spread evenly; an estimate.

    Of `blocks` equal ones of so many `threads`, `per_sm` fit on each of `sms` multiprocessors. None
    where all fit at once: there is no last wave then. A multiprocessor takes r blocks of w warps in
    a time of r / min(1, r w / `BUSY_WARPS`): in proportion to their number once they fill its
    schedulers, and as long as one alone while they do not. Kernels that wait for memory need more
    warps than that; their last wave takes longer, at most as long as a full one.
    """
    if min(blocks, threads, per_sm, sms) <= 0 or blocks <= per_sm * sms:
        return None
    full, rest = divmod(blocks, per_sm * sms)
    warps = -(-threads // WARP)
    now = full * _taken(per_sm, warps) + _taken(-(-rest // sms), warps)
    even = blocks / (per_sm * sms) * _taken(per_sm, warps)
    return max(1 - even / now, 0.0)


def _taken(blocks: int, warps: int) -> float:
    """How long a multiprocessor takes for some blocks at once, in times of one among many."""
    return blocks / min(1.0, blocks * warps / BUSY_WARPS) if blocks else 0.0


PCIE_PAYLOAD = 128 / 130 * 256 / (256 + 20)
"""The fraction of a PCIe link's rate that is left for bytes, at most: 128 of 130 bits (the encoding
from generation 3 on), and 256 bytes, the usual largest payload of a packet, beside 20 of framing,
shortest header and checksum (PCI Express Base Specification)."""


@dataclass(frozen=True)
class Peak:
    """What a device can do at most, from its data sheet.

    `flops` holds FLOP/s by number format (`bf16`, `fp8`, `tf32`, `fp32`), dense; the rest is bytes
    a second in one direction, None where unknown or absent.
    """

    sms: int
    flops: Mapping[str, float]
    memory_bytes_s: float
    link_bytes_s: float | None
    pcie_bytes_s: float | None
    source: str


_FORMATS = ("bf16", "fp8", "tf32", "fp32")


@cache
def _rows() -> tuple[dict[str, str], ...]:
    return tuple(tsv.records("rca_llm", "hardware.tsv"))


def peak(name: str | None, limits: Mapping[str, int]) -> Peak | None:
    """The peak of a device by its name, memory and multiprocessors; None of an unknown device.

    A slice of a device (MIG) has fewer multiprocessors than its model and no peak here.
    """
    row = next((row for row in _rows() if name and _fits(row, name, limits)), None)
    if row is None:
        return None
    flops = {f: float(row[f]) * 1e12 for f in _FORMATS if row[f]}
    return Peak(
        int(row["sms"]),
        flops,
        float(row["memory"]) * 1e9,
        float(row["link"]) * 1e9 if row["link"] else None,
        float(row["pcie"]) * 1e9 if row["pcie"] else None,
        row["source"],
    )


def model(name: str | None) -> int | None:
    """The multiprocessors of the whole device that a name stands for, None of an unknown one."""
    row = next((row for row in _rows() if name and re.search(row["pattern"], name, re.I)), None)
    return int(row["sms"]) if row else None


def most_sms() -> int:
    """The multiprocessors of the largest device known."""
    return max(int(row["sms"]) for row in _rows())


def _fits(row: Mapping[str, str], name: str, limits: Mapping[str, int]) -> bool:
    if not re.search(row["pattern"], name, re.I):
        return False
    sms, memory = limits.get("sms"), limits.get("memory_bytes")
    low, high = (float(value) for value in row["memory_gb"].split("-"))
    return (sms is None or sms == int(row["sms"])) and (
        memory is None or low * 1e9 <= memory <= high * 1e9
    )
