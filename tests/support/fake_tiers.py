"""The tiers of a worker that does not exist: remembers what an operator changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.base.errors import InvalidRequest
from common.cache.config import PrefetchConfig, TierPolicies, WritePolicy
from common.worker.admin import StorageRequest, TierInfo, TierName


@dataclass
class FakeTiers:
    """Implements `TierControl`. It has no L2, so write_back is refused."""

    policies: TierPolicies = field(default_factory=TierPolicies)
    prefetch: PrefetchConfig = field(default_factory=PrefetchConfig)
    flushed: list[tuple[TierName, bytes]] = field(default_factory=list)
    attached: StorageRequest | None = None

    async def describe(self) -> list[TierInfo]:
        """L1, and L3 when one is attached."""
        tiers = [TierInfo(TierName.L1, "memory", 100, 60, 30, 10, eviction=self.policies.l1_eviction, hit_tokens=320)]
        if self.attached is not None:
            tiers.append(TierInfo(TierName.L3, self.attached.backend, objects=7, bytes=7168, pending_writes=2))
        return tiers

    def set_policies(self, policies: TierPolicies, prefetch: PrefetchConfig) -> None:
        """Both or neither."""
        if policies.write is WritePolicy.WRITE_BACK:
            raise InvalidRequest("write_back needs an L2", param="write_policy")
        self.policies, self.prefetch = policies, prefetch

    async def flush(self, tier: TierName, namespace: bytes) -> int:
        """Remember it; 30 blocks went."""
        if tier is TierName.L2:
            raise InvalidRequest("there is no l2 here", param="tier")
        self.flushed.append((tier, namespace))
        return 30

    async def attach(self, request: StorageRequest) -> None:
        """Only the kind `file` is known."""
        if self.attached is not None:
            raise InvalidRequest("a store is attached already", reason="already_attached", param="backend")
        if request.backend != "file":
            raise InvalidRequest("the backend is file", param="backend")
        self.attached, self.prefetch = request, request.prefetch

    async def detach(self) -> None:
        """Forget it."""
        if self.attached is None:
            raise InvalidRequest("no store is attached", reason="not_attached", param="backend")
        self.attached = None
