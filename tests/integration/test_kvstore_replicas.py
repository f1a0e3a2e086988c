"""What a second copy is for: its first holder is killed, and hot objects are read on, cold ones are misses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from common.base.ids import new_worker_id
from common.cache.l3 import State
from tests.support.kvstore_rig import open_client, open_registered
from tests.support.l3_contract import BareStore, block_of, fetch, key_of
from tests.support.node_kills import ForkedStore
from tests.support.store_fleet import Registry, StoreCommand, all_killed, leader_of, running_registry, until_complete

HOT, COLD = [key_of(0), key_of(1)], [key_of(2), key_of(3)]
FLAGS = ("--segment-size", str(1 << 20), "--page-size", "4096", "--hot-lookups", "5", "--lock-ttl-s", "8")
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def url(registry: Registry) -> str:
    """Of a registry that knows nobody."""
    registry.wipe()
    return registry.url


@pytest.fixture
async def pair(url: str) -> AsyncIterator[list[StoreCommand]]:
    """Two nodes, the first of which leads and knows both."""
    with ExitStack() as stack:
        nodes = stack.enter_context(all_killed([]))
        for _ in range(2):
            nodes.append(ForkedStore(new_worker_id("store"), url, *FLAGS))
            await asyncio.to_thread(nodes[-1].wait_ready)
            await until_leads(url, nodes[0])
        await until_complete(nodes[0], 2)
        yield nodes


async def until_leads(url: str, node: StoreCommand) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await leader_of(url) != node.node_id:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("holder", [0, 1], ids=["the leader", "another node"])
async def test_hot_objects_outlive_their_first_holder(url: str, pair: list[StoreCommand], holder: int) -> None:
    first, second = pair[holder], pair[1 - holder]
    alone = BareStore(await open_client(first.address))
    assert set(await alone.put([block_of(key) for key in [*HOT, *COLD]])) == {"stored"}
    await alone.close()
    store, other = BareStore(await open_registered(url)), BareStore(await open_client(second.address))
    try:
        async with asyncio.timeout(LIMIT_S):
            while await fetch(other, HOT) != [State.HIT] * 2:
                await fetch(store, HOT)
        assert await fetch(other, COLD) == [State.MISS] * 2, "a cold object was copied"
        assert await fetch(store, [*HOT, *COLD]) == [State.HIT] * 4
        first.kill()
        seen = [await fetch(store, [*HOT, *COLD])]
        async with asyncio.timeout(LIMIT_S):
            while State.ERROR in seen[-1]:
                seen.append(await fetch(store, [*HOT, *COLD]))
        assert seen[-1] == [State.HIT] * 2 + [State.MISS] * 2
        assert all(State.MISS not in states[:2] and State.HIT not in states[2:] for states in seen), seen
    finally:
        await store.close()
        await other.close()
