"""The backend `mooncake` on a real Mooncake Store. Run by test_mooncake_store.py, in a network namespace."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest

from common.cache.l3 import HEADER_BYTES
from common.cache.mooncake_client import Client
from common.cache.mooncake_store import MooncakeStore
from tests.support import mooncake_rig
from tests.support.l3_contract import (
    EXPIRED,
    HIT,
    MISS,
    NO_SPACE,
    PRESENT,
    SPACE,
    STORED,
    BareStore,
    L3Contract,
    Place,
    block_of,
    fetch,
    key_of,
    payload_of,
    targets,
)
from tests.support.mooncake_rig import CONFIG, SEGMENT_BYTES, KeptClient, Rig

LARGE = 400_000


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with mooncake_rig.running(tmp_path_factory.mktemp("mooncake")) as running:
        yield running


@pytest.fixture(scope="module")
def clients(rig: Rig) -> Iterator[list[KeptClient]]:
    kept = [KeptClient() for _ in range(3)]
    yield kept
    for client in kept:
        client.end()


@pytest.fixture
def place(clients: list[KeptClient]) -> Place:
    """Stores over one Mooncake Store, which is empty."""
    mooncake_rig.empty(cast(Client, clients[0]))
    turns = itertools.cycle(clients)

    async def open_store() -> MooncakeStore:
        client = next(turns)
        store = MooncakeStore(CONFIG, lambda _: cast(Client, client))
        await store.start()
        return store

    return Place(open_store)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[BareStore]:
    store = BareStore(await place.open())
    yield store
    await store.close()


class TestContract(L3Contract):
    """Mooncake keeps the contract, but for three promises (docs/mooncake.md); what it does instead follows below."""

    test_a_lease_outlives_removal = None  # type: ignore[assignment]  # memory of a removed object is free at once
    test_keeps_its_cap = None  # type: ignore[assignment]  # a segment is 16 MiB at least, the suite's cap is less
    test_refuses_what_is_larger_than_the_cap = None  # type: ignore[assignment]  # as above


async def test_removal_ends_leases(store: BareStore) -> None:
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    assert await store.remove_namespace(SPACE) == 1
    assert await store.read(lease, [(0, targets(1)[0])]) == [EXPIRED]


async def test_makes_room_by_evicting(store: BareStore) -> None:
    keys = [key_of(number) for number in range(120)]
    assert len(keys) * LARGE > 2 * SEGMENT_BYTES
    for first in range(0, len(keys), 8):
        states = await store.put([block_of(key, LARGE) for key in keys[first : first + 8]])
        assert set(states) == {STORED}
        stats = await store.stats()
        assert 0 < stats.bytes <= stats.capacity_bytes == SEGMENT_BYTES
    states = await fetch(store, keys, LARGE)
    assert states[-1] is HIT and set(states) == {HIT, MISS}
    assert states.count(HIT) * (HEADER_BYTES + LARGE) > SEGMENT_BYTES // 2


async def test_what_was_looked_up_is_not_evicted(store: BareStore) -> None:
    first = key_of(1000)
    await store.put([block_of(first, LARGE)])
    lease = await store.lookup([first])
    for number in range(0, 96, 8):
        await store.put([block_of(key_of(one), LARGE) for one in range(number, number + 8)])
    (landed,) = targets(1, LARGE)
    assert await store.read(lease, [(0, landed)]) == [HIT]
    assert bytes(landed) == payload_of(first, LARGE)


async def test_refuses_what_is_larger_than_all_segments_or_its_own_memory(store: BareStore) -> None:
    await store.put([block_of(key_of(1))])
    assert await store.put([block_of(key_of(2), SEGMENT_BYTES)]) == [NO_SPACE]
    assert await store.put([block_of(key_of(2), CONFIG.staging_bytes)]) == [NO_SPACE]


async def test_a_batch_of_many_slabs(store: BareStore) -> None:
    keys = [key_of(number) for number in range(24)]
    assert await store.put([block_of(key, LARGE) for key in keys]) == [STORED] * 24
    assert await store.put([block_of(key, LARGE) for key in keys]) == [PRESENT] * 24
    assert await fetch(store, [*keys, key_of(99)], LARGE) == [HIT] * 24 + [MISS]
