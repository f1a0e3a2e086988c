"""The blocks of one memory tier as requests and transfers see them: find, hold, allocate, give back.

Pool and index together: the pool knows who holds a block, the index knows what a block means; this class keeps each
told about the other. It is the only thing of this package that scheduler and worker touch. A worker with several tiers
has one cache per tier; each is closed under prefixes by itself.

Invariants: ``free + cached + held == total`` after every call; a block that somebody holds is never evicted and never
handed out; a call that cannot be served changes nothing; while `on_evict` runs nothing changes at all. Knows nothing
about requests, tokens, bytes or other tiers.
Not thread-safe: one thread owns it.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.kv.block_pool import BlockPool, Generations
from common.kv.events import BlockEvent, EventLog, IndexDigest
from common.kv.eviction import EvictionPolicy
from common.kv.radix_index import OnEvict, RadixIndex


class BlockCache:
    """`num_blocks` blocks, reusable by prefix hash."""

    def __init__(
        self,
        num_blocks: int,
        max_events: int = 65536,
        generations: Generations | None = None,
        *,
        tier: int = 1,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
        on_evict: OnEvict | None = None,
    ) -> None:
        """Start with every block free.

        Args:
            num_blocks: blocks in the tier.
            max_events: events kept for `take_events`; see `EventLog` for what happens beyond.
            generations: see `BlockPool`.
            tier: the number that its events carry.
            eviction: which leaf goes first.
            on_evict: called before `allocate` evicts, once per run of blocks that goes, with hashes and blocks of its
                whole path in order and how many of the last go now: their bytes are still there. It must not change
                this cache. Neither `flush` nor `forget` calls it.
        """
        self._pool = BlockPool(num_blocks, generations)
        self._log = EventLog(self.snapshot, max_events, tier)
        self._index = RadixIndex(self._pool, self._log, eviction)
        self._on_evict = on_evict
        self._evicting = False
        self.tier = tier
        self.num_evictions = 0

    @property
    def eviction(self) -> EvictionPolicy:
        """Which leaf goes first."""
        return self._index.policy

    @property
    def num_blocks(self) -> int:
        """All blocks, whatever their state."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody references and the index does not know."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that only the index knows. A few may be pinned: a held block lies below them."""
        return self._pool.num_cached

    @property
    def num_held(self) -> int:
        """Blocks that a request or a transfer references."""
        return self._pool.num_held

    @property
    def num_available(self) -> int:
        """Most blocks that `allocate` can give now: free ones and evictable ones."""
        return self._pool.num_free + self._index.num_evictable

    @property
    def num_nodes(self) -> int:
        """Nodes of the radix tree."""
        return self._index.num_nodes

    @property
    def num_shared_blocks(self) -> int:
        """Indexed blocks that several paths begin with: O(nodes)."""
        return self._index.count_shared()

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of the path are here; changes nothing, promises nothing."""
        return self._index.match(hashes)

    def used_twice(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of the path were acquired after they were inserted; changes nothing."""
        return self._index.match_reused(hashes)

    def blocks_of(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the leading blocks of the path that are here; changes nothing, promises nothing."""
        return self._index.blocks_of(hashes)

    def priority_of(self, hashes: Sequence[bytes]) -> int:
        """Return the highest priority of those who inserted or used what is here of the path; changes nothing."""
        return self._index.priority_of(hashes)

    def use(self, hashes: Sequence[bytes], *, priority: int = 0) -> None:
        """Count a use of the leading blocks of the path that are here, as `acquire` does, without holding them."""
        self._assert_steady()
        blocks = self._index.blocks_of(hashes)
        if blocks:
            self._index.use(blocks[-1], priority)

    def acquire(self, hashes: Sequence[bytes], *, touch: bool = True, priority: int = 0) -> list[int]:
        """Hold and return the leading blocks of the path that are here; release them later.

        It counts as a use, on behalf of a request of that priority, unless `touch` is False.
        """
        blocks = self._index.blocks_of(hashes)
        self.hold(blocks)
        if blocks and touch:
            self._index.use(blocks[-1], priority)
        return blocks

    def allocate(self, count: int) -> list[int] | None:
        """Return `count` blocks to write, held by the caller; evicts as few cached blocks as needed.

        None, and nothing changed, when there is no room now.
        """
        self._assert_steady()
        if count > self.num_available:
            return None
        shortage = count - self._pool.num_free
        if shortage > 0:
            self._evict(shortage)
        return self._pool.allocate(count)

    def insert(self, hashes: Sequence[bytes], block_ids: Sequence[int], *, priority: int = 0) -> None:
        """Index full blocks that the caller holds, given from the first block of the path on.

        A hash that another block stands for already keeps that block; the caller's copy stays private and becomes free
        when it is released. The path's priority is the highest of those who inserted or acquired it.
        """
        self._assert_steady()
        self._index.insert(hashes, block_ids, priority)

    def hold(self, block_ids: Sequence[int]) -> None:
        """Add a reference to blocks that are held or cached; release them later."""
        self._assert_steady()
        for block in reversed(block_ids):  # the deepest first: it pins those above it in one go
            if self._pool.hold(block):
                self._index.pin(block)

    def release(self, block_ids: Sequence[int], *, touch: bool = True) -> None:
        """Drop one reference to each block; what nobody holds any more is cached if indexed, else free.

        What is cached now counts as recent, unless `touch` is False.
        """
        self._assert_steady()
        self._index.unpin([b for b in block_ids if self._pool.release(b) and self._index.has(b)], touch=touch)

    def demote(self, hashes: Sequence[bytes]) -> None:
        """Make the leading blocks of the path that are here the first to go among equals, until they are used again.

        Equals are blocks of the same count of uses (lfu) or priority; slru protects them no longer. A later release
        with `touch` counts as recent use, so release first.
        """
        self._assert_steady()
        self._index.demote(hashes)

    def set_eviction(self, policy: EvictionPolicy) -> None:
        """Let another policy decide from now on: O(nodes). Nothing goes or comes by it."""
        self._assert_steady()
        self._index.set_policy(policy)

    def forget(self, block_hash: bytes) -> None:
        """Take a block that cannot be trusted, and all that build on it, out of the index; holders keep theirs."""
        self._assert_steady()
        self._index.forget(block_hash)

    def flush(self) -> int:
        """Free every cached block that no held block builds on; return how many."""
        self._assert_steady()
        dropped = self._index.flush()
        if dropped and not len(self._index):
            self._log.cleared()
        return dropped

    def num_references(self, block_id: int) -> int:
        """Number of references to a block."""
        return self._pool.num_references(block_id)

    def generation(self, block_id: int) -> int:
        """How often the block became free; compare it to tell whether its bytes are still the ones that were lent."""
        return self._pool.generation(block_id)

    def take_events(self) -> list[BlockEvent]:
        """Return what changed in the index since the last call, in order, and forget it."""
        return self._log.take()

    @property
    def digest(self) -> IndexDigest:
        """What the index adds up to."""
        return self._log.digest

    def snapshot(self) -> list[tuple[bytes, bytes]]:
        """Return (hash, parent hash) of every indexed block, parents first; b"" is the parent of a first block."""
        return self._index.snapshot()

    def check(self) -> None:
        """Assert the conservation law and the index's invariants: O(blocks), for tests and diagnosis."""
        self._pool.check()
        self._index.check()
        in_index = sum(self._index.has(b) and not self._pool.is_held(b) for b in range(self.num_blocks))
        assert in_index == self.num_cached, f"{in_index} unheld blocks in the index, {self.num_cached} cached"

    def _evict(self, count: int) -> None:
        self._evicting = True
        try:
            evicted = self._index.evict(count, self._on_evict)
        finally:
            self._evicting = False
        assert evicted == count, f"evicted {evicted} of {count} blocks"
        self.num_evictions += evicted

    def _assert_steady(self) -> None:
        assert not self._evicting, "on_evict must not change the cache that evicts"
