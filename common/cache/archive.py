"""Writing blocks to L3 behind the replies.

What is queued are paths, not blocks: a block is held only while its batch is written, and one that was evicted before
its turn is left out. Names that L3 is known to have, and those that wait, are not queued again; the memory of both is
bounded. A write that fails costs nobody anything: the block is offered again the next time its path is used.

Paths come again and again while they grow, so `offer` looks at them from their end, up to the first name that is known.
A block that L3 lacks in front of such names is a *hole*: it is remembered until it is filled, for what stands behind it
cannot be found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from common.cache.background import Background
from common.cache.config import ArchiveConfig
from common.cache.l3 import L3, BlockKey, PutState
from common.cache.tiers import Tier, Tiers

BLOCKS_PER_PUT = 128
MAX_HELD_RATIO = 0.125
"""Most blocks of a tier that one put holds, as a share of the tier."""


@dataclass(slots=True)
class ArchiveCounters:
    """Blocks by what became of them.

    Attributes:
        stored: written. present: L3 had them already.
        failed: L3 had no space, or an error. dropped: too many waited, or they were evicted before their turn.
    """

    stored: int = 0
    present: int = 0
    failed: int = 0
    dropped: int = 0


@dataclass(slots=True, frozen=True)
class _Job:
    path: Sequence[bytes]
    first: int


class Archive:
    """Writes paths that reached the lowest tier to L3, in order."""

    def __init__(self, tiers: Tiers, l3: L3, namespace: bytes, config: ArchiveConfig) -> None:
        self._tiers = tiers
        self._l3 = l3
        self._namespace = namespace
        self._config = config
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._holes: OrderedDict[bytes, None] = OrderedDict()
        self._pending: set[bytes] = set()
        self._closed = False
        self._jobs: Background[_Job] = Background("archive", self._write, config.max_pending_blocks)
        self.counters = ArchiveCounters()

    @property
    def num_pending(self) -> int:
        """Blocks that wait to be written."""
        return len(self._pending)

    def offer(self, path: Sequence[bytes]) -> None:
        """A path is in the lowest tier: write what L3 is not known to have. Quick, also when repeated."""
        first = self._first_new(path)
        new = path[first:]
        if not new:
            return
        if len(self._pending) + len(new) > self._config.max_pending_blocks or not self._jobs.put(_Job(path, first)):
            self.counters.dropped += len(new)
            return
        self._pending.update(new)

    def missing(self, prefix_hash: bytes) -> None:
        """L3 does not have a block, or not as it was written."""
        if prefix_hash in self._known:
            del self._known[prefix_hash]
            self._remember(self._holes, prefix_hash)

    def present(self, prefix_hash: bytes) -> None:
        """L3 has a block: it need not be offered."""
        self._holes.pop(prefix_hash, None)
        self._remember(self._known, prefix_hash)

    def forget(self) -> None:
        """L3 no longer has what it had."""
        self._known.clear()
        self._holes.clear()

    async def drained(self) -> None:
        """Wait until nothing waits to be written."""
        await self._jobs.drained()

    async def close(self) -> None:
        """Forget what waits, and let the running batch end."""
        self._closed = True
        await self._jobs.close()

    async def _write(self, job: _Job) -> None:
        try:
            first = job.first
            while first < len(job.path) and not self._closed:
                written = await self._write_batch(job.path, first)
                if not written:
                    self.counters.dropped += len(job.path) - first
                    return
                first += written
        finally:
            self._pending.difference_update(job.path[job.first :])

    async def _write_batch(self, path: Sequence[bytes], first: int) -> int:
        """Write some blocks of a path from block `first` on; returns how many were tried, 0 when none is here.

        A store may be slow, so blocks of L1 are held for it only where L2 has fewer.
        """
        tier = max(reversed(self._tiers.tiers), key=lambda t: t.cache.match(path))
        at_once = max(1, min(BLOCKS_PER_PUT, int(tier.cache.num_blocks * MAX_HELD_RATIO)))
        path = path[: first + at_once]
        held = tier.cache.acquire(path, touch=False)
        tier.cache.release(held[:first], touch=False)
        blocks = held[first:]
        if not blocks:
            return 0
        try:
            await self._put(tier, path[first:], blocks)
        finally:
            tier.cache.release(blocks, touch=False)
            self._tiers.hooks.on_change()
        return len(blocks)

    async def _put(self, tier: Tier, names: Sequence[bytes], blocks: Sequence[int]) -> None:
        named = [
            (BlockKey(self._namespace, name), tier.view(block)) for name, block in zip(names, blocks, strict=False)
        ]
        states = await self._l3.put(named, self._config.deadline_s)
        for (key, _), state in zip(named, states, strict=True):
            if state in (PutState.STORED, PutState.PRESENT):
                self.present(key.prefix_hash)
            match state:
                case PutState.STORED:
                    self.counters.stored += 1
                case PutState.PRESENT:
                    self.counters.present += 1
                case _:
                    self.counters.failed += 1
                    self._remember(self._holes, key.prefix_hash)

    def _first_new(self, path: Sequence[bytes]) -> int:
        """Index in a path from which on it is to be written; its length when L3 has all of it, or will have."""
        first = len(path)
        while first and path[first - 1] not in self._known and path[first - 1] not in self._pending:
            first -= 1
        if not self._holes:
            return first
        return next((i for i in range(first) if path[i] in self._holes and path[i] not in self._pending), first)

    def _remember(self, names: OrderedDict[bytes, None], name: bytes) -> None:
        names[name] = None
        if len(names) > self._config.max_known_blocks:
            names.popitem(last=False)
