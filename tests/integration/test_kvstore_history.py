"""The history checker (tests/support/store_history.py) on a small store: leases that end, evictions, a node that goes.

tests/chaos/test_kvstore_chaos.py has the long run, with processes that are killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from common.cache.kvstore_backend import KvStoreBackend
from common.cache.l3 import BlockKey, State
from tests.support.kvstore_rig import StoreRig, open_client, running_store
from tests.support.l3_contract import BareStore
from tests.support.store_history import History, write_wrongly


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def two_nodes(stack: AsyncExitStack, folder: Path) -> list[StoreRig]:
    """Memory for 40 blocks each, a log for more than all, leases of a second."""
    return [
        await stack.enter_async_context(
            running_store(f"n{number}", ssd=folder / f"n{number}", ssd_size=32 << 20, max_lease_ttl_s=1.0)
        )
        for number in range(2)
    ]


async def client(stack: AsyncExitStack, rigs: list[StoreRig]) -> KvStoreBackend:
    backend = await open_client(*(rig.address for rig in rigs))
    stack.push_async_callback(backend.close)
    return backend


async def test_reads_bring_the_bytes_or_nothing(stack: AsyncExitStack, tmp_path: Path) -> None:
    rigs = await two_nodes(stack, tmp_path)
    history = History(BareStore(await client(stack, rigs)), num_paths=40)
    stopping = asyncio.Event()
    clients = [asyncio.create_task(history.work(seed, stopping)) for seed in range(4)]
    try:
        await hits(history, 40)
        for number in range(20):  # an operator removes what clients use
            for rig in rigs:
                assert rig.process.parts is not None
                names = [
                    name for place, name in enumerate(rig.process.parts.holdings.objects) if place % 7 == number % 7
                ]
                rig.process.parts.holdings.remove(names)
            await asyncio.sleep(0.05)
        await rigs[1].server.stop(0)
        await hits(history, 40)
    finally:
        stopping.set()
        await asyncio.gather(*clients)
    assert history.seen["read corrupt"] == 0, history.seen


async def hits(history: History, count: int) -> None:
    """Wait until so many more reads have hit."""
    before = history.seen["read hit"]
    async with asyncio.timeout(60):
        while history.seen["read hit"] < before + count:  # noqa: ASYNC110 - clients have no event for a test
            await asyncio.sleep(0.02)


def flip(key: BlockKey, payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


def swap(key: BlockKey, payload: bytes) -> bytes:
    return payload[1:] + payload[:1]


@pytest.mark.parametrize("corrupt", [flip, swap])
async def test_control_a_wrong_byte_is_found(stack: AsyncExitStack, tmp_path: Path, corrupt: object) -> None:
    backend = await client(stack, await two_nodes(stack, tmp_path))
    history = History(BareStore(backend), num_paths=4)
    await history.write(0)
    assert await history.read(0) == [State.HIT] * 8
    await write_wrongly(backend, history, 1, corrupt)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="other bytes"):
        await history.read(1)


async def test_control_a_miss_that_was_written_to_is_found(stack: AsyncExitStack, tmp_path: Path) -> None:
    class Careless(BareStore):
        async def read(self, lease: object, wanted: object, deadline_s: float = 0) -> list[State]:
            for _, target in wanted:  # type: ignore[attr-defined]
                target[3] = 0
            return [State.MISS] * 8

    history = History(Careless(await client(stack, await two_nodes(stack, tmp_path))), num_paths=4)
    with pytest.raises(AssertionError, match="was written to"):
        await history.read(0)
