"""Several store processes and a real registry: one leads, clients find everything with it and without it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import grpc
import pytest
import redis

from common.base.errors import Leg
from common.cache.kvstore_backend import KvStoreBackend
from common.cache.l3 import State
from common.rpc.errors import from_rpc_error
from pando.cli.local_registry import registry_command
from pando.cli.ports import free_port
from pando.cli.probes import answers_ping
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.fake_cluster import eventually
from tests.support.kvstore_rig import StoreRig, open_client, open_registered, running_store
from tests.support.l3_contract import BareStore, block_of, fetch, key_of

HIT, MISS = State.HIT, State.MISS
KEYS = [key_of(number) for number in range(24)]
LOCK_S = 8.0
"""Long enough for a leader to keep its lock on a busy machine."""


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(registry_command(port, tmp_path_factory.mktemp("registry")), stdout=subprocess.DEVNULL)
    eventually(lambda: answers_ping(f"127.0.0.1:{port}"), "a PING's answer")
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait()


@pytest.fixture
def url(registry_url: str) -> str:
    with redis.Redis.from_url(registry_url) as client:
        client.flushall()
    return registry_url


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def start(stack: AsyncExitStack, url: str, node_id: str, **fields: object) -> StoreRig:
    return await stack.enter_async_context(running_store(node_id, registry_url=url, lock_ttl_s=LOCK_S, **fields))


async def client_of(stack: AsyncExitStack, url: str, num_processes: int) -> KvStoreBackend:
    """A client that knows all processes, and their leader."""
    backend = await open_registered(url)
    stack.push_async_callback(backend.close)
    view = backend._view
    await until(lambda: len(view._processes) == num_processes and view.leader(backend.now_s()) is not None)
    return backend


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - other tasks have no event for a test
            await asyncio.sleep(0.02)


def leaders(*rigs: StoreRig) -> list[StoreRig]:
    return [rig for rig in rigs if rig.process.master is not None and rig.process.master.leading]


async def until_led(*rigs: StoreRig) -> StoreRig:
    """The one leader, once it knows all of them."""
    await until(
        lambda: any(
            rig.process.master.complete and rig.process.master.directory.num_nodes == len(rigs)
            for rig in leaders(*rigs)
            if rig.process.master
        )
    )
    (leader,) = leaders(*rigs)
    return leader


async def test_one_leads_and_a_client_finds_what_all_nodes_have(stack: AsyncExitStack, url: str) -> None:
    rigs = [await start(stack, url, f"n{number}") for number in range(3)]
    leader = await until_led(*rigs)
    for number, rig in enumerate(rigs):  # each node gets a third, behind the leader's back
        direct = BareStore(await rig.client())
        await direct.put([block_of(key) for key in KEYS[number * 8 : number * 8 + 8]])
        await direct.close()
    master = leader.process.master
    assert master is not None
    await until(lambda: len(master.directory) == 24)
    store = BareStore(await client_of(stack, url, 3))
    assert await fetch(store, [*KEYS, key_of(99)]) == [HIT] * 24 + [MISS]
    assert (await store.stats()).objects == 24
    assert set(await store.put([block_of(key) for key in KEYS])) == {"present"}, "the leader knows who has it"
    assert (await store.stats()).objects == 24
    assert await store.remove_namespace(KEYS[0].namespace) == 24
    assert await fetch(store, KEYS) == [MISS] * 24


async def test_a_path_lies_on_one_node_and_paths_spread(stack: AsyncExitStack, url: str) -> None:
    rigs = [await start(stack, url, f"n{number}", segment_size=1 << 20) for number in range(3)]
    leader = await until_led(*rigs)
    store = BareStore(await client_of(stack, url, 3))
    for path in range(12):
        await store.put([block_of(key_of(100 * path + number)) for number in range(4)])
    counts = [len(rig.process.parts.holdings.objects) for rig in rigs if rig.process.parts]
    assert sum(counts) == 48 and all(count % 4 == 0 for count in counts)
    assert len([count for count in counts if count]) >= 2
    master = leader.process.master
    assert master is not None
    await until(lambda: len(master.directory) == 48)


async def test_without_a_leader_all_nodes_are_asked(stack: AsyncExitStack, url: str) -> None:
    rigs = [await start(stack, url, f"n{number}", roles="node") for number in range(2)]
    backend = await open_client(*(rig.address for rig in rigs))
    stack.push_async_callback(backend.close)
    store = BareStore(backend)
    for rig, some in zip(rigs, (KEYS[:12], KEYS[12:]), strict=True):
        direct = BareStore(await rig.client())
        await direct.put([block_of(key) for key in some])
        await direct.close()
    assert await fetch(store, [*KEYS, key_of(99)]) == [HIT] * 24 + [MISS]
    assert set(await store.put([block_of(key_of(200))])) == {"stored"}


async def test_a_leader_that_leaves_is_followed_by_another_of_a_higher_term(stack: AsyncExitStack, url: str) -> None:
    second: StoreRig
    async with running_store("a", registry_url=url, lock_ttl_s=LOCK_S) as first:
        await until_led(first)
        second = await start(stack, url, "b")
        assert await until_led(first, second) is first
        assert first.process.master is not None
        term = first.process.master.term
    await until(lambda: leaders(second) == [second])
    assert second.process.master is not None and second.process.master.term == term + 1


async def test_a_wiped_registry_lets_no_old_leader_rule(stack: AsyncExitStack, url: str) -> None:
    """The lock is gone and another takes it: it computes a higher term from the nodes, and they refuse the old one."""
    rigs = [await start(stack, url, f"n{number}") for number in range(2)]
    leader = await until_led(*rigs)
    (other,) = [rig for rig in rigs if rig is not leader]
    old, new = leader.process.master, other.process.master
    assert old is not None and new is not None
    term = old.term
    with redis.Redis.from_url(url) as client:
        client.flushall()
        client.set("pando:kvstore-test:lock:kvstore-leader", f"{other.process.node_id}/{other.process.incarnation}")
    await until(lambda: new.complete and new.directory.num_nodes == 2)
    assert new.term > term and not old.leading
    stub_call = watch(leader.address, term)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub_call
    refused = from_rpc_error(caught.value, Leg.STORE)
    assert refused.reason == "stale_term" and int(refused.param) == new.term


async def watch(address: str, term: int) -> None:
    """Follow a node as a leader of an old term would."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        call = stub.WatchInventory(kvstore_pb2.WatchInventoryRequest(term=term, leader_id="old"), timeout=60)
        async for _ in call:
            return


async def test_hot_objects_get_a_second_copy_and_no_third(stack: AsyncExitStack, url: str) -> None:
    rigs = [await start(stack, url, f"n{number}", hot_lookups=5) for number in range(3)]
    leader = await until_led(*rigs)
    store = BareStore(await client_of(stack, url, 3))
    await store.put([block_of(key) for key in KEYS[:4]])
    master = leader.process.master
    assert master is not None
    await until(lambda: len(master.directory) == 4)
    for _ in range(4):
        assert await fetch(store, KEYS[:2]) == [HIT, HIT]
    assert len(master.directory) == 4, "not yet"
    async with asyncio.timeout(60):
        while len(master.directory) == 4:  # lookups count within a window of time: on a busy machine another may begin
            await fetch(store, KEYS[:2])
    await until(lambda: len(master.directory) == 6)
    for _ in range(12):
        assert await fetch(store, KEYS[:2]) == [HIT, HIT]
    assert len(master.directory) == 6
