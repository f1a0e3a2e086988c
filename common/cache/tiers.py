"""L1 and L2 of a worker, and the moves between them.

::

    L1 blocks  --touched: write policy--> copied behind the requests --->  L2 blocks --> archive (L3)
               --evicted under write_back, parked: copied at once ---->
               <-- load: for a request that is admitted ---------------

Each tier is a `BlockCache` of its own over a region of its own, with the same layout: a move is one copy of one extent.
Each index is closed under prefixes, so what a path has is a head in L1 and a head in L2, whichever is longer; no move
has to keep two trees in step, and either tier may be smaller, flushed or missing (ADR 0006).

Invariants: bytes enter an index only after they are complete; whatever is copied is held at both ends while it is; jobs
name paths, never blocks they do not hold. Lives on the worker's loop; only long copies run elsewhere. Knows nothing of
requests, engines or stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.base.errors import Leg, Unavailable
from common.base.failpoints import DISABLED, Failpoints, Kind, inflict
from common.cache.background import Background
from common.cache.config import TierPolicies, WritePolicy
from common.kv.block_cache import BlockCache
from common.kv.events import BlockEvent, IndexDigest
from common.transport.region import Region

LOAD, SAVE = "l2.load", "l2.save"
MAX_PENDING_SAVES = 4096
MAX_FAULT_S = 5.0
"""Nobody who waits for a move has a deadline, so a failpoint holds one up for so long at most."""
MAX_INLINE_BYTES = 4 << 20
"""A copy up to this size, about 1 ms, is made on the loop: handing it to a thread takes longer."""


@dataclass(slots=True, frozen=True)
class Tier:
    """One tier: which blocks it has, and their bytes.

    Attributes:
        number: 1 or 2.
        cache: pool and index.
        region: the bytes, as peers may read them.
        rows: the same bytes: [num_blocks, block_bytes].
    """

    number: int
    cache: BlockCache
    region: Region
    rows: NDArray[np.uint8]

    def view(self, block: int) -> memoryview:
        """Writable view of a block's bytes."""
        offset, length = self.region.extent(block)
        return self.region.data[offset : offset + length]


@dataclass(slots=True)
class MoveCounters:
    """Blocks moved between L1 and L2 so far, and those that should have been."""

    saved: int = 0
    loaded: int = 0
    dropped: int = 0


@dataclass(slots=True)
class Hooks:
    """Who hears of what happens here; set by the owner before the first block is used.

    Attributes:
        on_change: an index changed outside of the scheduler's calls.
        on_stored: a path has reached the lowest tier of this worker, L2 or, without one, L1.
        on_distrusted: the KV of a path may be damaged; L1 and L2 have forgotten it.
    """

    on_change: Callable[[], None] = lambda: None
    on_stored: Callable[[Sequence[bytes]], None] = lambda path: None
    on_distrusted: Callable[[Sequence[bytes]], None] = lambda path: None


class Tiers:
    """The KV blocks of one worker. Implements `common.sched.tiering.LowerTiers`."""

    def __init__(
        self,
        l1: Region,
        l2: Region | None = None,
        policies: TierPolicies | None = None,
        failpoints: Failpoints = DISABLED,
    ) -> None:
        """Start empty over regions with extents of one size; the regions stay the caller's."""
        self.policies = policies or TierPolicies()
        self.l1 = self._make_tier(1, l1)
        self.l2 = self._make_tier(2, l2) if l2 is not None else None
        self.hooks = Hooks()
        self.counters = MoveCounters()
        self._failpoints = failpoints
        failpoints.register(LOAD, Kind.CALL, "blocks are copied from L2 to L1")
        failpoints.register(SAVE, Kind.CALL, "blocks are copied from L1 to L2, behind the requests")
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="kv-mover")
        self._saves: Background[tuple[Sequence[bytes], int]] = Background(
            "save", lambda job: self.save(*job), MAX_PENDING_SAVES
        )
        self._moves: set[asyncio.Future[None]] = set()

    @property
    def lowest(self) -> Tier:
        """L2, or L1 where there is no L2: where blocks for and from L3 lie."""
        return self.l2 or self.l1

    @property
    def tiers(self) -> list[Tier]:
        """The tiers there are, L1 first."""
        return [self.l1] if self.l2 is None else [self.l1, self.l2]

    @property
    def num_pending_saves(self) -> int:
        """Paths that wait to be copied to L2."""
        return len(self._saves)

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of the path are here in L1 or L2; promises nothing."""
        return max(tier.cache.match(hashes) for tier in self.tiers)

    def acquire(self, hashes: Sequence[bytes], num_here: int, *, touch: bool = True, priority: int = 0) -> list[int]:
        """See `LowerTiers.acquire`."""
        if self.l2 is None or self.l2.cache.match(hashes) <= num_here:
            return []
        blocks = self.l2.cache.acquire(hashes, touch=touch, priority=priority)
        self.l2.cache.release(blocks[:num_here], touch=touch)
        return blocks[num_here:]

    def release(self, blocks: Sequence[int], *, touch: bool = True) -> None:
        """See `LowerTiers.release`."""
        if blocks:
            self._l2().cache.release(blocks, touch=touch)

    def touched(self, hashes: Sequence[bytes], priority: int) -> None:
        """The path is in L1 and was stored or found there just now: copy it downwards if the policy says so."""
        match self.policies.write:
            case WritePolicy.WRITE_BACK:
                return
            case WritePolicy.WRITE_THROUGH_SELECTIVE:
                hashes = hashes[: self.l1.cache.used_twice(hashes)]
        if not hashes:
            return
        if self.l2 is None or self.l2.cache.match(hashes) == len(hashes):
            self.hooks.on_stored(hashes)
        elif not self._saves.put((hashes, priority)):
            self.counters.dropped += 1

    def park(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy a path to L2 before this returns; under write_back its eviction does that, if it comes to it."""
        if self.l2 is not None and self.policies.write is not WritePolicy.WRITE_BACK:
            self._copy_down(hashes, blocks)

    def distrust(self, hashes: Sequence[bytes]) -> None:
        """See `LowerTiers.distrust`."""
        if self.l2 is not None:
            self.l2.cache.forget(hashes[0])
        self.hooks.on_distrusted(hashes)

    async def load(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy L2 blocks into L1 blocks; the caller holds both until this is over. Then nothing is written any more.

        Raises:
            Unavailable: a failpoint says so.
        """
        await self._move(LOAD, self._l2(), sources, self.l1, targets)
        self.counters.loaded += len(sources)

    def loaded(self, hashes: Sequence[bytes]) -> None:
        """A path has been loaded: under write_back its copy in L2 is the first to go."""
        if self.l2 is not None and self.policies.write is WritePolicy.WRITE_BACK:
            self.l2.cache.demote(hashes)

    async def save(self, path: Sequence[bytes], priority: int = 0) -> None:
        """Copy to L2 what L1 has of a path and L2 lacks, as far as there is room."""
        l1, l2 = self.l1, self._l2()
        blocks = l1.cache.acquire(path, touch=False)
        path = path[: len(blocks)]
        head = l2.cache.acquire(path, touch=False)
        missing = blocks[len(head) :]
        new = l2.cache.allocate(min(len(missing), l2.cache.num_available)) or []
        self.counters.dropped += len(missing) - len(new)
        try:
            if new:
                await self._move(SAVE, l1, missing[: len(new)], l2, new)
                if l1.cache.blocks_of(path) == blocks:  # else they are not trusted any more
                    self._insert(path, head + new, priority)
                    self.counters.saved += len(new)
        finally:
            l2.cache.release(head + new)
            l1.cache.release(blocks, touch=False)
            self.hooks.on_change()

    def set_policies(self, policies: TierPolicies) -> None:
        """Put other policies in force; `check_policies` has passed."""
        self.policies = policies
        self.l1.cache.set_eviction(policies.l1_eviction)
        if self.l2 is not None:
            self.l2.cache.set_eviction(policies.l2_eviction)

    def take_events(self) -> list[BlockEvent]:
        """Return what changed in the indexes since the last call, in order per tier, and forget it."""
        return [event for tier in self.tiers for event in tier.cache.take_events()]

    def digest(self) -> IndexDigest:
        """What the indexes of all tiers add up to."""
        total = IndexDigest()
        for tier in self.tiers:
            total = total.plus(tier.cache.digest)
        return total

    def check(self) -> None:
        """Assert the conservation law and the invariants of every tier: for tests and diagnosis."""
        for tier in self.tiers:
            tier.cache.check()

    async def drained(self) -> None:
        """Wait until nothing is being moved."""
        await self._saves.drained()
        if self._moves:
            await asyncio.wait(self._moves)

    async def close(self) -> None:
        """End all moves; the regions may be closed afterwards."""
        await self._saves.close()
        await self.drained()
        self._mover.shutdown()

    async def _move(
        self, failpoint: str, source: Tier, sources: Sequence[int], target: Tier, targets: Sequence[int]
    ) -> None:
        """Copy, a lot of it in the mover thread; ends when the copy has ended, however often it is cancelled."""
        await self._suffer(failpoint)
        if len(targets) * target.region.extent_bytes <= MAX_INLINE_BYTES:
            _copy(source.rows, sources, target.rows, targets)
            return
        copying = asyncio.get_running_loop().run_in_executor(
            self._mover, _copy, source.rows, list(sources), target.rows, list(targets)
        )
        self._moves.add(copying)
        copying.add_done_callback(self._moves.discard)
        cancelled: asyncio.CancelledError | None = None
        while not copying.done():
            try:
                await asyncio.wait((copying,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        copying.result()

    async def _suffer(self, failpoint: str) -> None:
        """Carry a failpoint out, for a bounded time; raises Unavailable."""
        try:
            async with asyncio.timeout(MAX_FAULT_S):
                await inflict(self._failpoints.hit(failpoint), lambda: Unavailable(failpoint, leg=Leg.STORE))
        except TimeoutError as error:
            raise Unavailable(f"{failpoint} took more than {MAX_FAULT_S:g} s", leg=Leg.STORE) from error

    def _spill(self, path: Sequence[bytes], blocks: Sequence[int], num_going: int) -> None:
        """L1 evicts the last `num_going` blocks of a path."""
        if self.l2 is not None and self.policies.write is WritePolicy.WRITE_BACK:
            self._copy_down(path, blocks)

    def _copy_down(self, path: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy a path from L1 to L2, all or nothing, now."""
        l2 = self._l2()
        head = l2.cache.acquire(path, touch=False)
        new = l2.cache.allocate(len(path) - len(head))
        if new is None:
            self.counters.dropped += len(path) - len(head)
        elif new:
            _copy(self.l1.rows, blocks[len(head) :], l2.rows, new)
            self._insert(path, head + new, self.l1.cache.priority_of(path))
            self.counters.saved += len(new)
        l2.cache.release(head + (new or []))

    def _insert(self, path: Sequence[bytes], blocks: Sequence[int], priority: int) -> None:
        stored = path[: len(blocks)]
        self._l2().cache.insert(stored, blocks, priority=priority)
        self.hooks.on_stored(stored)

    def _l2(self) -> Tier:
        assert self.l2 is not None, "there is no L2"
        return self.l2

    def _make_tier(self, number: int, region: Region) -> Tier:
        rows = np.frombuffer(region.data, np.uint8).reshape(region.num_extents, region.extent_bytes)
        eviction = self.policies.l1_eviction if number == 1 else self.policies.l2_eviction
        cache = BlockCache(
            region.num_extents,
            generations=region.generations,
            tier=number,
            eviction=eviction,
            on_evict=self._spill if number == 1 else None,
        )
        return Tier(number, cache, region, rows)


def _copy(source: NDArray[np.uint8], sources: Sequence[int], target: NDArray[np.uint8], targets: Sequence[int]) -> None:
    for here, there in zip(sources, targets, strict=True):
        target[there] = source[here]
