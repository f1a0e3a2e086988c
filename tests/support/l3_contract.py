"""What every L3 backend promises: one suite, run against the bare backend and through the seal.

A backend's test file subclasses `L3Contract` and gives a fixture `place`: where its stores open. Tests of what only
that backend can suffer stand beside it. test_cache_l3_contract.py shows that broken backends fail here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from common.cache.l3 import HEADER_BYTES, Backend, BlockKey, L3Stats, PutState, SealedBlock, Slot, State
from common.cache.seal import SealConfig, SealedL3
from common.transport.checksum import checksum
from common.transport.tag import Tagger

SPACE, OTHER_SPACE = b"n" * 32, b"m" * 32
BLOCK_BYTES = 5000
CAPACITY_BLOCKS = 40
CAPACITY_BYTES = CAPACITY_BLOCKS * (HEADER_BYTES + BLOCK_BYTES)
PATIENT_S = 20.0
MAX_LATE_S = 3.0
POISON = 0xA5

Opener = Callable[[], Awaitable[Backend]]


@dataclass(slots=True)
class Place:
    """Where a backend's stores open.

    Attributes:
        open: makes and starts one more store over the same storage, with a cap of CAPACITY_BYTES.
        is_durable: whether objects outlive all stores.
    """

    open: Opener
    is_durable: bool = True


class StoreLease(Protocol):
    """Either kind of lease."""

    states: Sequence[State]

    async def close(self) -> None: ...


class Store(Protocol):
    """Backend and sealed L3 behind one face."""

    async def put(self, blocks: Sequence[tuple[BlockKey, bytes]], deadline_s: float = PATIENT_S) -> list[PutState]: ...
    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float = PATIENT_S) -> StoreLease: ...
    async def read(
        self, lease: StoreLease, wanted: Sequence[tuple[int, memoryview]], deadline_s: float = PATIENT_S
    ) -> list[State]: ...
    async def remove_namespace(self, namespace: bytes) -> int: ...
    async def stats(self) -> L3Stats: ...
    async def close(self) -> None: ...


def header_of(payload: bytes) -> bytes:
    """A header that a bare backend shall bring back unseen."""
    return hashlib.sha512(payload).digest()


class BareStore:
    """A backend without its seal; headers are checked here."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def put(self, blocks: Sequence[tuple[BlockKey, bytes]], deadline_s: float = PATIENT_S) -> list[PutState]:
        return await self.backend.put([SealedBlock(k, header_of(p), memoryview(p)) for k, p in blocks], deadline_s)

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float = PATIENT_S) -> StoreLease:
        return await self.backend.lookup(keys, deadline_s)

    async def read(
        self, lease: StoreLease, wanted: Sequence[tuple[int, memoryview]], deadline_s: float = PATIENT_S
    ) -> list[State]:
        slots = [Slot(index, memoryview(bytearray(HEADER_BYTES)), target) for index, target in wanted]
        states = await lease.read(slots, deadline_s)
        for slot, state in zip(slots, states, strict=True):
            assert state is not State.HIT or bytes(slot.header) == header_of(bytes(slot.payload)), "a header is wrong"
            assert state is not State.HIT or slot.seen in (None, checksum(slot.payload)), "a checksum is wrong"
        return states

    async def remove_namespace(self, namespace: bytes) -> int:
        return await self.backend.remove_namespace(namespace)

    async def stats(self) -> L3Stats:
        return await self.backend.stats()

    async def close(self) -> None:
        await self.backend.close()


class SealedStore:
    """A backend under its seal. Damage is collected in `damage`; no failure is remembered unless `config` says so."""

    def __init__(self, backend: Backend, config: SealConfig | None = None, key: bytes | None = b"k" * 32) -> None:
        self.damage: list[str] = []
        self.l3 = SealedL3(backend, Tagger(key), config or SealConfig(remember_s=0), self.damage.append)

    async def put(self, blocks: Sequence[tuple[BlockKey, bytes]], deadline_s: float = PATIENT_S) -> list[PutState]:
        return await self.l3.put([(key, memoryview(payload)) for key, payload in blocks], deadline_s)

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float = PATIENT_S) -> StoreLease:
        return await self.l3.lookup(keys, deadline_s)

    async def read(
        self, lease: StoreLease, wanted: Sequence[tuple[int, memoryview]], deadline_s: float = PATIENT_S
    ) -> list[State]:
        return await lease.read(wanted, deadline_s)

    async def remove_namespace(self, namespace: bytes) -> int:
        return await self.l3.remove_namespace(namespace)

    async def stats(self) -> L3Stats:
        return await self.l3.stats()

    async def close(self) -> None:
        await self.l3.close()


def key_of(number: int, namespace: bytes = SPACE, part: int = 0) -> BlockKey:
    """A key; another number is another prefix hash."""
    return BlockKey(namespace, hashlib.sha256(number.to_bytes(4, "little")).digest(), part)


def payload_of(key: BlockKey, num_bytes: int = BLOCK_BYTES) -> bytes:
    """The bytes that belong to a key, as equal keys mean equal bytes."""
    seed = b"%d|" % key.part + key.namespace + b"|" + key.prefix_hash
    return random.Random(seed).randbytes(num_bytes)


def block_of(key: BlockKey, num_bytes: int = BLOCK_BYTES) -> tuple[BlockKey, bytes]:
    """A key with its bytes."""
    return key, payload_of(key, num_bytes)


def targets(count: int, num_bytes: int = BLOCK_BYTES) -> list[memoryview]:
    """Poisoned targets."""
    return [memoryview(bytearray([POISON]) * num_bytes) for _ in range(count)]


async def fetch(store: Store, keys: Sequence[BlockKey], num_bytes: int = BLOCK_BYTES) -> list[State]:
    """Look up and read all keys; what says HIT is compared with the key's bytes, what says MISS must be untouched."""
    lease = await store.lookup(keys)
    try:
        landed = targets(len(keys), num_bytes)
        states = await store.read(lease, list(enumerate(landed)))
    finally:
        await lease.close()
    for key, target, state in zip(keys, landed, states, strict=True):
        assert state is not State.HIT or bytes(target) == payload_of(key, num_bytes), f"{key} has other bytes"
        assert state is not State.MISS or set(target) == {POISON}, f"{key} is a miss but was written"
    return states


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does that nobody can await; the test's timeout is the bound."""
    while not condition():  # noqa: ASYNC110 - a thread has no event for the loop
        await asyncio.sleep(0.001)


@dataclass(slots=True)
class Stores:
    """Opens stores over one place, bare or sealed, and closes them all."""

    place: Place
    sealed: bool
    opened: list[Store] = field(default_factory=list)

    async def open(self) -> Store:
        """One more store."""
        backend = await self.place.open()
        store: Store = SealedStore(backend) if self.sealed else BareStore(backend)
        self.opened.append(store)
        return store


HIT, MISS, EXPIRED, CORRUPT, ERROR = State.HIT, State.MISS, State.EXPIRED, State.CORRUPT, State.ERROR
STORED, PRESENT, NO_SPACE = PutState.STORED, PutState.PRESENT, PutState.NO_SPACE


class L3Contract:
    """Subclass it and give `place`."""

    @pytest.fixture(params=["bare", "sealed"])
    async def stores(self, request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Stores]:
        stores = Stores(place, request.param == "sealed")
        yield stores
        for store in stores.opened:
            await store.close()

    @pytest.fixture
    async def store(self, stores: Stores) -> Store:
        return await stores.open()

    @pytest.mark.parametrize("num_bytes", [1, 64, 4096, BLOCK_BYTES, 150_001])
    async def test_gives_back_what_was_put(self, store: Store, num_bytes: int) -> None:
        keys = [key_of(number) for number in range(1)]
        assert await store.put([block_of(key, num_bytes) for key in keys]) == [STORED]
        assert await fetch(store, keys, num_bytes) == [HIT]

    async def test_puts_twice_what_is_there_once(self, store: Store) -> None:
        blocks = [block_of(key_of(number)) for number in range(3)]
        assert await store.put(blocks[:2]) == [STORED, STORED]
        assert await store.put(blocks) == [PRESENT, PRESENT, STORED]
        assert (await store.stats()).objects == 3

    async def test_answers_in_the_order_of_the_call(self, store: Store) -> None:
        keys = [key_of(number) for number in range(20)]
        await store.put([block_of(key) for key in keys[::2]])
        order = random.Random(1).sample(range(20), 20)
        states = await fetch(store, [keys[number] for number in order])
        assert states == [MISS if number % 2 else HIT for number in order]

    async def test_may_be_asked_for_a_name_twice(self, store: Store) -> None:
        await store.put([block_of(key_of(1))])
        assert await fetch(store, [key_of(1), key_of(2), key_of(1), key_of(2)]) == [HIT, MISS, HIT, MISS]

    async def test_reads_any_part_of_a_lease_in_any_order_and_again(self, store: Store) -> None:
        keys = [key_of(number) for number in range(6)]
        await store.put([block_of(key) for key in keys])
        lease = await store.lookup(keys)
        for wanted in ([5, 0], [3], [0, 3, 5, 1]):
            landed = targets(len(wanted))
            assert await store.read(lease, list(zip(wanted, landed, strict=True))) == [HIT] * len(wanted)
            assert [bytes(target) for target in landed] == [payload_of(keys[index]) for index in wanted]
        await lease.close()

    async def test_nothing_asked_is_nothing_answered(self, store: Store) -> None:
        assert await store.put([]) == []
        assert await fetch(store, []) == []

    async def test_different_keys_never_meet(self, store: Store) -> None:
        one = BlockKey(b"ab", b"cdefgh", 0)
        others = [
            BlockKey(b"abc", b"defgh", 0),
            BlockKey(b"ab", b"cdefgh", 1),
            BlockKey(b"ab", b"cdefgh\0\0\0\0", 0),
            BlockKey(b"ab", b"cdefg", 0),
            BlockKey(b"ba", b"cdefgh", 0),
            BlockKey(b"ab", b"cdefgh", 1 << 24),
        ]
        await store.put([block_of(one)])
        assert await fetch(store, [one, *others]) == [HIT] + [MISS] * len(others)
        assert await store.put([block_of(key) for key in others]) == [STORED] * len(others)
        assert await fetch(store, [one, *others]) == [HIT] * 7

    async def test_removes_one_namespace(self, store: Store) -> None:
        ours, theirs = [key_of(1), key_of(2, part=3)], [key_of(1, OTHER_SPACE)]
        await store.put([block_of(key) for key in ours + theirs])
        assert await store.remove_namespace(SPACE) == 2
        assert await fetch(store, ours + theirs) == [MISS, MISS, HIT]
        assert await store.remove_namespace(SPACE) == 0
        assert await store.put([block_of(ours[0])]) == [STORED]
        assert await fetch(store, ours) == [HIT, MISS]

    async def test_a_lease_outlives_removal(self, store: Store) -> None:
        await store.put([block_of(key_of(1))])
        lease = await store.lookup([key_of(1)])
        assert await store.remove_namespace(SPACE) == 1
        (landed,) = targets(1)
        assert await store.read(lease, [(0, landed)]) == [HIT]
        assert bytes(landed) == payload_of(key_of(1))
        await lease.close()

    async def test_keeps_its_cap(self, store: Store) -> None:
        keys = [key_of(number) for number in range(3 * CAPACITY_BLOCKS)]
        await store.put([block_of(keys[0])])
        lease = await store.lookup(keys[:1])
        for first in range(0, len(keys), 8):
            states = await store.put([block_of(key) for key in keys[first : first + 8]])
            assert set(states) <= {STORED, PRESENT}
            stats = await store.stats()
            assert stats.bytes <= stats.capacity_bytes == CAPACITY_BYTES
        states = await fetch(store, keys)
        assert states[-1] is HIT and CAPACITY_BLOCKS // 2 <= states.count(HIT) <= CAPACITY_BLOCKS
        assert set(states) == {HIT, MISS}
        assert await store.read(lease, [(0, targets(1)[0])]) == [HIT], "evicted under a lease"
        await lease.close()

    async def test_refuses_what_is_larger_than_the_cap(self, store: Store) -> None:
        await store.put([block_of(key_of(1))])
        assert await store.put([block_of(key_of(2), CAPACITY_BYTES)]) == [NO_SPACE]
        assert await fetch(store, [key_of(1)]) == [HIT], "others were evicted in vain"

    async def test_several_workers_at_once(self, stores: Stores) -> None:
        workers = [await stores.open() for _ in range(3)]
        keys = [key_of(number) for number in range(24)]

        async def work(store: Store, seed: int) -> int:
            rng, hits = random.Random(seed), 0
            for _ in range(12):
                some = rng.sample(keys, 5)
                if rng.random() < 0.5:
                    assert set(await store.put([block_of(key) for key in some])) <= {STORED, PRESENT}
                else:
                    hits += (await fetch(store, some)).count(HIT)
            return hits

        hits = await asyncio.gather(*(work(store, seed) for seed, store in enumerate(workers * 3)))
        assert sum(hits) > 0
        await workers[0].put([block_of(key) for key in keys])
        for store in workers:
            assert await fetch(store, keys) == [HIT] * len(keys)

    async def test_a_restart_keeps_objects(self, stores: Stores, place: Place) -> None:
        keys = [key_of(number) for number in range(5)]
        first = await stores.open()
        await first.put([block_of(key) for key in keys])
        await first.close()
        assert await fetch(await stores.open(), keys) == [HIT if place.is_durable else MISS] * 5

    @pytest.mark.parametrize("num_bytes", [1, BLOCK_BYTES - 1, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
    async def test_a_target_of_another_length_is_no_hit(self, store: Store, num_bytes: int) -> None:
        await store.put([block_of(key_of(1)), block_of(key_of(2))])
        lease = await store.lookup([key_of(1), key_of(2)])
        wrong, right = targets(1, num_bytes) + targets(1)
        assert await store.read(lease, [(0, wrong), (1, right)]) == [CORRUPT, HIT]
        await lease.close()

    async def test_an_object_of_another_length_is_replaced(self, store: Store) -> None:
        await store.put([block_of(key_of(1), 77)])
        assert await store.put([block_of(key_of(1))]) == [STORED]
        assert await fetch(store, [key_of(1)]) == [HIT]
        assert (await store.stats()).objects == 1

    async def test_no_time_is_no_hang_and_no_lie(self, store: Store) -> None:
        keys = [key_of(number) for number in range(8)]
        started_s = time.monotonic()
        assert set(await store.put([block_of(key) for key in keys], 0.0)) <= {STORED, PutState.ERROR}
        lease = await store.lookup(keys, 0.0)
        assert set(lease.states) <= {HIT, MISS, ERROR}
        landed = targets(8)
        states = await store.read(lease, list(enumerate(landed)), 0.0)
        await lease.close()
        assert time.monotonic() - started_s < MAX_LATE_S
        for key, target, state in zip(keys, landed, states, strict=True):
            assert state is not HIT or bytes(target) == payload_of(key)

    async def test_closing_during_a_read_ends_it_and_nothing_is_written_after(self, store: Store) -> None:
        keys = [key_of(number) for number in range(30)]
        await store.put([block_of(key) for key in keys])
        for _ in range(5):
            lease = await store.lookup(keys)
            landed = targets(30)
            reading = asyncio.create_task(store.read(lease, list(enumerate(landed))))
            await asyncio.sleep(0)
            await lease.close()
            states = await reading
            after = [bytes(target) for target in landed]
            assert set(states) <= {HIT, EXPIRED}
            for key, content, state in zip(keys, after, states, strict=True):
                assert state is not HIT or content == payload_of(key)
            assert await fetch(store, keys) == [HIT] * 30
            assert [bytes(target) for target in landed] == after

    async def test_a_cancelled_read_writes_nothing_after(self, store: Store) -> None:
        keys = [key_of(number) for number in range(30)]
        await store.put([block_of(key) for key in keys])
        lease = await store.lookup(keys)
        landed = targets(30)
        reading = asyncio.create_task(store.read(lease, list(enumerate(landed))))
        await asyncio.sleep(0)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # it may have ended already
            await reading
        after = [bytes(target) for target in landed]
        assert await fetch(store, keys) == [HIT] * 30
        assert [bytes(target) for target in landed] == after
        await lease.close()

    async def test_a_closed_lease_has_expired(self, store: Store) -> None:
        await store.put([block_of(key_of(1))])
        lease = await store.lookup([key_of(1), key_of(2)])
        await lease.close()
        await lease.close()
        assert await store.read(lease, list(enumerate(targets(2)))) == [EXPIRED, MISS]

    async def test_a_closed_store_answers_with_errors(self, store: Store) -> None:
        await store.put([block_of(key_of(1))])
        await store.close()
        await store.close()
        lease = await store.lookup([key_of(1)])
        assert list(lease.states) == [ERROR]
        assert await store.read(lease, [(0, targets(1)[0])]) == [ERROR]
        await lease.close()
        assert await store.put([block_of(key_of(2))]) == [PutState.ERROR]

    async def test_discarded_objects_are_gone_and_can_be_put_again(self, place: Place) -> None:
        store = BareStore(await place.open())
        await store.put([block_of(key_of(1)), block_of(key_of(2))])
        await store.backend.discard([key_of(1), key_of(3)])
        while await store.put([block_of(key_of(1))]) == [PRESENT]:  # noqa: ASYNC110 - discarding has no answer
            await asyncio.sleep(0)
        assert await fetch(store, [key_of(1), key_of(2), key_of(3)]) == [HIT, HIT, MISS]
        await store.close()
