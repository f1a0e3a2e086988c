"""One store process over real sockets: writers that die or lie, leases that end, a disk that keeps, operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from common.base.clock import monotonic
from common.base.errors import Leg, PandoError, Unavailable
from common.base.logging import get_logger
from common.cache import kvstore_wire as wire
from common.cache.kvstore_arena import Arena
from common.cache.kvstore_backend import KvStoreBackend, KvStoreConfig
from common.cache.kvstore_staging import InPlace
from common.cache.kvstore_wire import Put
from common.cache.l3 import HEADER_BYTES, PutState, SealedBlock, State
from common.rpc.errors import from_rpc_error
from common.transport.checksum import checksum
from common.transport.region import Region
from common.transport.select import TransportConfig, TransportSet, host_id, make_drivers
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from services.kvstore.process import StoreProcess
from tests.support.kvstore_rig import StoreRig, running_store, settings_of
from tests.support.l3_contract import (
    BLOCK_BYTES,
    OTHER_SPACE,
    SPACE,
    BareStore,
    block_of,
    fetch,
    header_of,
    key_of,
    payload_of,
    targets,
)

Spoiler = Callable[[int, memoryview], None]
HIT, MISS, EXPIRED = State.HIT, State.MISS, State.EXPIRED
KEYS = [key_of(number) for number in range(8)]
BLOCKS = [block_of(key) for key in KEYS]
LIMIT_S = 30.0


@pytest.fixture
async def rig() -> AsyncIterator[StoreRig]:
    async with running_store() as rig:
        yield rig


@pytest.fixture
async def store(rig: StoreRig) -> AsyncIterator[BareStore]:
    store = BareStore(await rig.client())
    yield store
    await store.close()


class Writer:
    """A process that offers blocks by hand, as a client would, and may lie or leave."""

    def __init__(self, rig: StoreRig) -> None:
        self.transports = TransportSet(make_drivers(TransportConfig(drivers=("tcp",)), host_id(), 77))
        self.arena = Arena(64 * BLOCK_BYTES, 4096)
        self.channel = grpc.aio.insecure_channel(rig.address)
        self.stub = kvstore_pb2_grpc.KvStoreServiceStub(self.channel)

    async def __aenter__(self) -> Writer:
        await self.transports.start()
        self.segment = self.transports.register(self.arena.region)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.transports.close()
        self.arena.close()

    def offer(
        self, numbers: list[int], spoil: Callable[[int, memoryview], None] | None = None
    ) -> kvstore_pb2.PutRequest:
        """A request for some blocks; `spoil` changes bytes after they were hashed."""
        extents, headers = [], []
        for number in numbers:
            payload = payload_of(KEYS[number])
            run = self.arena.allocate(len(payload))
            assert run is not None
            view = self.arena.view(run)
            view[:] = payload
            packed = (self.segment, self.arena.offset(run), len(payload), self.arena.generation(run), checksum(view))
            extents.append(wire.OFFERED.pack(*packed))
            headers.append(header_of(payload))
            if spoil is not None:
                spoil(number, view)
        return kvstore_pb2.PutRequest(
            keys=wire.pack_keys([KEYS[number] for number in numbers]),
            headers=b"".join(headers),
            extents=b"".join(extents),
            incarnation=77,
            endpoints=wire.pack_endpoints(self.transports.endpoints()),
        )


def staged_bytes(rig: StoreRig) -> int:
    assert rig.process.parts is not None
    return rig.process.parts.holdings.objects.staged_bytes


async def test_a_dead_writer_leaves_nothing_staged(rig: StoreRig, store: BareStore) -> None:
    async with Writer(rig) as writer:
        request = writer.offer([0, 1])
        request.client_id = "decode-7"
        await writer.transports.close()
        with capture_logs() as logs:
            answer = await writer.stub.Put(request, timeout=60)
        assert list(answer.states) == [Put.ERROR] * 2
    told = [line for line in logs if line["event"] == "offered objects cannot be read"]
    assert {(line["writer"], line["incarnation"]) for line in told} == {("decode-7", 77)}
    assert staged_bytes(rig) == 0
    assert await fetch(store, KEYS[:2]) == [MISS, MISS]
    assert await store.put(BLOCKS[:2]) == [PutState.STORED] * 2


async def test_a_client_that_cannot_be_read_is_named(rig: StoreRig) -> None:
    backend = await rig.client(client_id="decode-7")
    assert backend._transports is not None
    await backend._transports.close()
    with capture_logs() as logs:
        assert await BareStore(backend).put(BLOCKS[:2]) == [PutState.ERROR] * 2
    assert {line["writer"] for line in logs if line["event"] == "offered objects cannot be read"} == {"decode-7"}
    await backend.close()


async def test_a_writer_that_hangs_up_frees_what_was_staged(rig: StoreRig) -> None:
    async with Writer(rig) as writer:
        call = writer.stub.Put(writer.offer([0, 1, 2]), timeout=60)
        await asyncio.sleep(0)
        call.cancel()
    async with asyncio.timeout(LIMIT_S):
        while staged_bytes(rig):  # noqa: ASYNC110 - the server's task has no event here
            await asyncio.sleep(0.01)


async def test_bytes_that_changed_after_the_promise_never_become_an_object(rig: StoreRig, store: BareStore) -> None:
    def spoil(number: int, view: memoryview) -> None:
        if number == 1:
            view[100] ^= 1

    async with Writer(rig) as writer:
        answer = await writer.stub.Put(writer.offer([0, 1, 2], spoil), timeout=60)
        assert list(answer.states) == [Put.STORED, Put.CORRUPT, Put.STORED]
    assert await fetch(store, KEYS[:3]) == [HIT, MISS, HIT]


async def test_memory_that_was_reused_never_becomes_an_object(rig: StoreRig, store: BareStore) -> None:
    async with Writer(rig) as writer:
        request = writer.offer([0, 1])
        writer.arena.region.bump_generation(0)
        answer = await writer.stub.Put(request, timeout=60)
        assert list(answer.states) == [Put.ERROR, Put.STORED]
    assert await fetch(store, KEYS[:2]) == [MISS, HIT]


async def test_two_writers_of_one_object_pull_it_once(rig: StoreRig) -> None:
    async with Writer(rig) as one, Writer(rig) as other:
        calls = (one.stub.Put(one.offer([0, 1]), timeout=60), other.stub.Put(other.offer([1, 0, 0]), timeout=60))
        answers = [list(answer.states) for answer in await asyncio.gather(*calls)]
        assert sorted(state for states in answers for state in states) == [Put.STORED] * 2 + [Put.PRESENT] * 3
    assert rig.process.metrics.put_bytes._value.get() == 2 * BLOCK_BYTES


@pytest.mark.parametrize("field", ["headers", "extents"])
async def test_records_that_do_not_fit_are_refused(rig: StoreRig, field: str) -> None:
    async with Writer(rig) as writer:
        request = writer.offer([0])
        setattr(request, field, getattr(request, field)[:-1])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await writer.stub.Put(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_lease_that_nobody_renews_ends_and_its_reader_is_told() -> None:
    ahead_s = [0.0]
    async with running_store(max_lease_ttl_s=60.0, clock=lambda: monotonic() + ahead_s[0]) as rig:
        store = BareStore(await rig.client(clock=lambda: monotonic() + ahead_s[0]))
        await store.put(BLOCKS)
        lease = await store.lookup(KEYS[:2])
        assert await store.read(lease, [(0, targets(1)[0])]) == [HIT]
        ahead_s[0] = 61.0
        async with asyncio.timeout(LIMIT_S):
            while not rig.process.metrics.expired_leases._value.get():  # noqa: ASYNC110 - the server's task looks after it
                await asyncio.sleep(0.01)
        assert await store.read(lease, list(enumerate(targets(2)))) == [EXPIRED] * 2
        assert rig.process.metrics.expired_leases._value.get() == 1
        await store.close()


async def test_reading_renews_a_lease_that_is_half_over() -> None:
    ahead_s = [0.0]
    async with running_store(max_lease_ttl_s=60.0, clock=lambda: monotonic() + ahead_s[0]) as rig:
        store = BareStore(await rig.client(clock=lambda: monotonic() + ahead_s[0]))
        await store.put(BLOCKS)
        lease = await store.lookup(KEYS[:1])
        assert await store.backend.remove_namespace(SPACE) == 8
        for _ in range(4):
            ahead_s[0] += 35.0
            assert await store.read(lease, [(0, targets(1)[0])]) == [HIT]
        await lease.close()
        await store.close()


async def test_closed_leases_are_given_back(rig: StoreRig, store: BareStore) -> None:
    assert rig.process.parts is not None
    await store.put(BLOCKS)
    for _ in range(5):
        lease = await store.lookup(KEYS)
        await lease.close()
    async with asyncio.timeout(LIMIT_S):
        while len(rig.process.parts.holdings.leases):  # noqa: ASYNC110 - releases travel behind
            await asyncio.sleep(0.01)


async def test_a_restart_on_the_same_path_loses_no_object(tmp_path: Path) -> None:
    async with running_store(ssd=tmp_path, ssd_size=64 << 20) as rig:
        store = BareStore(await rig.client())
        await store.put(BLOCKS)
        await store.close()
    async with running_store(ssd=tmp_path, ssd_size=64 << 20) as rig:
        store = BareStore(await rig.client())
        assert (await store.stats()).objects == 8
        assert await fetch(store, [*KEYS, key_of(50)]) == [HIT] * 8 + [MISS]
        assert await store.put(BLOCKS) == [PutState.PRESENT] * 8
        assert await store.remove_namespace(SPACE) == 8
        await store.close()
    async with running_store(ssd=tmp_path, ssd_size=64 << 20) as rig:
        store = BareStore(await rig.client())
        assert await fetch(store, KEYS) == [MISS] * 8, "what was removed came back"
        await store.close()


async def test_the_disk_holds_more_than_memory(tmp_path: Path) -> None:
    keys = [key_of(number) for number in range(200)]
    async with running_store(ssd=tmp_path, ssd_size=64 << 20) as rig:
        store = BareStore(await rig.client())
        assert rig.process.parts is not None and rig.process.parts.holdings.log is not None
        for first in range(0, 200, 10):
            assert set(await store.put([block_of(key) for key in keys[first : first + 10]])) == {PutState.STORED}
            await rig.process.parts.holdings.log.drained()
        for first in range(0, 200, 10):
            assert await fetch(store, keys[first : first + 10]) == [HIT] * 10
        reads = [fetch(store, keys[first : first + 8]) for first in (0, 4, 8, 0)]
        assert [set(states) for states in await asyncio.gather(*reads)] == [{HIT}] * 4
        await store.close()


async def test_a_second_process_on_one_directory_is_refused(tmp_path: Path) -> None:
    async with running_store(ssd=tmp_path, ssd_size=64 << 20):
        settings = settings_of(ssd_path=tmp_path, ssd_size=64 << 20)
        with pytest.raises(Unavailable) as caught:
            StoreProcess(settings, "other", get_logger(), lambda: None)
        assert caught.value.reason == "ssd_in_use"


async def test_blocks_of_lent_regions_are_offered_in_place(rig: StoreRig) -> None:
    region = Region.create(4, 8192)
    transports = TransportSet(make_drivers(TransportConfig(drivers=("shm", "tcp")), host_id(), 99))
    await transports.start()
    segment = transports.register(region)
    config = KvStoreConfig(addresses=(rig.address,), drivers=("tcp",))
    backend = KvStoreBackend(config, InPlace(transports, 99, [(region, segment)]))
    await backend.start()
    payloads = []
    for index in range(4):
        offset, _ = region.extent(index)
        region.data[offset : offset + BLOCK_BYTES] = payload_of(KEYS[index])
        payloads.append(region.data[offset : offset + BLOCK_BYTES])
    own = payload_of(KEYS[4])
    blocks = [SealedBlock(KEYS[index], header_of(bytes(p)), p) for index, p in enumerate(payloads)]
    assert set(await backend.put(blocks, 60)) == {PutState.STORED}
    assert backend._staging._arena is None, "nothing was copied"
    assert await backend.put([*blocks[:2], SealedBlock(KEYS[4], header_of(own), memoryview(own))], 60) == [
        PutState.PRESENT,
        PutState.PRESENT,
        PutState.STORED,
    ]
    assert await fetch(BareStore(backend), KEYS[:6]) == [HIT] * 5 + [MISS]
    assert backend._staging.staged_bytes == 0
    await backend.close()
    await transports.close()
    del blocks, payloads
    region.close()


async def test_objects_are_listed_and_checked_page_by_page(rig: StoreRig, store: BareStore) -> None:
    await store.put(BLOCKS)
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        seen, token = [], b""
        while True:
            page = await stub.ListObjects(kvstore_pb2.ListObjectsRequest(page_token=token, page_size=3), timeout=60)
            seen += [one.key.prefix_hash for one in page.objects]
            token = page.next_page_token
            if not token:
                break
        assert sorted(seen) == sorted(key.prefix_hash for key in KEYS)
        good = await stub.Verify(kvstore_pb2.VerifyRequest(), timeout=60)
        assert good.num_checked == 8 and not good.damaged
        assert rig.process.parts is not None
        holdings = rig.process.parts.holdings
        one = holdings.objects.get(wire.name_of(KEYS[3]))
        assert one is not None and one.run is not None
        holdings.arena.view(one.run)[5] ^= 1
        bad = await stub.Verify(kvstore_pb2.VerifyRequest(namespace=SPACE), timeout=60)
        assert [key.prefix_hash for key in bad.damaged] == [KEYS[3].prefix_hash]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListObjects(kvstore_pb2.ListObjectsRequest(page_token=b"\x01" * 12), timeout=60)
        assert from_rpc_error(caught.value, Leg.STORE).reason == "bad_page_token"
    assert await fetch(store, KEYS) == [HIT] * 3 + [MISS] + [HIT] * 4


async def test_a_quota_bounds_a_namespace() -> None:
    size = HEADER_BYTES + BLOCK_BYTES
    async with running_store(namespace_quota=3 * size) as rig:
        store = BareStore(await rig.client())
        for first in range(0, 8, 2):
            assert await store.put(BLOCKS[first : first + 2]) == [PutState.STORED] * 2
            assert (await store.stats()).bytes <= 3 * size
        assert await store.put([block_of(key_of(20)), block_of(key_of(20, OTHER_SPACE))]) == [PutState.STORED] * 2
        assert (await fetch(store, KEYS)).count(HIT) == 2
        await store.close()


async def test_soft_pins_outlive_what_comes_after_them(rig: StoreRig, store: BareStore) -> None:
    """Pinned by the put that brings it, or by one more put of what is there; both are found when memory was full."""
    await store.put(BLOCKS[:2])
    async with Writer(rig) as writer:
        request = writer.offer([1, 2])
        request.soft_pin = True
        assert list((await writer.stub.Put(request, timeout=60)).states) == [Put.PRESENT, Put.STORED]
        listing = await writer.stub.ListObjects(kvstore_pb2.ListObjectsRequest(), timeout=60)
        pinned = {one.key.prefix_hash for one in listing.objects if one.soft_pin}
        assert pinned == {KEYS[1].prefix_hash, KEYS[2].prefix_hash}
    for first in range(100, 200, 10):
        await store.put([block_of(key_of(number)) for number in range(first, first + 10)])
    assert await fetch(store, KEYS[:3]) == [MISS, HIT, HIT]
    assert await store.remove_namespace(SPACE) > 2 and (await store.stats()).objects == 0, "a pin is no lock"


async def test_what_it_is_not_it_does_not_do(rig: StoreRig) -> None:
    async with grpc.aio.insecure_channel(rig.address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Place(kvstore_pb2.PlaceRequest(), timeout=60)
        assert from_rpc_error(caught.value, Leg.STORE).reason == "not_leader"


async def test_a_store_that_is_not_there_is_refused_by_its_address() -> None:
    backend = KvStoreBackend(KvStoreConfig(addresses=("127.0.0.1:1",), drivers=("tcp",)))
    with pytest.raises(PandoError):
        await backend.start()
    await backend.close()
