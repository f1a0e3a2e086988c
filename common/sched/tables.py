"""Block tables: which blocks a request gets, when they are indexed, and when they go back.

The rules of admission live here: a request gets blocks for *all* its known tokens when it is admitted, so that a
prefill never stops half-way for want of blocks; only decoding grows a table later, and a reserve is kept for that.

Below L1 there may be more tiers: they hear of each path that is stored or found here, and what they have of a request's
path is loaded into its table rather than computed.

Invariants: the table of an open request covers its known tokens as of the last `open` or `grow`; only full blocks whose
KV is computed or verified are indexed, so nobody shares a block that is still written. Knows nothing about queues,
seats or plans.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.kv.block_cache import BlockCache
from common.sched.config import SchedulerConfig
from common.sched.request import Request
from common.sched.tiering import Load, LowerTiers


class BlockTables:
    """Fills and empties the block tables of requests from one cache."""

    def __init__(self, cache: BlockCache, lower: LowerTiers) -> None:
        """Work on `cache`, which others may hold blocks of as well, with `lower` below it."""
        self._cache = cache
        self._lower = lower

    def open(self, request: Request, config: SchedulerConfig, *, idle: bool, max_new: int | None = None) -> bool:
        """Give a request its cached prefix, and blocks for all other known tokens; False: no room now, nothing held.

        Args:
            request: has no blocks.
            config: growth reserve and high-water mark.
            idle: nobody runs or lands: the reserve and the marks, which exist for those, do not apply.
            max_new: most blocks that may be allocated, None for no bound.
        """
        assert not request.block_table, f"request {request.request_id} has {len(request.block_table)} blocks"
        num_blocks = request.num_blocks_for(request.num_tokens)
        hashes = request.reusable_hashes()
        cached = self._cache.acquire(hashes, touch=False)
        num_new = num_blocks - len(cached)
        fits = max_new is None or num_new <= max_new
        if not idle:
            fits = fits and self._leaves_room(num_new, config)
        new = self._allocate(hashes, len(cached), num_new) if fits else None
        if new is None:
            self._cache.release(cached, touch=False)
            return False
        request.block_table = cached + new
        request.num_computed = len(cached) * request.block_size
        if cached:
            self._cache.use(hashes[: len(cached)], priority=request.priority)
            self._lower.touched(hashes[: len(cached)], request.priority)
        return True

    def find_load(self, request: Request, config: SchedulerConfig) -> Load | None:
        """Hold what L2 has of an open request's path beyond its computed tokens; None when that is not worth a copy."""
        first = request.num_computed // request.block_size
        sources = self._lower.acquire(request.reusable_hashes(), first, priority=request.priority)
        if len(sources) * request.block_size >= config.load_back_min_tokens:
            return Load(request, first, sources)
        self._lower.release(sources)
        return None

    def grow(self, request: Request) -> bool:
        """Make the table cover all known tokens; False, and nothing changed, when there is no room now."""
        missing = request.num_blocks_for(request.num_tokens) - len(request.block_table)
        if missing <= 0:
            return True
        new = self._cache.allocate(missing)
        if new is None:
            return False
        request.block_table.extend(new)
        return True

    def index(self, request: Request, num_tokens: int) -> None:
        """Let others find the full blocks among the first `num_tokens` tokens, whose KV is complete."""
        num_full = num_tokens // request.block_size
        hashes = request.chain.hashes[:num_full]
        self._cache.insert(hashes, request.block_table[:num_full], priority=request.priority)
        if hashes:
            self._lower.touched(hashes, request.priority)

    def park(self, request: Request) -> None:
        """Let the tiers below keep the full blocks of a request that is about to lose them."""
        num_full = request.num_computed // request.block_size
        self._lower.park(request.chain.hashes[:num_full], request.block_table[:num_full])

    def distrust(self, request: Request) -> None:
        """Take the request's whole path out of the indexes: its KV may be damaged."""
        if request.chain.hashes:
            self._cache.forget(request.chain.hashes[0])
            self._lower.distrust(request.chain.hashes)

    def close(self, request: Request) -> None:
        """Give all blocks of a request back; nothing is computed then."""
        self._cache.release(request.block_table)
        request.block_table = []
        request.num_computed = 0

    def _allocate(self, hashes: Sequence[bytes], num_here: int, count: int) -> list[int] | None:
        """Allocate blocks for the rest of a path; what is evicted for them must not push that rest out below."""
        below = self._lower.acquire(hashes, num_here, touch=False)
        new = self._cache.allocate(count)
        self._lower.release(below, touch=False)
        return new

    def _leaves_room(self, num_new: int, config: SchedulerConfig) -> bool:
        cache = self._cache
        if num_new + config.growth_reserve_blocks > cache.num_available:
            return False
        return cache.num_held + num_new <= config.high_water_ratio * cache.num_blocks
