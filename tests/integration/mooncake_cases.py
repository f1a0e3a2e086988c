"""The backend `mooncake` on a real Mooncake Store. Run by test_mooncake_store.py, in a network namespace of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from common.base.errors import Unavailable
from common.cache.l3 import HEADER_BYTES, PutState
from common.cache.mooncake_client import Client
from common.cache.mooncake_store import MooncakeStore
from tests.support import mooncake_rig
from tests.support.l3_contract import (
    ERROR,
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
    Store,
    block_of,
    fetch,
    key_of,
    payload_of,
    targets,
)
from tests.support.mooncake_rig import CLIENT_TTL_S, CONFIG, SEGMENT_BYTES, KeptClient, Rig, frozen

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


class TestFaults:
    """What happens to the store's processes. A rig for each test."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        with mooncake_rig.running(tmp_path) as running:
            yield running

    @pytest.fixture
    async def store(self, rig: Rig) -> AsyncIterator[BareStore]:
        backend = MooncakeStore(dataclasses.replace(CONFIG, close_s=20))
        await backend.start()
        yield BareStore(backend)
        await backend.close()

    async def test_a_dead_node_is_an_error_and_then_a_miss(self, rig: Rig, store: BareStore) -> None:
        assert await store.put([block_of(key_of(1))]) == [STORED]
        mooncake_rig.kill(rig.node)
        assert await fetch(store, [key_of(1), key_of(2)]) == [ERROR, MISS], "the master has not noticed yet"
        ends_s = time.monotonic() + 4 * CLIENT_TTL_S
        while await fetch(store, [key_of(1)]) != [MISS]:
            assert time.monotonic() < ends_s
            await asyncio.sleep(0.2)
        assert await store.put([block_of(key_of(1))]) == [NO_SPACE], "nobody lends memory"
        rig.start_node()
        assert await store.put([block_of(key_of(1))]) == [STORED]
        assert await fetch(store, [key_of(1)]) == [HIT]

    async def test_a_frozen_node_does_not_freeze_the_reader(self, rig: Rig, store: BareStore) -> None:
        await store.put([block_of(key_of(1))])
        lease = await store.lookup([key_of(1)])
        with frozen(rig.node):
            landed = targets(1)
            started_s = time.monotonic()
            assert await store.read(lease, [(0, landed[0])], 0.5) == [ERROR]
            assert time.monotonic() - started_s < 2
            before = bytes(landed[0])
        await store.put([block_of(key_of(2))])
        assert await fetch(store, [key_of(2)]) == [HIT]
        assert bytes(landed[0]) == before, "a late byte has landed"

    async def test_a_frozen_master_does_not_freeze_anybody(self, rig: Rig, store: BareStore) -> None:
        await store.put([block_of(key_of(1))])
        lease = await store.lookup([key_of(1)])
        with frozen(rig.master):
            started_s = time.monotonic()
            assert list((await store.lookup([key_of(1)], 0.3)).states) == [ERROR]
            assert await store.read(lease, [(0, targets(1)[0])], 0.3) == [ERROR]
            assert await store.put([block_of(key_of(2))], 0.3) == [PutState.ERROR]
            assert await store.stats() is not None
            assert time.monotonic() - started_s < 5
        assert await fetch(store, [key_of(1)]) == [HIT]

    async def test_a_new_master_has_nothing_and_takes_blocks_again(self, rig: Rig, store: BareStore) -> None:
        await store.put([block_of(key_of(1))])
        mooncake_rig.kill(rig.master)
        assert list((await store.lookup([key_of(1)])).states) == [ERROR]
        with pytest.raises(Unavailable):
            await store.remove_namespace(SPACE)
        rig.start_master()
        ends_s = time.monotonic() + 20
        while await store.put([block_of(key_of(1))]) != [STORED]:
            assert time.monotonic() < ends_s, "the node does not come back"
            await asyncio.sleep(0.1)
        assert await fetch(store, [key_of(1), key_of(2)]) == [HIT, MISS]

    def test_the_process_ends_on_time_with_calls_that_hang(self, rig: Rig) -> None:
        script = """
import asyncio, os, signal
from common.cache.mooncake_store import MooncakeStore
from tests.support.l3_contract import key_of
from tests.support.mooncake_rig import CONFIG
import dataclasses
async def main():
    store, stop = MooncakeStore(dataclasses.replace(CONFIG, close_s=1)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await store.start()
    print("started", flush=True)
    input()
    await store.lookup([key_of(1)], 0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    await store.close()
    print("closed", flush=True)
asyncio.run(main())
"""
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            with frozen(rig.master):
                started_s = time.monotonic()
                output, _ = process.communicate("\n", 60)
                took_s = time.monotonic() - started_s
        assert (output, process.returncode) == ("closed\n", 0)
        assert took_s < 20, "it waited for the call"


async def test_without_a_master_the_start_fails_at_once() -> None:
    nobody = MooncakeStore(dataclasses.replace(CONFIG, master_server_address="127.0.0.1:9"))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 cannot be reached: Connection refused"):
        await nobody.start()
    unstarted: Store = BareStore(nobody)
    assert await unstarted.put([block_of(key_of(1))]) == [PutState.ERROR]
    assert await fetch(unstarted, [key_of(1)]) == [ERROR]
    await nobody.close()
