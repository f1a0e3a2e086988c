"""Clients that do not keep the rules of the KV store: they are refused or bounded, and cost nobody else anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from common.base.clock import monotonic
from common.base.config import TimeoutsConfig
from common.base.errors import Leg, PeerLost
from common.cache import kvstore_wire as wire
from common.cache.kvstore_calls import StoreCalls
from common.cache.kvstore_view import StoreView
from common.cache.kvstore_wire import Lookup, Put
from common.cache.l3 import HEADER_BYTES, State
from common.rpc.errors import from_rpc_error
from common.transport.base import Endpoint, Extent
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc, types_pb2
from tests.support.kvstore_rig import StoreRig, running_store
from tests.support.l3_contract import BLOCK_BYTES, SPACE, BareStore, block_of, fetch, key_of
from tests.support.transport_peer import PeerProcess, Spec

KEYS = [key_of(number) for number in range(8)]
OBJECT_BYTES = HEADER_BYTES + BLOCK_BYTES
LEASE_S = 60.0
LIMIT_S = 30.0


@pytest.fixture
def ahead_s() -> list[float]:
    """How far the store's clock is ahead of the machine's."""
    return [0.0]


@pytest.fixture
async def rig(ahead_s: list[float]) -> AsyncIterator[StoreRig]:
    """Eight objects; room for 16, four of which may be on their way; three leases."""
    limits = {"segment_size": 16 * OBJECT_BYTES, "max_staged_bytes": 4 * OBJECT_BYTES}
    fields = {"max_leases": 3, "max_lease_ttl_s": LEASE_S, "put_wait_s": 0.1, "clock": lambda: monotonic() + ahead_s[0]}
    async with running_store(**fields, **limits) as rig:
        store = BareStore(await rig.client())
        await store.put([block_of(key) for key in KEYS])
        await store.close()
        yield rig


@pytest.fixture
async def stub(rig: StoreRig) -> AsyncIterator[kvstore_pb2_grpc.KvStoreServiceStub]:
    async with grpc.aio.insecure_channel(rig.address) as channel:
        yield kvstore_pb2_grpc.KvStoreServiceStub(channel)


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerProcess]:
    """A writer in a process of its own."""
    with PeerProcess(Spec("tcp", num_extents=64, extent_bytes=BLOCK_BYTES)) as peer:
        yield peer


def offer_of(extents: list[Extent], endpoints: list[Endpoint], first: int = 100) -> kvstore_pb2.PutRequest:
    """An offer of extents of another process under new keys."""
    return kvstore_pb2.PutRequest(
        keys=wire.pack_keys([key_of(first + number) for number in range(len(extents))]),
        headers=bytes(HEADER_BYTES * len(extents)),
        extents=wire.pack_offers(extents),
        incarnation=extents[0].incarnation,
        endpoints=wire.pack_endpoints(endpoints),
    )


def objects_of(rig: StoreRig) -> Any:
    assert rig.process.parts is not None
    return rig.process.parts.holdings.objects


async def reason_of(call: Any) -> str:
    """Why a call was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value
    return from_rpc_error(caught.value, Leg.STORE).reason


async def test_leases_that_nobody_returns_are_bounded_and_end(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub, ahead_s: list[float]
) -> None:
    request = kvstore_pb2.LookupAndLeaseRequest(keys=wire.pack_keys(KEYS), lease_ttl_s=1e9)
    answers = [await stub.LookupAndLease(request, timeout=60) for _ in range(5)]
    assert [set(answer.states) for answer in answers] == [{Lookup.HIT}] * 3 + [{Lookup.ERROR}] * 2
    assert [bool(answer.lease_id) for answer in answers] == [True] * 3 + [False] * 2
    assert all(answer.lease_ttl_s <= LEASE_S for answer in answers)
    assert rig.process.parts is not None
    ahead_s[0] = LEASE_S + 1
    async with asyncio.timeout(LIMIT_S):
        while len(rig.process.parts.holdings.leases):  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.02)
    assert all(objects_of(rig).get(wire.name_of(key)).pins == 0 for key in KEYS)
    assert (await stub.LookupAndLease(request, timeout=60)).lease_id


async def test_unknown_leases_are_no_news(stub: kvstore_pb2_grpc.KvStoreServiceStub) -> None:
    answer = await stub.Renew(kvstore_pb2.RenewRequest(lease_ids=[1, 2, 2**63]), timeout=60)
    assert answer.alive == b"\0\0\0"
    await stub.Release(kvstore_pb2.ReleaseRequest(lease_ids=range(10_000)), timeout=60)
    many = range(100_000)
    assert await reason_of(stub.Renew(kvstore_pb2.RenewRequest(lease_ids=many), timeout=60)) == "bad_store_request"
    assert await reason_of(stub.Release(kvstore_pb2.ReleaseRequest(lease_ids=many), timeout=60)) == "bad_store_request"


async def test_who_pretends_to_lead_cannot_use_up_the_terms(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub
) -> None:
    request = kvstore_pb2.WatchInventoryRequest(term=2**64 - 1, leader_id="nobody")
    assert await reason_of(stub.WatchInventory(request, timeout=60).read()) == "bad_store_request"
    stats = await stub.GetStoreStats(kvstore_pb2.GetStoreStatsRequest(), timeout=60)
    assert (stats.term, stats.leader_id) == (0, "")


async def test_a_batch_beyond_the_bytes_that_may_be_on_their_way_comes_in_portions(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub, peer: PeerProcess
) -> None:
    objects, most = objects_of(rig), 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, objects.staged_bytes)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    answer = await stub.Put(offer_of(peer.extents, [peer.endpoint]), timeout=60)
    watching.cancel()
    assert set(answer.states) == {Put.STORED} and len(answer.states) == 64
    assert 0 < most <= 4 * OBJECT_BYTES and objects.staged_bytes == 0
    assert objects.memory.num_bytes <= 16 * OBJECT_BYTES, "the last of them took the places of the first"


@pytest.mark.parametrize("how", ["dead", "frozen", "never there"])
async def test_a_writer_that_is_gone_leaves_nothing_staged(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub, how: str
) -> None:
    """It offers more than may be staged at a time: what comes after its first failure is not staged at all."""
    with PeerProcess(Spec("tcp", num_extents=16, extent_bytes=BLOCK_BYTES)) as peer:
        endpoints = [peer.endpoint]
        if how == "never there":
            endpoints = [Endpoint("tcp", peer.endpoint.host_id, peer.endpoint.incarnation, b"garbage")]
        elif how == "frozen":
            peer.stop()
        else:
            peer.kill()
        began_s = time.monotonic()
        answer = await stub.Put(offer_of(peer.extents, endpoints), timeout=60)
        took_s = time.monotonic() - began_s
    assert set(answer.states) == {Put.ERROR} and objects_of(rig).staged_bytes == 0
    assert took_s < 3 * rig.process.timeouts.transfer_s, "one wave after another waited for it"
    store = BareStore(await rig.client())
    assert await fetch(store, KEYS) == [State.HIT] * 8, "room was made for nothing"
    await store.close()


async def test_a_writer_that_dies_half_way_leaves_whole_objects_only(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub
) -> None:
    with PeerProcess(Spec("tcp", num_extents=3, extent_bytes=4 * BLOCK_BYTES)) as peer:
        peer.ask("arm", action="SIGKILL", after=2)
        answer = await stub.Put(offer_of(peer.extents, [peer.endpoint]), timeout=60)
    assert Put.ERROR in answer.states and set(answer.states) <= {Put.ERROR, Put.STORED}
    objects = objects_of(rig)
    assert objects.staged_bytes == 0
    there = [objects.get(wire.name_of(key_of(100 + number))) is not None for number in range(3)]
    assert there == [state == Put.STORED for state in answer.states]


async def test_what_can_never_fit_is_refused_and_evicts_nothing(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub, peer: PeerProcess
) -> None:
    first = peer.extents[0]
    for length in (17 * OBJECT_BYTES, 2**40, 2**64 - 1):
        huge = Extent(first.incarnation, first.segment, first.offset, length, first.generation, first.checksum)
        answer = await stub.Put(offer_of([huge], [peer.endpoint]), timeout=60)
        assert list(answer.states) == [Put.NO_SPACE] and answer.retry_after_s > 0
    lie = Extent(first.incarnation, first.segment, first.offset, 2 * BLOCK_BYTES, first.generation, first.checksum)
    assert list((await stub.Put(offer_of([lie], [peer.endpoint]), timeout=60)).states) == [Put.ERROR]
    assert len(objects_of(rig)) == 8


RUN = {"namespace": SPACE, "hash_bytes": 32, "hashes": bytes(32)}


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": b""},
        {"namespace": bytes(65)},
        {"hash_bytes": 0},
        {"hash_bytes": 65, "hashes": bytes(65)},
        {"hashes": bytes(33)},
        {"hashes": b""},
        {"hashes": bytes(32 * (wire.MAX_KEYS + 1))},
    ],
    ids=["no namespace", "long namespace", "no hash", "long hash", "half a hash", "empty", "too many"],
)
async def test_names_that_are_none_are_refused_by_every_call(
    stub: kvstore_pb2_grpc.KvStoreServiceStub, change: dict[str, Any]
) -> None:
    keys = [kvstore_pb2.KeyRun(**(RUN | change))]
    for call, request in (
        (stub.LookupAndLease, kvstore_pb2.LookupAndLeaseRequest(keys=keys)),
        (stub.Put, kvstore_pb2.PutRequest(keys=keys)),
        (stub.Remove, kvstore_pb2.RemoveRequest(keys=keys)),
    ):
        assert await reason_of(call(request, timeout=60)) == "bad_store_request"


async def test_unknown_namespaces_have_nothing(stub: kvstore_pb2_grpc.KvStoreServiceStub) -> None:
    keys = wire.pack_keys([key_of(0, b"unknown")])
    answer = await stub.LookupAndLease(kvstore_pb2.LookupAndLeaseRequest(keys=keys), timeout=60)
    assert answer.states == bytes([Lookup.MISS]) and not answer.lease_id
    assert (
        await stub.RemoveNamespace(kvstore_pb2.RemoveNamespaceRequest(namespace=b"unknown"), timeout=60)
    ).num_removed == 0
    for namespace in (b"", bytes(65)):
        request = kvstore_pb2.RemoveNamespaceRequest(namespace=namespace)
        assert await reason_of(stub.RemoveNamespace(request, timeout=60)) == "bad_store_request"


async def test_offers_without_sense_become_no_object(
    rig: StoreRig, stub: kvstore_pb2_grpc.KvStoreServiceStub, peer: PeerProcess
) -> None:
    empty = Extent(7, 0, 0, 0, 0, 0)
    assert await reason_of(stub.Put(offer_of([empty], [peer.endpoint]), timeout=60)) == "bad_store_request"
    nonsense = [
        types_pb2.TransportEndpoint(driver=driver, host_id="x", incarnation=1, descriptor=data)
        for driver in ("tcp", "shm", "ucx", "pigeon", "")
        for data in (b"", b"\xff" * 300)
    ]
    for endpoints in ([], *([one] for one in nonsense)):
        request = offer_of(peer.extents[:2], [])
        request.endpoints.extend(endpoints)
        assert set((await stub.Put(request, timeout=60)).states) == {Put.ERROR}
    assert objects_of(rig).staged_bytes == 0 and len(objects_of(rig)) == 8


async def test_a_call_to_a_process_that_is_no_longer_listed_fails_like_any_other() -> None:
    """The channel is closed under the call, which grpc.aio shows as a cancellation: that must not look like ours."""

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.append(transport)

        def connection_lost(self, error: Exception | None) -> None:
            lost.append(error)

    opened: list[asyncio.BaseTransport] = []
    lost: list[Exception | None] = []
    silent = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    calls = StoreCalls(TimeoutsConfig(), StoreView(), monotonic)
    request = kvstore_pb2.GetStoreStatsRequest()
    call = asyncio.create_task(calls.run(address, lambda s: calls.stub(address).GetStoreStats(request, timeout=s), 60))
    await until(lambda: len(opened) == 1)
    await calls.forget(address)
    with pytest.raises(PeerLost):
        await call
    call = asyncio.create_task(calls.run(address, lambda s: calls.stub(address).GetStoreStats(request, timeout=s), 60))
    await until(lambda: len(opened) == 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await calls.close()
    silent.close()
    for transport in opened:
        transport.close()
    await until(lambda: len(lost) == len(opened))  # its socket is closed some rounds of the loop later


async def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - sockets have no event here
            await asyncio.sleep(0.01)
