"""The memory of a store process does not grow with the number of clients that keep no rules.

Leases that nobody gives back, offers of writers that are not there (another one each time), batches beyond every bound,
followers that hang up. PANDO_KVSTORE_ROUNDS: how often all of that happens.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from common.cache import kvstore_wire as wire
from common.cache.l3 import HEADER_BYTES
from common.transport.base import Endpoint, Extent
from common.transport.select import host_id
from pando.cli.ports import free_port
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.seeded_store import SPACE, flags_for, seeded_key
from tests.support.store_fleet import SEEDED, StoreCommand, all_killed, running_registry

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
ROUNDS = int(os.environ.get("PANDO_KVSTORE_ROUNDS", "3000"))
OBJECTS = 2000
LIMIT_MB = 12.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreCommand]:
    with running_registry(tmp_path) as registry:
        flags = (*flags_for(OBJECTS, 0), "--max-lease-ttl-s", "2", "--max-leases", "200")
        store = StoreCommand("n0", registry.url, *flags, module=SEEDED)
        with all_killed([store]):
            yield store


class Rude:
    """A client that calls a store by hand."""

    def __init__(self, stub: kvstore_pb2_grpc.KvStoreServiceStub) -> None:
        self._stub = stub
        self._rng = random.Random(1)
        self._closed_port = free_port()

    async def round(self) -> None:
        """Everything once."""
        first = self._rng.randrange(OBJECTS - 100)
        keys = wire.pack_keys([seeded_key(first + number) for number in range(100)])
        await self._stub.LookupAndLease(kvstore_pb2.LookupAndLeaseRequest(keys=keys, lease_ttl_s=1e6), timeout=5)
        await self._stub.Renew(kvstore_pb2.RenewRequest(lease_ids=range(100)), timeout=5)
        await self._offer(self._endpoint("tcp", f"127.0.0.1:{self._closed_port}".encode()))
        await self._offer(self._endpoint("shm", self._rng.randbytes(40)))
        await self._offer(self._endpoint(f"driver{self._rng.random()}", b""))
        too_many = kvstore_pb2.KeyRun(namespace=SPACE, hash_bytes=32, hashes=bytes(32 * (wire.MAX_KEYS + 1)))
        with pytest.raises(grpc.aio.AioRpcError):
            await self._stub.LookupAndLease(kvstore_pb2.LookupAndLeaseRequest(keys=[too_many]), timeout=5)
        await self._stub.ListObjects(kvstore_pb2.ListObjectsRequest(page_size=1), timeout=5)
        call = self._stub.WatchInventory(kvstore_pb2.WatchInventoryRequest(term=0, leader_id=""), timeout=5)
        call.cancel()

    def _endpoint(self, driver: str, descriptor: bytes) -> Endpoint:
        host = host_id() if self._rng.random() < 0.5 else self._rng.randbytes(8).hex()
        return Endpoint(driver, host, self._rng.getrandbits(60), descriptor)

    async def _offer(self, endpoint: Endpoint) -> None:
        names = [seeded_key(self._rng.getrandbits(31)) for _ in range(20)]
        request = kvstore_pb2.PutRequest(
            keys=wire.pack_keys(names),
            headers=bytes(HEADER_BYTES * len(names)),
            extents=wire.pack_offers([Extent(endpoint.incarnation, 0, 0, 64, 0, 0)] * len(names)),
            incarnation=endpoint.incarnation,
            endpoints=wire.pack_endpoints([endpoint]),
        )
        await self._stub.Put(request, timeout=10)


async def test_memory_is_flat_whatever_clients_do(store: StoreCommand) -> None:
    samples: list[float] = []
    async with grpc.aio.insecure_channel(store.address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        rude = Rude(stub)
        for number in range(ROUNDS):
            await rude.round()
            if number % (ROUNDS // 30) == 0:
                samples.append(store.rss_mb())
        stats = await stub.GetStoreStats(kvstore_pb2.GetStoreStatsRequest(), timeout=5)
    warm, last = sum(samples[8:12]) / 4, sum(samples[-4:]) / 4
    print(f"{ROUNDS} rounds: {warm:.1f} MB after a third, {last:.1f} MB at the end")
    assert stats.staged_bytes == 0 and stats.num_objects == OBJECTS and stats.num_leases <= 200
    assert last - warm < LIMIT_MB, samples
