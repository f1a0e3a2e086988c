"""What a worker has of L3: the store, reads ahead of requests, writes behind replies.

It can be attached and detached while the worker runs. Attached late, it is offered what the tiers hold already, under
the names that these blocks have always had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.cache.archive import Archive
from common.cache.background import Background
from common.cache.config import ArchiveConfig, PrefetchConfig
from common.cache.l3 import L3, BlockKey
from common.cache.prefetch import Prefetcher
from common.cache.tiers import Tiers
from common.sched.request import Request

MAX_PENDING_DISCARDS = 256


@dataclass(slots=True, frozen=True)
class StorageConfig:
    """Which store, and how it is used.

    Attributes:
        backend: name of the store's kind, for people.
        prefetch, archive: see there.
    """

    backend: str
    prefetch: PrefetchConfig = field(default_factory=PrefetchConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)


class Storage:
    """L3 as one worker uses it. Owns `l3` from its construction on."""

    def __init__(
        self,
        tiers: Tiers,
        l3: L3,
        namespace: bytes,
        config: StorageConfig,
        prefill_tokens_per_s: Callable[[], float],
    ) -> None:
        self.backend = config.backend
        self.namespace = namespace
        self.l3 = l3
        self._tiers = tiers
        self._discards: Background[list[BlockKey]] = Background("discard", l3.discard, MAX_PENDING_DISCARDS)
        self.archive = Archive(tiers, l3, namespace, config.archive)
        self.prefetcher = Prefetcher(
            tiers,
            l3,
            namespace,
            config.prefetch,
            prefill_tokens_per_s=prefill_tokens_per_s,
            on_missing=self.archive.missing,
            on_present=self.archive.present,
        )

    def begin(self, request: Request) -> None:
        """A request is queued: look for its prefix."""
        self.prefetcher.begin(request)

    def offer(self, path: Sequence[bytes]) -> None:
        """A path has reached the lowest tier."""
        self.archive.offer(path)

    def offer_all(self) -> None:
        """Offer every path of the lowest tier that the write policy would have brought there."""
        tiers = self._tiers
        for path in paths(tiers.lowest.cache.snapshot()):
            if tiers.l2 is None:
                tiers.touched(path, 0)
            else:
                self.archive.offer(path)

    def discard(self, path: Sequence[bytes]) -> None:
        """The KV of a path may be damaged: it goes from the store too, behind whatever goes on."""
        for name in path:
            self.archive.missing(name)
        self._discards.put([BlockKey(self.namespace, name) for name in path])

    async def remove_namespace(self, namespace: bytes) -> int:
        """Remove all blocks of a namespace from the store; this worker's own are written anew when they come up again.

        Raises:
            Unavailable: the store cannot do it now.
        """
        removed = await self.l3.remove_namespace(namespace)
        if namespace == self.namespace:
            self.archive.forget()
        return removed

    async def drained(self) -> None:
        """Wait until nothing is on the way in either direction."""
        await self.prefetcher.drained()
        await self.archive.drained()
        await self._discards.drained()

    async def close(self, flush_s: float) -> None:
        """End: what waits to be written gets `flush_s` seconds, then is forgotten."""
        await self.prefetcher.close()
        writing = asyncio.ensure_future(self.archive.drained())
        await asyncio.wait((writing,), timeout=flush_s)
        writing.cancel()
        await self.archive.close()
        await self._discards.close()
        await self.l3.close()


def paths(snapshot: Sequence[tuple[bytes, bytes]]) -> list[list[bytes]]:
    """The paths from the first block to each leaf, of (hash, parent hash) pairs with parents first."""
    parents = dict(snapshot)
    inner = set(parents.values())
    result = []
    for leaf in (block_hash for block_hash in parents if block_hash not in inner):
        path = [leaf]
        while parent := parents[path[-1]]:
            path.append(parent)
        result.append(path[::-1])
    return result
