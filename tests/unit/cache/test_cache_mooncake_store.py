"""The mooncake backend over a fake client: codes told apart, calls that hang, late bytes, memory, settings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from common.base.errors import InvalidRequest, Unavailable
from common.cache.backends import make_backend
from common.cache.l3 import HEADER_BYTES, L3Stats, PutState, SealedBlock, Slot
from common.cache.mooncake_client import Connection
from common.cache.mooncake_config import MooncakeConfig, parse_settings
from common.cache.mooncake_staging import Staging, chunks
from common.cache.mooncake_store import MooncakeStore
from tests.support.l3_contract import (
    BLOCK_BYTES,
    CORRUPT,
    ERROR,
    EXPIRED,
    HIT,
    MISS,
    NO_SPACE,
    PRESENT,
    SPACE,
    STORED,
    BareStore,
    block_of,
    eventually,
    fetch,
    header_of,
    key_of,
    payload_of,
    targets,
)
from tests.support.mooncake_fake import FakeMooncake

OBJECT_BYTES = HEADER_BYTES + BLOCK_BYTES
CONFIG = MooncakeConfig(
    "nowhere:1", master_metrics_port=0, slab_bytes=4 * OBJECT_BYTES, staging_bytes=64 * OBJECT_BYTES
)


@pytest.fixture
def client() -> FakeMooncake:
    return FakeMooncake()


@pytest.fixture
async def store(client: FakeMooncake) -> AsyncIterator[BareStore]:
    backend = MooncakeStore(CONFIG, lambda _: client)
    await backend.start()
    yield BareStore(backend)
    await backend.close()
    assert client.closed == 1


async def test_blocks_go_in_batches_and_come_back(store: BareStore, client: FakeMooncake) -> None:
    keys = [key_of(number) for number in range(10)]
    assert await store.put([block_of(key) for key in keys]) == [STORED] * 10
    assert client.calls.count("put") == 3, "ten blocks, four to a slab"
    assert await fetch(store, [*keys, key_of(99)]) == [HIT] * 10 + [MISS]
    assert client.calls.count("exist") == 3 + 1 and client.calls.count("get") == 3


async def test_what_is_there_is_not_put_again(store: BareStore, client: FakeMooncake) -> None:
    await store.put([block_of(key_of(1))])
    client.calls.clear()
    assert await store.put([block_of(key_of(1))]) == [PRESENT]
    assert client.calls == ["exist"]


async def test_an_object_of_another_length_is_replaced(store: BareStore) -> None:
    await store.put([block_of(key_of(1), 77)])
    assert await store.put([block_of(key_of(1))]) == [STORED]
    assert await fetch(store, [key_of(1)]) == [HIT]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (OBJECT_BYTES - 1, CORRUPT),
        (OBJECT_BYTES + 1, CORRUPT),
        (-600, CORRUPT),
        (0, ERROR),
        (-704, EXPIRED),
        (-707, EXPIRED),
        (-800, ERROR),
        (-900, ERROR),
        (-1, ERROR),
        (-31337, ERROR),
    ],
)
async def test_codes_of_a_read(store: BareStore, client: FakeMooncake, code: int, state: object) -> None:
    await store.put([block_of(key_of(1))])
    client.codes["get"] = code
    (landed,) = targets(1)
    lease = await store.lookup([key_of(1)])
    assert await store.read(lease, [(0, landed)]) == [state]
    assert bytes(landed) == bytes(targets(1)[0]), "something was written"


@pytest.mark.parametrize(("code", "state"), [(1, HIT), (0, MISS), (-1, ERROR), (-900, ERROR), (7, ERROR)])
async def test_codes_of_a_lookup(store: BareStore, client: FakeMooncake, code: int, state: object) -> None:
    client.codes["exist"] = code
    assert list((await store.lookup([key_of(1)])).states) == [state]


@pytest.mark.parametrize(
    ("call", "code", "state"),
    [
        ("put", -200, NO_SPACE),
        ("put", -900, PutState.ERROR),
        ("put", -800, PutState.ERROR),
        ("exist", -900, PutState.ERROR),
        ("register", -1, PutState.ERROR),
    ],
)
async def test_codes_of_a_put(store: BareStore, client: FakeMooncake, call: str, code: int, state: object) -> None:
    client.codes[call] = code
    assert await store.put([block_of(key_of(1))]) == [state]


async def test_what_found_no_room_is_tried_again(store: BareStore, client: FakeMooncake) -> None:
    client.codes["put"] = -200

    def evict() -> None:
        if client.calls.count("put") == 3:
            del client.codes["put"]

    client.before["put"] = evict
    assert await store.put([block_of(key_of(1))]) == [STORED]
    assert client.calls.count("put") == 3


async def test_a_call_that_raises_is_an_error(store: BareStore, client: FakeMooncake) -> None:
    def fail() -> None:
        raise RuntimeError("inside Mooncake")

    client.before |= dict.fromkeys(("exist", "put", "regex"), fail)
    assert await fetch(store, [key_of(1)]) == [ERROR]
    assert await store.put([block_of(key_of(1))]) == [PutState.ERROR]
    with pytest.raises(Unavailable):
        await store.remove_namespace(SPACE)


async def test_a_hanging_read_is_left_at_the_deadline_and_lands_nowhere(store: BareStore, client: FakeMooncake) -> None:
    await store.put([block_of(key_of(1))])
    thaw = threading.Event()
    client.before["get"] = lambda: thaw.wait(20)
    lease = await store.lookup([key_of(1)])
    (landed,) = targets(1)
    assert await store.read(lease, [(0, landed)], 0.05) == [ERROR]
    thaw.set()
    assert await fetch(store, [key_of(1)]) == [HIT], "the thread is free again"
    assert bytes(landed) == bytes(targets(1)[0]), "a late byte has landed"


async def test_a_late_put_stores_what_the_payload_was(store: BareStore, client: FakeMooncake) -> None:
    thaw, inside = threading.Event(), threading.Event()
    client.before["put"] = lambda: (inside.set(), thaw.wait(20))
    payload = bytearray(payload_of(key_of(1)))
    block = SealedBlock(key_of(1), header_of(bytes(payload)), memoryview(payload))
    putting = asyncio.create_task(store.backend.put([block], 20))
    await asyncio.to_thread(inside.wait, 20)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    payload[:] = bytes(len(payload))
    thaw.set()
    await eventually(lambda: bool(client.objects))
    assert await fetch(store, [key_of(1)]) == [HIT]


async def test_nothing_is_put_that_was_copied_after_the_caller_left(store: BareStore, client: FakeMooncake) -> None:
    thaw, inside = threading.Event(), threading.Event()
    client.before["exist"] = lambda: (inside.set(), thaw.wait(20))
    putting = asyncio.create_task(store.put([block_of(key_of(1))]))
    await asyncio.to_thread(inside.wait, 20)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    thaw.set()
    assert await fetch(store, [key_of(1)]) == [MISS]
    assert "put" not in client.calls


async def test_the_client_is_closed_when_the_last_call_has_returned(client: FakeMooncake) -> None:
    store = BareStore(MooncakeStore(CONFIG, lambda _: client))
    await store.backend.start()
    thaw, inside = threading.Event(), threading.Event()
    client.before["exist"] = lambda: (inside.set(), thaw.wait(20))
    looking = asyncio.create_task(store.lookup([key_of(1)]))
    await asyncio.to_thread(inside.wait, 20)
    await store.close()
    await store.close()
    assert client.closed == 0
    thaw.set()
    await looking
    await eventually(lambda: client.closed == 1)


async def test_a_start_that_takes_too_long_is_given_up_and_its_client_closed(client: FakeMooncake) -> None:
    thaw = threading.Event()

    def connect(_: MooncakeConfig) -> FakeMooncake:
        thaw.wait(20)
        return client

    store = MooncakeStore(MooncakeConfig("nowhere:1", start_s=0.05), connect)
    with pytest.raises(Unavailable, match=r"nowhere:1 did not answer within 0\.05 s"):
        await store.start()
    thaw.set()
    await eventually(lambda: client.closed == 1)
    await store.close()


async def test_a_lease_outlives_the_store_with_errors(client: FakeMooncake) -> None:
    store = BareStore(MooncakeStore(CONFIG, lambda _: client))
    await store.backend.start()
    await store.put([block_of(key_of(1))])
    lease = await store.lookup([key_of(1)])
    await store.close()
    assert await store.read(lease, [(0, targets(1)[0])]) == [ERROR]


async def test_stats_are_zeros_when_nobody_is_asked(store: BareStore) -> None:
    assert await store.stats() == L3Stats(0, 0)


async def test_a_block_larger_than_the_staging_memory_is_no_space_and_no_hit(
    store: BareStore, client: FakeMooncake
) -> None:
    large = CONFIG.staging_bytes
    assert await store.put([block_of(key_of(1), large)]) == [NO_SPACE]
    client.codes["exist"] = 1
    lease = await store.lookup([key_of(1)])
    slot = Slot(0, memoryview(bytearray(HEADER_BYTES)), targets(1, large)[0])
    assert await lease.read([slot], 5) == [ERROR]


class TestStaging:
    """Slabs: bounded, reused, and at rest after a failure."""

    def test_a_slab_is_used_again_unless_its_transfer_failed(self, client: FakeMooncake) -> None:
        now_s = 0.0
        staging = Staging(100, 250, rest_s=10, clock=lambda: now_s)
        with staging.borrow(client, 50) as first:
            assert first is not None
            address = first.address
        with staging.borrow(client, 100) as again:
            assert again is not None and again.address == address
            again.failed = True
        with staging.borrow(client, 50) as other:
            assert other is not None and other.address != address
            with staging.borrow(client, 50) as third:
                assert third is None, "over the limit while the first one rests"
                now_s = 10.0
            with staging.borrow(client, 50) as rested:
                assert rested is not None and rested.address == address

    def test_smaller_slabs_make_room_for_a_larger_one(self, client: FakeMooncake) -> None:
        staging = Staging(100, 250, rest_s=10)
        with staging.borrow(client, 1), staging.borrow(client, 1):
            assert staging.num_bytes == 200
        with staging.borrow(client, 200) as large:
            assert large is not None and large.memory.nbytes == 200
            assert staging.num_bytes == sum(client.registered.values()) == 200
        with staging.borrow(client, 251) as impossible:
            assert impossible is None

    def test_what_raises_counts_as_failed(self, client: FakeMooncake) -> None:
        staging = Staging(100, 100, rest_s=10)
        with pytest.raises(ZeroDivisionError), staging.borrow(client, 1):
            raise ZeroDivisionError
        with staging.borrow(client, 1) as slab:
            assert slab is None

    def test_chunks(self) -> None:
        assert chunks([3, 3, 3, 9, 1, 1], 6) == [[0, 1], [2], [3], [4, 5]]
        assert chunks([], 6) == []


def test_nobody_enters_a_closed_connection(client: FakeMooncake) -> None:
    connection = Connection(client)
    with connection.use() as inside:
        assert inside is client
        connection.close()
        assert client.closed == 0
    assert client.closed == 1
    connection.close()
    with connection.use() as late:
        assert late is None
    assert client.closed == 1


class TestSettings:
    """What operators give."""

    def test_an_address_is_enough(self) -> None:
        config = parse_settings({"master_server_address": "10.0.0.1:50051"})
        assert (config.master, config.segment_bytes, config.protocol) == (("10.0.0.1", 50051), 0, "tcp")
        assert make_backend("mooncake", {"master_server_address": "10.0.0.1:50051"}).name == "mooncake"

    def test_names_and_sizes_are_those_of_sglang(self) -> None:
        config = parse_settings(
            {
                "master_server_address": "etcd://10.0.0.1:2379",
                "metadata_server": "http://10.0.0.1:8080/metadata",
                "protocol": "rdma",
                "device_name": "mlx5_0,mlx5_1",
                "local_hostname": "worker-3",
                "global_segment_size": "4gb",
                "master_metrics_port": "0",
                "staging_size": "33554432",
            }
        )
        assert config.master is None
        assert (config.segment_bytes, config.staging_bytes, config.master_metrics_port) == (4 << 30, 32 << 20, 0)
        assert (config.protocol, config.device_name, config.local_hostname) == ("rdma", "mlx5_0,mlx5_1", "worker-3")

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ({}, "master_server_address"),
            ({"path": "/kv"}, "'path'"),
            ({"protocol": "smoke"}, "'smoke'"),
            ({"global_segment_size": "4gb"}, "local_hostname"),
            ({"global_segment_size": "1mb", "local_hostname": "a"}, "16 MiB"),
            ({"global_segment_size": "-1"}, "global_segment_size '-1'"),
            ({"global_segment_size": "999999tb"}, "global_segment_size"),
            ({"staging_size": "much"}, "staging_size 'much'"),
            ({"staging_size": "0"}, "staging_size"),
            ({"master_metrics_port": "70000"}, "'70000'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, settings: dict[str, str], problem: str) -> None:
        address = {"master_server_address": "10.0.0.1:50051"} if settings else {}
        with pytest.raises(InvalidRequest, match=problem):
            parse_settings(address | settings)


async def test_a_slow_store_costs_no_time_at_the_end(client: FakeMooncake) -> None:
    store = MooncakeStore(MooncakeConfig("nowhere:1", close_s=0.05), lambda _: client)
    await store.start()
    thaw = threading.Event()
    client.before["exist"] = lambda: thaw.wait(20)
    await store.lookup([key_of(1)], 0.01)
    started_s = time.monotonic()
    await store.close()
    assert time.monotonic() - started_s < 15
    thaw.set()
