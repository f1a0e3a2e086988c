"""How many KV blocks a worker may have: its fair share of what the host has available at start."""

from __future__ import annotations

from pathlib import Path

import psutil

from common.base.errors import InvalidRequest
from common.transport.region import Region
from common.worker.config import WorkerConfig

MAX_FRACTION = 0.95
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that this process could take now: the host's, or its cgroup's where that is less."""
    available: int = psutil.virtual_memory().available
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available
    return min(available, max(0, limit - used))


def check_l2_fits(config: WorkerConfig, l1_blocks: int, l2_blocks: int, block_bytes: int, available: int) -> None:
    """Raise InvalidRequest unless L1 and L2 of all workers of this host together fit into what is available."""
    needed = (l1_blocks + l2_blocks) * block_bytes * config.workers_on_host
    if l2_blocks and needed > available * MAX_FRACTION:
        raise InvalidRequest(
            f"L1 and L2 of {config.workers_on_host} workers would take {needed >> 20} MiB of {available >> 20} MiB: "
            "lower --hicache-size or --mem-fraction-static",
            param="hicache_size",
        )


def pool_blocks(config: WorkerConfig, block_bytes: int, available: int) -> int:
    """Number of blocks of L1: what `mem_fraction_static` gives, less the part of an L2 that is a multiple of it.

    Raises:
        InvalidRequest: not even one request of one block fits.
    """
    share = int(available * config.mem_fraction_static / config.workers_on_host)
    blocks = int(share / (1 + config.l2_ratio)) // block_bytes
    if config.max_total_tokens:
        blocks = min(blocks, -(-config.max_total_tokens // config.block_size))
    least = 2 + config.growth_reserve_blocks
    if blocks < least:
        raise InvalidRequest(
            f"the KV pool would have {blocks} blocks of {block_bytes} bytes, it needs {least}: "
            f"raise --mem-fraction-static or --max-total-tokens (available: {available >> 20} MiB)",
            param="mem_fraction_static",
        )
    return blocks


def create_regions(config: WorkerConfig, block_bytes: int) -> tuple[Region, Region | None]:
    """The memory of L1 and, if there is one, of L2; untouched pages cost nothing.

    Raises:
        InvalidRequest: the sizes make no sense here.
    """
    available = available_bytes()
    l1_blocks = pool_blocks(config, block_bytes, available)
    l2_blocks = config.l2_blocks(l1_blocks, block_bytes)
    check_l2_fits(config, l1_blocks, l2_blocks, block_bytes, available)
    l2 = Region.create(l2_blocks, block_bytes) if l2_blocks else None
    return Region.create(l1_blocks, block_bytes), l2
