"""Random work on L3 against a dict: a read gives exactly the bytes that were put, or is not a hit."""

from __future__ import annotations

import asyncio
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from common.base.failpoints import Failpoints
from common.cache.faulty import LOOKUP, PUT, READ, FaultyBackend
from common.cache.file_store import FileStore, FileStoreConfig
from common.cache.l3 import HEADER_BYTES, BlockKey, PutState, State
from common.cache.seal import SealConfig, SealedL3
from common.transport.tag import Tagger

BLOCK_BYTES = 300
CAPACITY_BLOCKS = 12
SPACES = (b"one", b"two")
KEYS = [BlockKey(space, bytes([number]) * 32, part) for space in SPACES for number in range(6) for part in range(2)]

keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)
operations = st.one_of(
    st.tuples(st.just("put"), keys),
    st.tuples(st.just("read"), keys),
    st.tuples(st.just("remove"), st.sampled_from(SPACES)),
    st.tuples(st.just("restart"), st.just(b"")),
)
faults = st.sampled_from(["", "30%fail", "30%flip", "30%flip(recompute)", "30%truncate", "20%flip;20%truncate;20%fail"])


def payload_of(key: BlockKey) -> bytes:
    """What belongs to a key."""
    return (repr(key).encode() * BLOCK_BYTES)[:BLOCK_BYTES]


class World:
    """The store and the model: which keys may be hits at all."""

    def __init__(self, folder: str, failpoints: Failpoints) -> None:
        self.folder = folder
        self.failpoints = failpoints
        self.maybe_there: set[BlockKey] = set()
        self.l3 = self.open()

    def open(self) -> SealedL3:
        config = FileStoreConfig(self.folder, CAPACITY_BLOCKS * (HEADER_BYTES + BLOCK_BYTES), num_readers=2)
        backend = FaultyBackend(FileStore(config), self.failpoints)
        seal = SealConfig(remember_s=0, breaker_limit=1000)
        return SealedL3(backend, Tagger(b"k" * 32), seal, lambda _damage: None)

    async def run(self, name: str, argument: object) -> None:
        if name == "put":
            await self.put(argument)  # type: ignore[arg-type]
        elif name == "read":
            await self.read(argument)  # type: ignore[arg-type]
        elif name == "remove":
            await self.l3.remove_namespace(argument)  # type: ignore[arg-type]
            self.maybe_there = {key for key in self.maybe_there if key.namespace != argument}
        else:
            await self.l3.close()
            self.l3 = self.open()

    async def put(self, chosen: list[BlockKey]) -> None:
        states = await self.l3.put([(key, memoryview(payload_of(key))) for key in chosen], 20)
        assert len(states) == len(chosen)
        self.maybe_there |= {key for key, s in zip(chosen, states, strict=True) if s is not PutState.NO_SPACE}

    async def read(self, chosen: list[BlockKey]) -> None:
        lease = await self.l3.lookup(chosen, 20)
        targets = [memoryview(bytearray(BLOCK_BYTES)) for _ in chosen]
        states = await lease.read(list(enumerate(targets)), 20)
        await lease.close()
        for key, target, state in zip(chosen, targets, states, strict=True):
            if state is State.HIT:
                assert key in self.maybe_there, "a hit on what was never put"
                assert bytes(target) == payload_of(key), "a wrong byte"


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=25), faults, faults, st.sampled_from(["", "20%fail"]))
def test_reads_are_right_or_no_hits(work: list[tuple[str, object]], reads: str, puts: str, lookups: str) -> None:
    asyncio.run(_check(work, {READ: reads, PUT: puts, LOOKUP: lookups}))


async def _check(work: list[tuple[str, object]], rules: dict[str, str]) -> None:
    failpoints = Failpoints()
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder, failpoints)
        for name, rule in rules.items():
            if rule:
                failpoints.arm(name, rule)
        for name, argument in work:
            await world.run(name, argument)
        assert (await world.l3.stats()).bytes <= CAPACITY_BLOCKS * (HEADER_BYTES + BLOCK_BYTES)
        await world.l3.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(operations, max_size=25))
def test_without_faults_what_was_just_put_is_there(work: list[tuple[str, object]]) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(folder, Failpoints())
            for name, argument in work:
                await world.run(name, argument)
            key = KEYS[0]
            assert (await world.l3.put([(key, memoryview(payload_of(key)))], 20))[0] is not PutState.ERROR
            lease = await world.l3.lookup([key], 20)
            assert list(lease.states) == [State.HIT]
            await lease.close()
            await world.l3.close()

    asyncio.run(check())
