"""Our store as workers use it: sealed blocks (header and checksum, no tag key) over one transport.

Blocks lie in regions that the client lends, as a worker's do, so a put is read by the node in place.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
import uvloop

from bench.store.shapes import batches
from common.base.ids import new_incarnation
from common.cache.kvstore_backend import KvStoreBackend, KvStoreConfig
from common.cache.kvstore_staging import InPlace
from common.cache.l3 import BlockKey, PutState, State
from common.cache.seal import SealConfig, SealedL3
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers
from common.transport.tag import Tagger

_T = TypeVar("_T")
_DEADLINE_S = 60.0
_NAMESPACE = hashlib.sha256(b"bench").digest()


class Ours:
    """See `Contender`."""

    def __init__(self, address: str, drivers: tuple[str, ...]) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._regions = {size: Region.create(count, size) for size, count in batches().items()}
        self.buffers = {
            size: np.frombuffer(region.data, np.uint8).reshape(region.num_extents, size)
            for size, region in self._regions.items()
        }
        self._store = self._runner.run(self._open(address, drivers))
        gc.collect()
        gc.freeze()

    async def _open(self, address: str, drivers: tuple[str, ...]) -> SealedL3:
        incarnation = new_incarnation()
        self._transports = TransportSet(make_drivers(TransportConfig(drivers=drivers), host_id(), incarnation))
        await self._transports.start()
        if self._transports.missing:
            raise RuntimeError(f"transports are missing: {self._transports.missing}")
        regions = [(region, self._transports.register(region)) for region in self._regions.values()]
        backend = KvStoreBackend(
            KvStoreConfig(addresses=(address,), drivers=drivers), InPlace(self._transports, incarnation, regions)
        )
        store = SealedL3(backend, Tagger(None), SealConfig(), lambda damage: None)
        await store.start()
        return store

    def keys(self, names: Sequence[str]) -> list[BlockKey]:
        """See `Contender.keys`."""
        return [BlockKey(_NAMESPACE, hashlib.sha256(name.encode()).digest()) for name in names]

    def get(self, keys: Sequence[BlockKey], size: int) -> None:
        """See `Contender.get`."""
        self._run(self._get(keys, size))

    async def _get(self, keys: Sequence[BlockKey], size: int) -> None:
        lease = await self._store.lookup(keys, _DEADLINE_S)
        targets = [(number, self.buffers[size][number].data) for number in range(len(keys))]
        states = await lease.read(targets, _DEADLINE_S)
        await lease.close()
        assert all(state is State.HIT for state in states), states

    def put(self, keys: Sequence[BlockKey], size: int) -> None:
        """See `Contender.put`."""
        blocks = [(key, self.buffers[size][number].data) for number, key in enumerate(keys)]
        states = self._run(self._store.put(blocks, _DEADLINE_S))
        assert all(state is PutState.STORED for state in states), states

    def exists(self, keys: Sequence[BlockKey]) -> None:
        """See `Contender.exists`."""
        self._run(self._exists(keys))

    async def _exists(self, keys: Sequence[BlockKey]) -> None:
        lease = await self._store.lookup(keys, _DEADLINE_S)
        await lease.close()
        assert all(state is State.HIT for state in lease.states), lease.states

    def remove(self, keys: Sequence[BlockKey]) -> None:
        """See `Contender.remove`."""
        self._run(self._remove(keys))

    async def _remove(self, keys: Sequence[BlockKey]) -> None:
        await self._store.discard(keys)
        while True:
            lease = await self._store.lookup(keys, _DEADLINE_S)
            await lease.close()
            if State.HIT not in lease.states:
                return
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """See `Contender.close`."""
        self._runner.run(self._store.close())
        self._runner.run(self._transports.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.get_loop().run_until_complete(work)
