"""What the admin service asks of a worker's tiers.

The interface lives here with its user; whoever owns the tiers implements it. It does not know gRPC or protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from common.cache.config import PrefetchConfig, TierPolicies


class TierName(StrEnum):
    """The tiers of a worker."""

    L1 = "l1"
    L2 = "l2"
    L3 = "l3"


@dataclass(slots=True, frozen=True)
class TierInfo:
    """One tier as operators see it; what means nothing for it is 0 or empty.

    Attributes:
        tier: which.
        backend: where its bytes are: device, host memory, or the kind of the store.
        blocks_total, blocks_free, blocks_cached, blocks_held: of L1 and L2.
        objects, bytes, capacity_bytes: of L3, as far as the store can tell.
        eviction: of L1 and L2.
        pending_writes: what waits to be written to this tier.
        hit_tokens: prompt tokens found here since the start.
    """

    tier: TierName
    backend: str
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_held: int = 0
    objects: int = 0
    bytes: int = 0
    capacity_bytes: int = 0
    eviction: str = ""
    pending_writes: int = 0
    hit_tokens: int = 0


@dataclass(slots=True, frozen=True)
class StorageRequest:
    """A store to attach as L3.

    Attributes:
        backend: kind of store.
        settings: what it wants to know; which keys there are is its business.
        prefetch: how requests wait for it.
    """

    backend: str
    settings: Mapping[str, str] = field(default_factory=dict)
    prefetch: PrefetchConfig = field(default_factory=PrefetchConfig)


class TierControl(Protocol):
    """The tiers of a worker under an operator's hand. One change runs at a time; refused ones change nothing."""

    @property
    def policies(self) -> TierPolicies:
        """In force now."""

    @property
    def prefetch(self) -> PrefetchConfig:
        """In force now; without L3, what the next one gets unless told otherwise."""

    async def describe(self) -> list[TierInfo]:
        """The tiers that there are, L1 first."""

    def set_policies(self, policies: TierPolicies, prefetch: PrefetchConfig) -> None:
        """Put both in force, or neither.

        Raises:
            InvalidRequest: the tiers that there are cannot follow them.
        """

    async def flush(self, tier: TierName, namespace: bytes) -> int:
        """Drop what nobody holds; returns blocks. `namespace` is for L3: empty means this worker's own.

        Raises:
            InvalidRequest: there is no such tier here.
            Unavailable: the store cannot do it now.
        """

    async def attach(self, request: StorageRequest) -> None:
        """Attach a store.

        Raises:
            InvalidRequest: one is attached, or the backend or a setting is unknown or wrong.
            Unavailable: it cannot be opened.
        """

    async def detach(self) -> None:
        """Detach the store.

        Raises:
            InvalidRequest: none is attached.
        """
