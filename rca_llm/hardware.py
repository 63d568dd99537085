"""Limits of GPUs and what follows from them for a launch: theoretical occupancy."""

from __future__ import annotations

from collections.abc import Mapping

WARP = 32
REGISTER_UNIT = 256
SUB_PARTITIONS = 4
SHARED_UNIT = 128


def occupancy(threads: int, registers: int, shared: int, limits: Mapping[str, int]) -> float | None:
    """The theoretical occupancy of a launch, a fraction; None where a limit is not known.

    `threads` a block, `registers` a thread, `shared` bytes a block. Formula: `cuda_occupancy.h` of
    CUDA 13.0. `limits` are device attributes as `Device.limits` names them.
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
    return min(blocks * warps / most_warps, 1.0)
