"""The tiers of a running worker under an operator's hand: attach and detach L3, flush, change policies, describe.

Everything is checked before anything changes; a refused call leaves no trace. Also used at start, where the settings
play the operator.
"""

from __future__ import annotations

import asyncio

from common.base.errors import InvalidRequest
from common.base.failpoints import Failpoints
from common.base.logging import get_logger
from common.cache.backends import Surroundings, make_backend
from common.cache.config import PrefetchConfig, TierPolicies, check_policies
from common.cache.faulty import FaultyBackend
from common.cache.seal import SealConfig, SealedL3
from common.cache.storage import Storage, StorageConfig
from common.cache.tiers import Tier
from common.transport.tag import Tagger
from common.worker.admin import StorageRequest, TierInfo, TierName
from common.worker.core import WorkerCore

FLUSH_S = 5.0
"""What waits to be written to L3 gets so long when L3 is detached or the worker ends."""


class WorkerTiers:
    """Implements `common.worker.admin.TierControl` over a core.

    Attributes:
        around: what stores that are attached from now on are given of this process.
    """

    def __init__(
        self,
        core: WorkerCore,
        namespace: bytes,
        tagger: Tagger,
        failpoints: Failpoints,
        prefetch: PrefetchConfig,
        *,
        around: Surroundings | None = None,
    ) -> None:
        self.around = around or Surroundings()
        self._core = core
        self._namespace = namespace
        self._tagger = tagger
        self._failpoints = failpoints
        self._prefetch = prefetch
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def policies(self) -> TierPolicies:
        """In force now."""
        return self._core.tiers.policies

    @property
    def prefetch(self) -> PrefetchConfig:
        """In force now; without L3, what the next one gets unless told otherwise."""
        return self._prefetch

    async def describe(self) -> list[TierInfo]:
        """The tiers that there are, L1 first."""
        infos = [self._describe(tier) for tier in self._core.tiers.tiers]
        storage = self._core.storage
        if storage is not None:
            stats = await storage.l3.stats()
            infos.append(
                TierInfo(
                    TierName.L3,
                    storage.backend,
                    objects=stats.objects,
                    bytes=stats.bytes,
                    capacity_bytes=stats.capacity_bytes,
                    pending_writes=storage.archive.num_pending,
                    hit_tokens=self._core.metrics.num_cached_by_tier[TierName.L3],
                )
            )
        return infos

    def set_policies(self, policies: TierPolicies, prefetch: PrefetchConfig) -> None:
        """Put both in force, or neither."""
        core = self._core
        check_policies(policies, has_l2=core.tiers.l2 is not None, has_l3=core.storage is not None)
        core.tiers.set_policies(policies)
        self._prefetch = prefetch
        if core.storage is not None:
            core.storage.prefetcher.config = prefetch

    async def flush(self, tier: TierName, namespace: bytes) -> int:
        """Drop what nobody holds; returns blocks. `namespace` is for L3: empty means this worker's own."""
        core = self._core
        if tier is TierName.L3:
            if core.storage is None:
                raise InvalidRequest("no storage is attached to this worker", param="tier")
            return await core.storage.remove_namespace(namespace or self._namespace)
        found = [t for t in core.tiers.tiers if f"l{t.number}" == tier]
        if not found:
            raise InvalidRequest(f"this worker has no {tier}", param="tier")
        dropped = found[0].cache.flush()
        core.publish()
        return dropped

    async def attach(self, request: StorageRequest) -> None:
        """Attach a store; what L1 and L2 hold already is offered to it, if the write policy would have written it."""
        core = self._core
        if core.storage is not None:
            raise InvalidRequest(f"storage {core.storage.backend!r} is attached: detach it first", param="backend")
        check_policies(core.tiers.policies, has_l2=core.tiers.l2 is not None, has_l3=True)
        backend = make_backend(request.backend, request.settings, self.around)
        if self._failpoints.enabled:
            backend = FaultyBackend(backend, self._failpoints)
        integrity = core.metrics.integrity_failures
        l3 = SealedL3(backend, self._tagger, SealConfig(), lambda damage: integrity.inc())
        try:
            await l3.start()
        except BaseException:
            await l3.close()
            raise
        self._prefetch = request.prefetch
        config = StorageConfig(request.backend, prefetch=request.prefetch)
        storage = Storage(core.tiers, l3, self._namespace, config, lambda: core.prefill_tokens_per_s)
        core.storage = storage
        storage.offer_all()
        get_logger().info("storage attached", backend=request.backend)

    async def detach(self) -> None:
        """Detach the store. It is closed to the end, also when the caller does not wait for that."""
        storage = self._core.storage
        if storage is None:
            raise InvalidRequest("no storage is attached to this worker", param="backend")
        self._core.storage = None
        closing = asyncio.create_task(storage.close(FLUSH_S), name="detach")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def close(self) -> None:
        """Detach the store if there is one, and wait for those that were detached before."""
        if self._core.storage is not None:
            await self.detach()
        if self._closing:
            await asyncio.wait(self._closing)

    def _describe(self, tier: Tier) -> TierInfo:
        core, cache, name = self._core, tier.cache, TierName(f"l{tier.number}")
        return TierInfo(
            name,
            "host",
            blocks_total=cache.num_blocks,
            blocks_free=cache.num_free,
            blocks_cached=cache.num_cached,
            blocks_held=cache.num_held,
            eviction=self.policies.l1_eviction if tier.number == 1 else self.policies.l2_eviction,
            pending_writes=core.tiers.num_pending_saves if tier.number == 2 else 0,
            hit_tokens=core.metrics.num_cached_by_tier[name],
        )
