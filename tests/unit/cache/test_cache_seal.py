"""The seal's memory of failures, its keys, and how it meets backends that break their promises."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from common.base.errors import Unavailable
from common.base.failpoints import Failpoints
from common.cache.faulty import LOOKUP, PUT, READ, FaultyBackend
from common.cache.l3 import BlockKey, PutState, SealedBlock, Slot, State
from common.cache.seal import SealConfig, SealedL3
from common.transport.checksum import checksum
from common.transport.tag import Tagger
from tests.support.l3_contract import (
    BLOCK_BYTES,
    CAPACITY_BYTES,
    OTHER_SPACE,
    SPACE,
    SealedStore,
    block_of,
    fetch,
    key_of,
    targets,
)
from tests.support.l3_memory import MemoryLease, MemoryStore, Shelf

KEYS = [key_of(number) for number in range(3)]


class FakeClock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class CountingStore(MemoryStore):
    """Notes what it is asked."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf)
        self.asked: list[Sequence[BlockKey]] = []
        self.num_puts = 0

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        self.asked.append(keys)
        return await super().lookup(keys, deadline_s)

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        self.num_puts += 1
        return await super().put(blocks, deadline_s)


class Rig:
    """A sealed store with failpoints below, a count below those, and a fake clock above."""

    def __init__(self, config: SealConfig) -> None:
        self.clock = FakeClock()
        self.failpoints = Failpoints()
        self.inner = CountingStore(Shelf(CAPACITY_BYTES))
        self.store = SealedStore(self.inner)
        backend = FaultyBackend(self.inner, self.failpoints)
        self.store.l3 = SealedL3(backend, Tagger(b"k" * 32), config, self.store.damage.append, self.clock)

    @property
    def num_asked(self) -> list[int]:
        return [len(keys) for keys in self.inner.asked]


@pytest.fixture
async def rig() -> Rig:
    rig = Rig(SealConfig(remember_s=10.0, breaker_limit=3, back_off_s=1.0))
    await rig.store.put([block_of(key) for key in KEYS])
    return rig


@pytest.mark.parametrize("rule", ["flip", "truncate", "fail"])
async def test_a_failed_key_is_not_asked_again_for_a_while(rig: Rig, rule: str) -> None:
    rig.failpoints.arm(READ, f"1*off;1*{rule}")
    states = await fetch(rig.store, KEYS)
    assert states[0] is states[2] is State.HIT and states[1] in (State.CORRUPT, State.ERROR)
    await rig.store.put([block_of(KEYS[1])])
    rig.store.l3._failed.add(KEYS[1], rig.clock())
    for passed_s, state, asked in ((0.0, State.ERROR, 2), (9.9, State.ERROR, 2), (0.1, State.HIT, 3)):
        rig.clock.now_s += passed_s
        assert await fetch(rig.store, KEYS) == [State.HIT, state, State.HIT]
        assert rig.num_asked[-1] == asked


async def test_all_keys_failed_asks_nothing(rig: Rig) -> None:
    rig.failpoints.arm(READ, "fail")
    assert await fetch(rig.store, KEYS) == [State.ERROR] * 3
    assert rig.store.l3.num_remembered == 3
    assert await fetch(rig.store, KEYS) == [State.ERROR] * 3
    assert rig.num_asked == [3]


async def test_a_fresh_put_makes_a_failed_key_good(rig: Rig) -> None:
    rig.failpoints.arm(READ, "1*flip")
    assert await fetch(rig.store, KEYS[:1]) == [State.CORRUPT]
    assert await rig.store.put([block_of(KEYS[0])]) == [PutState.STORED]
    assert await fetch(rig.store, KEYS[:1]) == [State.HIT]


async def test_a_miss_is_not_remembered(rig: Rig) -> None:
    assert await fetch(rig.store, [key_of(8)]) == [State.MISS]
    await rig.store.put([block_of(key_of(8))])
    assert await fetch(rig.store, [key_of(8)]) == [State.HIT]


async def test_what_its_own_side_closed_is_not_remembered(rig: Rig) -> None:
    lease = await rig.store.lookup(KEYS)
    await lease.close()
    assert await rig.store.read(lease, list(enumerate(targets(3)))) == [State.EXPIRED] * 3
    assert rig.store.l3.num_remembered == 0


async def test_lookups_without_answer_open_the_breaker_and_a_probe_closes_it() -> None:
    rig = Rig(SealConfig(remember_s=0, breaker_limit=3, back_off_s=1.0))
    await rig.store.put([block_of(key) for key in KEYS])
    rig.failpoints.arm(LOOKUP, "4*fail")
    for _ in range(5):
        assert await fetch(rig.store, KEYS) == [State.ERROR] * 3
    assert rig.store.l3.is_backing_off
    assert rig.failpoints.points()[0].hits == 3, "not asked while open"
    rig.clock.now_s += 1.0
    assert await fetch(rig.store, KEYS) == [State.ERROR] * 3
    rig.clock.now_s += 1.9
    assert await fetch(rig.store, KEYS) == [State.ERROR] * 3
    assert rig.failpoints.points()[0].hits == 4, "a failed probe doubles the back-off"
    rig.clock.now_s += 0.1
    assert await fetch(rig.store, KEYS) == [State.HIT] * 3
    assert not rig.store.l3.is_backing_off


async def test_reads_that_time_out_open_it_too_and_misses_close_it() -> None:
    rig = Rig(SealConfig(remember_s=0, breaker_limit=2, back_off_s=1.0))
    await rig.store.put([block_of(key) for key in KEYS])

    class Late(MemoryLease):
        async def read(self, wanted: Sequence[object], deadline_s: float) -> list[State]:
            rig.clock.now_s += deadline_s
            return [State.ERROR] * len(wanted)

    lookup = rig.inner.lookup
    rig.inner.lookup = lambda keys, deadline_s: _late(Late([(b"", b"")] * len(keys)))  # type: ignore[method-assign]
    for _ in range(2):
        assert not rig.store.l3.is_backing_off
        assert await fetch(rig.store, KEYS) == [State.ERROR] * 3
    assert rig.store.l3.is_backing_off
    rig.inner.lookup = lookup  # type: ignore[method-assign]
    assert await fetch(rig.store, [key_of(8)]) == [State.ERROR]
    rig.clock.now_s += 1.0
    assert await fetch(rig.store, [key_of(8)]) == [State.MISS]
    assert not rig.store.l3.is_backing_off
    assert await fetch(rig.store, KEYS) == [State.HIT] * 3


async def _late(lease: MemoryLease) -> MemoryLease:
    return lease


class Hashing(MemoryLease):
    """Says what it has found, as a transport does; `lie` bits are wrong."""

    lie = 0

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        states = await super().read(wanted, deadline_s)
        for slot in wanted:
            slot.seen = checksum(slot.payload) ^ self.lie
        return states


@pytest.mark.parametrize(
    ("lie", "rule", "state"), [(0, "", State.HIT), (1, "", State.CORRUPT), (0, "flip", State.CORRUPT)]
)
async def test_what_a_backend_has_hashed_counts_until_the_bytes_change(lie: int, rule: str, state: State) -> None:
    rig = Rig(SealConfig())
    rig.store.l3 = SealedL3(FaultyBackend(rig.inner, rig.failpoints), Tagger(None), SealConfig(), lambda damage: None)
    await rig.store.put([block_of(KEYS[0])])
    lookup = rig.inner.lookup

    async def hashing(keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        lease = Hashing((await lookup(keys, deadline_s))._objects)
        lease.lie = lie
        return lease

    rig.inner.lookup = hashing  # type: ignore[method-assign]
    if rule:
        rig.failpoints.arm(READ, rule)
    assert await fetch(rig.store, KEYS[:1]) == [state]


async def test_puts_have_a_breaker_of_their_own() -> None:
    rig = Rig(SealConfig(breaker_limit=2, back_off_s=1.0))
    rig.failpoints.arm(PUT, "2*fail")
    for _ in range(4):
        assert await rig.store.put([block_of(KEYS[0])]) == [PutState.ERROR]
    assert rig.failpoints.points()[1].hits == 2
    assert await fetch(rig.store, KEYS) == [State.MISS] * 3, "lookups go on"
    rig.clock.now_s += 1.0
    assert await rig.store.put([block_of(KEYS[0])]) == [PutState.STORED]


async def test_another_tag_key_is_another_world() -> None:
    shelf = Shelf(CAPACITY_BYTES)
    stores = [SealedStore(MemoryStore(shelf), key=key) for key in (b"k" * 32, b"l" * 32, None)]
    for store in stores:
        assert await fetch(store, KEYS[:1]) == [State.MISS]
        assert await store.put([block_of(KEYS[0])]) == [PutState.STORED]
    for store in stores:
        assert await fetch(store, KEYS[:1]) == [State.HIT]
        assert await store.remove_namespace(SPACE) == 1
        assert store.damage == []
    assert not shelf.objects


async def test_the_store_never_sees_a_namespace_twice() -> None:
    shelf = Shelf(CAPACITY_BYTES)
    store = SealedStore(MemoryStore(shelf))
    await store.put([block_of(key_of(1)), block_of(key_of(1, OTHER_SPACE))])
    spaces = {key.namespace for key in shelf.objects}
    assert len(spaces) == 2 and spaces.isdisjoint({SPACE, OTHER_SPACE})


async def test_an_object_moved_to_another_name_is_corrupt() -> None:
    shelf = Shelf(CAPACITY_BYTES)
    store = SealedStore(MemoryStore(shelf))
    await store.put([block_of(key_of(1)), block_of(key_of(2))])
    one, other = shelf.objects
    shelf.objects[one], shelf.objects[other] = shelf.objects[other], shelf.objects[one]
    assert await fetch(store, [key_of(1), key_of(2)]) == [State.CORRUPT] * 2
    assert store.damage == ["key", "key"]


class Raises(MemoryStore):
    """Raises what backends are not supposed to let out."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Shelf(CAPACITY_BYTES))
        self.error = error

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        raise self.error

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        raise self.error


@pytest.mark.parametrize("error", [OSError("disk"), Unavailable("gone"), TimeoutError()])
async def test_faults_that_backends_raise_are_answers(error: Exception) -> None:
    store = SealedStore(Raises(error))
    assert await fetch(store, KEYS) == [State.ERROR] * 3
    assert await store.put([block_of(KEYS[0])]) == [PutState.ERROR]


class Hangs(MemoryStore):
    """Never answers and knows no deadline; notes that it was cancelled."""

    def __init__(self) -> None:
        super().__init__(Shelf(CAPACITY_BYTES))
        self.num_cancelled = 0

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> MemoryLease:
        return await self._hang()

    async def put(self, blocks: Sequence[SealedBlock], deadline_s: float) -> list[PutState]:
        return await self._hang()

    async def _hang(self) -> object:
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise


async def test_backends_that_forget_their_deadline_are_cancelled() -> None:
    backend = Hangs()
    store = SealedStore(backend)
    assert list((await store.lookup(KEYS, 0.01)).states) == [State.ERROR] * 3
    assert await store.put([block_of(KEYS[0])], 0.05) == [PutState.ERROR]
    assert backend.num_cancelled == 2


async def test_takes_typed_buffers() -> None:
    """Blocks of a pool may be views of other than bytes."""
    store = SealedStore(MemoryStore(Shelf(CAPACITY_BYTES)))
    key, payload = block_of(KEYS[0])
    words = memoryview(bytearray(payload)).cast("I")
    assert await store.l3.put([(key, words)], 20) == [PutState.STORED]
    lease = await store.lookup([key])
    target = memoryview(bytearray(BLOCK_BYTES)).cast("I")
    assert await store.read(lease, [(0, target)]) == [State.HIT]
    assert bytes(target) == payload
