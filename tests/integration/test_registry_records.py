"""Worker records in a real Redis-protocol server: there and back, expiry, sign-off, and a server that is gone."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import redis

from common.base.errors import Unavailable
from common.rpc.registry import STORE, Heartbeat, RegistryLock, RegistryReader, WorkerRecord
from pando.cli.local_registry import registry_command

RECORD = WorkerRecord("w1", 7, "127.0.0.1:5", ["prefill", "decode"], 42, "127.0.0.1:6", 0.5, True)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = registry_command(port, tmp_path_factory.mktemp("registry"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            with redis.Redis(port=port, retry_on_error=[redis.ConnectionError]) as client:
                _wait_for(client)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()


def _wait_for(client: redis.Redis) -> None:
    for _ in range(200):
        try:
            client.ping()
        except redis.ConnectionError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the registry did not start")


@pytest.fixture
async def reader(url: str) -> AsyncIterator[RegistryReader]:
    reader = RegistryReader(url, "test", 5.0)
    yield reader
    await reader.close()


async def listed(reader: RegistryReader, wanted: list[WorkerRecord]) -> None:
    """Wait until exactly these are listed."""
    async with asyncio.timeout(60):
        while await reader.list_workers() != wanted:  # noqa: ASYNC110 - nobody tells when an entry changes
            await asyncio.sleep(0.02)


def heartbeat(url: str, record: WorkerRecord) -> Heartbeat:
    return Heartbeat(url, "test", lambda: record, interval_s=0.05, ttl_s=60.0)


async def test_a_life_that_was_replaced_stays_out_while_the_new_one_is_there(url: str, reader: RegistryReader) -> None:
    old, new = RECORD, replace(RECORD, incarnation=8, address="127.0.0.1:9")
    zombie, heir = heartbeat(url, old), heartbeat(url, new)
    zombie.start()
    await listed(reader, [old])
    heir.start()
    await listed(reader, [new])
    for _ in range(20):
        await asyncio.sleep(0.02)  # several beats of both: time itself is what is tested
        assert await reader.list_workers() == [new]
    await asyncio.to_thread(zombie.close)
    assert await reader.list_workers() == [new], "the old life signed the new one off"
    again = heartbeat(url, old)
    again.start()
    await listed(reader, [old])
    await asyncio.to_thread(heir.close)
    assert await reader.list_workers() == [old]
    await asyncio.to_thread(again.close)
    await listed(reader, [])


async def test_an_entry_that_a_registry_lost_is_written_again(url: str, reader: RegistryReader) -> None:
    beating = heartbeat(url, RECORD)
    beating.start()
    await listed(reader, [RECORD])
    with redis.Redis.from_url(url) as client:
        client.flushall()
    await listed(reader, [RECORD])
    await asyncio.to_thread(beating.close)


async def test_a_record_there_and_back_then_gone_with_its_worker(url: str, reader: RegistryReader) -> None:
    heartbeat = Heartbeat(url, "test", lambda: RECORD, interval_s=0.1, ttl_s=60)
    heartbeat.start()
    await listed(reader, [RECORD])
    await asyncio.to_thread(heartbeat.close)
    assert await reader.list_workers() == []


async def test_clusters_do_not_see_each_other(url: str, reader: RegistryReader) -> None:
    heartbeat = Heartbeat(url, "other", lambda: RECORD, interval_s=0.1, ttl_s=60)
    heartbeat.start()
    others = RegistryReader(url, "other", 5.0)
    await listed(others, [RECORD])
    assert await reader.list_workers() == []
    await others.close()
    await asyncio.to_thread(heartbeat.close)


async def test_an_entry_expires_when_nobody_beats(url: str, reader: RegistryReader) -> None:
    heartbeat = Heartbeat(url, "test", lambda: RECORD, interval_s=60, ttl_s=1.5)
    heartbeat.start()
    await listed(reader, [RECORD])
    await listed(reader, [])
    await asyncio.to_thread(heartbeat.close)


async def test_entries_of_other_versions_do_not_hide_the_others(url: str, reader: RegistryReader) -> None:
    with redis.Redis.from_url(url) as client:
        client.set("pando:test:worker:a", b"not json", px=60000)
        client.set("pando:test:worker:b", b'{"worker_id": "b"}', px=60000)
        client.set("pando:test:worker:c", b'{"worker_id": "c", "incarnation": 1, "address": "x", "new": 2}', px=60000)
        assert await reader.list_workers() == [WorkerRecord("c", 1, "x")]
        client.flushdb()


async def test_a_registry_that_is_gone_is_said_quickly_and_leaving_does_not_wait() -> None:
    reader = RegistryReader("redis://127.0.0.1:1/0", "test", 5.0)
    heartbeat = Heartbeat("redis://127.0.0.1:1/0", "test", lambda: RECORD, interval_s=60, ttl_s=5)
    heartbeat.start()
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable) as gone:
            await reader.list_workers()
        await asyncio.to_thread(heartbeat.close)
    assert gone.value.reason == "registry_unreachable"
    await reader.close()


async def test_kinds_of_entries_do_not_see_each_other(url: str) -> None:
    store = WorkerRecord("kvstore-0", 1, "127.0.0.1:9", ["node", "leader"])
    heartbeat = Heartbeat(url, "kinds", lambda: store, interval_s=0.05, ttl_s=60.0, kind=STORE)
    heartbeat.start()
    workers, stores = RegistryReader(url, "kinds", 1.0), RegistryReader(url, "kinds", 1.0, STORE)
    try:
        async with asyncio.timeout(60):
            while not (found := await stores.list_workers()):  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.01)
        assert found == [store] and await workers.list_workers() == []
    finally:
        heartbeat.close()
        await workers.close()
        await stores.close()


def lock(url: str, owner: str, ttl_s: float = 5.0) -> RegistryLock:
    return RegistryLock(url, "locks", "leader", owner, ttl_s=ttl_s, timeout_s=1.0)


async def test_one_of_two_has_the_lock(url: str) -> None:
    one, other = lock(url, "one"), lock(url, "other")
    assert await one.keep() and not await other.keep() and await one.keep()
    await other.free()
    assert not await other.keep(), "only its owner frees it"
    await one.free()
    assert await other.keep() and not await one.keep()
    await other.free()
    await one.close()
    await other.close()


async def test_a_lock_ends_by_itself(url: str) -> None:
    one, other = lock(url, "one", ttl_s=0.1), lock(url, "other")
    assert await one.keep()
    async with asyncio.timeout(60):
        while not await other.keep():  # noqa: ASYNC110 - time on the server
            await asyncio.sleep(0.01)
    assert not await one.keep()
    await other.free()
    await one.close()
    await other.close()


async def test_a_lock_of_a_registry_that_is_gone_is_unknown() -> None:
    lost = lock("redis://127.0.0.1:1/0", "one")
    with pytest.raises(Unavailable):
        await lost.keep()
    await lost.close()


NONSENSE = [
    b"5",
    b"[]",
    b"\xff",
    b'{"worker_id": "x"}',
    b'{"worker_id": 5, "incarnation": "x", "address": null}',
    b'{"worker_id": "another", "incarnation": 1, "address": "h:1"}',
    b'{"worker_id": "x", "incarnation": -1, "address": "h:1"}',
    b'{"worker_id": "x", "incarnation": 1.5, "address": "h:1"}',
    b'{"worker_id": "x", "incarnation": 18446744073709551616, "address": "h:1"}',
    b'{"worker_id": "x", "incarnation": 1, "address": "h:1", "roles": "decode"}',
    b'{"worker_id": "x", "incarnation": 1, "address": "h:1", "roles": [1]}',
    b'{"worker_id": "x", "incarnation": 1, "address": "h:1", "metrics_address": 7}',
    b'{"worker_id": "x", "incarnation": 1, "address": "h:1", "draining": "no"}',
    b'{"worker_id": "x", "incarnation": 1, "address": "h:1", "engine_step_age_s": null}',
]


async def test_entries_that_make_no_sense_hide_nobody(url: str, reader: RegistryReader) -> None:
    beat = heartbeat(url, RECORD)
    beat.start()
    await listed(reader, [RECORD])
    with redis.Redis.from_url(url) as client:
        client.lpush("pando:test:worker:list", "x")
        for value in NONSENSE:
            client.set("pando:test:worker:x", value)
            assert await reader.list_workers() == [RECORD], value
        client.set("pando:test:worker:x", b'{"worker_id": "x", "incarnation": 7, "address": "h:1", "of": "later"}')
        assert [record.worker_id for record in await reader.list_workers()] == [RECORD.worker_id, "x"]
        client.delete("pando:test:worker:x", "pando:test:worker:list")
    await asyncio.to_thread(beat.close)
