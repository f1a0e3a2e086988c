"""Our store as workers use it: sealed blocks (header and checksum, no tag key) over one transport.

Blocks lie in regions that the client lends, as a worker's do, so a put is read by the node in place.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import Sequence

import numpy as np

from bench.store.shapes import batches
from common.base.ids import new_incarnation
from common.cache.kvstore_backend import KvStoreBackend, KvStoreConfig
from common.cache.kvstore_staging import InPlace
from common.cache.l3 import BlockKey, PutState, State
from common.cache.seal import SealConfig, SealedL3
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers
from common.transport.tag import Tagger

_DEADLINE_S = 60.0
_NAMESPACE = hashlib.sha256(b"bench").digest()


async def connect(address: str, drivers: tuple[str, ...]) -> Ours:
    """A client of the store at `address`."""
    regions = {size: Region.create(count, size) for size, count in batches().items()}
    incarnation = new_incarnation()
    transports = TransportSet(make_drivers(TransportConfig(drivers=drivers), host_id(), incarnation))
    await transports.start()
    if transports.missing:
        raise RuntimeError(f"transports are missing: {transports.missing}")
    in_place = InPlace(transports, incarnation, [(region, transports.register(region)) for region in regions.values()])
    backend = KvStoreBackend(KvStoreConfig(addresses=(address,), drivers=drivers), in_place)
    store = SealedL3(backend, Tagger(None), SealConfig(), lambda damage: None)
    await store.start()
    gc.collect()
    gc.freeze()
    return Ours(store, transports, regions)


class Ours:
    """See `Contender`; made by `connect`."""

    def __init__(self, store: SealedL3, transports: TransportSet, regions: dict[int, Region]) -> None:
        self._store = store
        self._transports = transports
        self._regions = regions
        self.buffers = {
            size: np.frombuffer(region.data, np.uint8).reshape(region.num_extents, size)
            for size, region in regions.items()
        }

    def keys(self, names: Sequence[str]) -> list[BlockKey]:
        """See `Contender.keys`."""
        return [BlockKey(_NAMESPACE, hashlib.sha256(name.encode()).digest()) for name in names]

    async def get(self, keys: Sequence[BlockKey], size: int) -> None:
        """See `Contender.get`."""
        lease = await self._store.lookup(keys, _DEADLINE_S)
        targets = [(number, self.buffers[size][number].data) for number in range(len(keys))]
        states = await lease.read(targets, _DEADLINE_S)
        await lease.close()
        assert states.count(State.HIT) == len(keys), states

    async def put(self, keys: Sequence[BlockKey], size: int) -> None:
        """See `Contender.put`."""
        blocks = [(key, self.buffers[size][number].data) for number, key in enumerate(keys)]
        states = await self._store.put(blocks, _DEADLINE_S)
        assert states.count(PutState.STORED) == len(keys), states

    async def exists(self, keys: Sequence[BlockKey]) -> None:
        """See `Contender.exists`."""
        lease = await self._store.lookup(keys, _DEADLINE_S)
        await lease.close()
        assert lease.states.count(State.HIT) == len(keys), lease.states

    async def remove(self, keys: Sequence[BlockKey]) -> None:
        """See `Contender.remove`."""
        await self._store.discard(keys)
        while True:
            lease = await self._store.lookup(keys, _DEADLINE_S)
            await lease.close()
            if State.HIT not in lease.states:
                return
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """See `Contender.close`."""
        await self._store.close()
        await self._transports.close()
