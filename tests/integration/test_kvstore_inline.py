"""Few bytes come with the answer to a lookup, or with a put: without a read of their own, and checked as one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from common.cache import kvstore_wire as wire
from common.cache.kvstore_backend import KvStoreBackend
from common.cache.kvstore_wire import MAX_INLINE_BYTES, Put
from common.cache.l3 import HEADER_BYTES, PutState, State
from common.transport.base import Extent
from common.transport.checksum import checksum
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.kvstore_rig import StoreRig, running_store
from tests.support.l3_contract import BLOCK_BYTES, BareStore, block_of, fetch, key_of, payload_of, targets

STORED = PutState.STORED
HIT, MISS, CORRUPT = State.HIT, State.MISS, State.CORRUPT
KEYS = [key_of(number) for number in range(8)]


@pytest.fixture
async def rig() -> AsyncIterator[StoreRig]:
    async with running_store() as rig:
        store = BareStore(await rig.client())
        await store.put([block_of(key) for key in KEYS])
        await store.close()
        yield rig


@pytest.fixture
async def backend(rig: StoreRig) -> AsyncIterator[KvStoreBackend]:
    backend = await rig.client(inline_bytes=4 * BLOCK_BYTES)
    yield backend
    await backend.close()


def num_reads(backend: KvStoreBackend) -> int:
    """Reads by any transport."""
    assert backend._transports is not None
    return sum(counters.reads for counters in backend._transports.counters.values())


async def test_what_is_little_needs_no_read(backend: KvStoreBackend) -> None:
    assert await fetch(BareStore(backend), [KEYS[2], key_of(99), KEYS[0], KEYS[2]]) == [HIT, MISS, HIT, HIT]
    assert num_reads(backend) == 0


async def test_what_is_more_than_was_asked_for_is_read(backend: KvStoreBackend) -> None:
    assert await fetch(BareStore(backend), KEYS[:5]) == [HIT] * 5
    assert num_reads(backend) == 1


async def test_a_node_has_a_limit_of_its_own(rig: StoreRig) -> None:
    backend = await rig.client(inline_bytes=1 << 30)
    many = KEYS * (MAX_INLINE_BYTES // BLOCK_BYTES // 8 + 1)
    assert await fetch(BareStore(backend), many) == [HIT] * len(many)
    assert num_reads(backend) > 0
    await backend.close()


async def test_bytes_that_changed_in_the_node_s_memory_are_found(rig: StoreRig, backend: KvStoreBackend) -> None:
    assert rig.process.parts is not None
    holdings = rig.process.parts.holdings
    one = holdings.objects.get(wire.name_of(KEYS[1]))
    assert one is not None and one.run is not None
    holdings.arena.view(one.run)[5] ^= 1
    assert await fetch(BareStore(backend), KEYS[:3]) == [HIT, CORRUPT, HIT]


async def test_targets_of_another_length_are_not_written(backend: KvStoreBackend) -> None:
    store = BareStore(backend)
    lease = await store.lookup(KEYS[:2])
    short, right = memoryview(bytearray(BLOCK_BYTES - 1)), targets(1)[0]
    assert await store.read(lease, [(0, short), (1, right)]) == [CORRUPT, HIT]
    assert not any(short) and bytes(right) == payload_of(KEYS[1])
    await lease.close()


async def test_few_bytes_are_put_with_the_call(rig: StoreRig, backend: KvStoreBackend) -> None:
    store, new = BareStore(backend), [key_of(number) for number in range(20, 30)]
    assert await store.put([block_of(key) for key in [*new[:3], KEYS[0]]]) == [STORED] * 3 + [PutState.PRESENT]
    assert backend._staging._arena is None or not backend._staging.staged_bytes
    assert rig.process.transports.counters["shm"].reads == 1, "the fixture's own"
    assert await store.put([block_of(key) for key in new[3:]]) == [STORED] * 7
    assert rig.process.transports.counters["shm"].reads == 2, "these were more"
    assert await fetch(store, new) == [HIT] * 10


async def test_bytes_that_are_not_what_they_are_said_to_be_never_become_an_object(rig: StoreRig) -> None:
    payloads = [payload_of(key_of(number)) for number in (40, 41)]
    request = kvstore_pb2.PutRequest(
        keys=wire.pack_keys([key_of(40), key_of(41)]),
        headers=bytes(2 * HEADER_BYTES),
        extents=wire.pack_offers([Extent(0, 0, 0, len(p), 0, checksum(p)) for p in payloads]),
        payloads=payloads[0] + payloads[0],
    )
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        assert list((await stub.Put(request, timeout=10)).states) == [Put.STORED, Put.CORRUPT]
        for spoilt in (payloads[0], payloads[0] + payloads[1] + b"x"):
            request.payloads = spoilt
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Put(request, timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        large = bytes(MAX_INLINE_BYTES + 1)
        request = kvstore_pb2.PutRequest(
            keys=wire.pack_keys([key_of(42)]),
            headers=bytes(HEADER_BYTES),
            extents=wire.pack_offers([Extent(0, 0, 0, len(large), 0, checksum(large))]),
            payloads=large,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Put(request, timeout=10)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert rig.process.parts is not None and rig.process.parts.holdings.objects.staged_bytes == 0


async def test_a_lease_that_wants_renewal_is_read_and_a_closed_one_is_not() -> None:
    """What came with the lookup is no older than a read would be told of."""
    async with running_store(max_lease_ttl_s=60.0) as rig:
        now_s = 100.0
        store = BareStore(backend := await rig.client(inline_bytes=MAX_INLINE_BYTES))
        backend._clock = lambda: now_s
        await store.put([block_of(key) for key in KEYS])
        lease = await store.lookup(KEYS[:1])
        part = lease._board.parts[0]  # type: ignore[attr-defined]
        part.renew_at_s, part.ends_s = now_s + 1, now_s + 2
        assert await store.read(lease, [(0, targets(1)[0])]) == [HIT] and num_reads(backend) == 0
        now_s += 1
        assert await store.read(lease, [(0, targets(1)[0])]) == [HIT] and num_reads(backend) == 1
        await lease.close()
        assert await store.read(lease, [(0, targets(1)[0])]) == [State.EXPIRED] and num_reads(backend) == 1
        await store.close()
