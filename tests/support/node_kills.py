"""Kills a store's node at random points under puts, time and again on one folder, and counts what that cost.

Every object has a name and, by it, its bytes, for good, so that whatever a node brings can be judged. What is promised
(docs/kvstore_ssd.md): an object that a node has listed as on disk is there in its next life; one that was only stored
is there or a miss; neither ever has other bytes. `Ledger` knows who was told what; `Killer` lets a node live and die.

    life:  start ──(sometimes killed here)──> check every name ──> puts, and a listing over and over ──> killed
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from common.cache.l3 import PutState, Slot, State
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.kvstore_rig import open_client
from tests.support.l3_contract import SPACE, BareStore, header_of, key_of, payload_of
from tests.support.nursery import STORES, nursery
from tests.support.store_fleet import SERVICE, StoreCommand
from tests.support.workers import NO_REGISTRY

WRITERS = 2
LONG_S = 60.0
FLAGS = ("--roles", "node", "--segment-size", str(2 << 20), "--page-size", "4096")
"""Memory for a part of the objects only: most are read back from disk."""


@dataclass(slots=True, frozen=True)
class Room:
    """How much is put where.

    Attributes:
        ssd_bytes: cap of the log.
        new_bytes: of new objects in one folder; then old ones are put again.
        most_puts: about how many a writer makes between the first news of the disk and the kill.
    """

    ssd_bytes: int
    new_bytes: int
    most_puts: int

    @property
    def gives_up(self) -> bool:
        """Whether the log has to drop objects for want of space, as it may."""
        return 2 * self.new_bytes > self.ssd_bytes


ROOMY = Room(ssd_bytes=64 << 20, new_bytes=20 << 20, most_puts=6)
TIGHT = Room(ssd_bytes=16 << 20, new_bytes=48 << 20, most_puts=60)


class ForkedStore(StoreCommand):
    """A store process without the time that imports take."""

    def start(self) -> None:
        """Begin a life."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PANDO_")}
        self.popen = nursery(STORES).start(SERVICE, self._command[3:], environment)  # type: ignore[assignment]


@dataclass(slots=True)
class Ledger:
    """What a folder's nodes were given and said.

    Attributes:
        room: what there may be.
        num_names: names that were ever put.
        num_bytes: of their objects.
        stored: names that a put answered STORED or PRESENT.
        on_disk: names that a listing showed on disk.
    """

    room: Room
    num_names: int = 0
    num_bytes: int = 0
    stored: set[int] = field(default_factory=set)
    on_disk: set[int] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """Whether there is to be nothing new."""
        return self.num_bytes > self.room.new_bytes

    def draw(self, chance: random.Random) -> list[int]:
        """Names for a put: new ones, else some that were put before."""
        count = chance.randint(1, 6)
        if self.is_full or (self.num_names > count and chance.random() < 0.2):
            return chance.sample(range(self.num_names), count)
        numbers = list(range(self.num_names, self.num_names + count))
        self.num_names += count
        self.num_bytes += sum(map(size_of, numbers))
        return numbers


@dataclass(slots=True)
class Tally:
    """What came of it; the first three are faults.

    Attributes:
        wrong: objects with other bytes, or misses that were written to.
        lost: objects that had been on disk and were not there.
        failed: names that got no answer from a node that was alive.
        kept: objects found that had been on disk.
        gone: objects that are misses now, as they may be: they were only stored, or there is no room for all.
        cut: puts that were under way when the node was killed.
        kills: lives that were ended.
        unborn: of these, before the node served.
    """

    wrong: int = 0
    lost: int = 0
    failed: int = 0
    kept: int = 0
    gone: int = 0
    cut: int = 0
    kills: int = 0
    unborn: int = 0

    @property
    def faults(self) -> dict[str, int]:
        """Counts that must be 0."""
        return {"wrong": self.wrong, "lost": self.lost, "failed": self.failed}


def size_of(number: int) -> int:
    """Bytes of an object: many small ones, some of a hundred pages or so."""
    return 1 + random.Random(number).choice([60, 900, 5000, 5000, 12_000, 12_000, 30_000, 100_000])


def payload(number: int) -> bytes:
    """What belongs to a name."""
    return payload_of(key_of(number), size_of(number))


class Killer:
    """Lets nodes of one folder live and die.

    Attributes:
        ledger: what they were given.
        tally: what came of it.
    """

    def __init__(self, folder: Path, seed: int, room: Room = ROOMY) -> None:
        self.ledger, self.tally = Ledger(room), Tally()
        self._chance = random.Random(seed)
        self._folder = folder
        self._usual_start_s = 0.1
        self._put_s = 0.01
        self._killed_s = 0.0

    async def run(self, num_kills: int) -> None:
        """That many lives that are killed, and a last one that is not."""
        ssd = ("--ssd-path", str(self._folder), "--ssd-size", str(self.ledger.room.ssd_bytes))
        node = ForkedStore("killed", NO_REGISTRY, *FLAGS, *ssd)
        try:
            while self.tally.kills < num_kills:
                if self.tally.kills and self._chance.random() < 0.2:
                    await self._kill_unborn(node)
                await self._live(node, is_last=False)
                node.start()
            await self._live(node, is_last=True)
            assert await asyncio.to_thread(node.end) == 0
        finally:
            node.kill()

    async def _kill_unborn(self, node: StoreCommand) -> None:
        """End a life while it starts."""
        await asyncio.sleep(self._chance.random() * self._usual_start_s)
        await asyncio.to_thread(node.kill)
        assert node.popen.stderr is not None
        node.popen.stderr.close()
        self.tally.kills += 1
        self.tally.unborn += 1
        node.start()

    async def _live(self, node: StoreCommand, *, is_last: bool) -> None:
        """A life: check what is there, and work until it is killed unless it is the last."""
        began_s = time.monotonic()
        await asyncio.to_thread(node.wait_ready)
        self._usual_start_s = time.monotonic() - began_s
        backend = await open_client(node.address, inline_bytes=self._chance.choice([0, 128 * 1024]))
        store = BareStore(backend)
        try:
            await self.check(store, range(self.ledger.num_names))
            if not is_last:
                await self._work(node, store)
        finally:
            await store.close()

    async def check(self, store: BareStore, numbers: Sequence[int]) -> None:
        """Ask for names and judge what comes."""
        for first in range(0, len(numbers), 32):
            some = numbers[first : first + 32]
            for number, state in zip(some, await self._fetch(store, some), strict=True):
                self._judge(number, state)

    async def _fetch(self, store: BareStore, numbers: Sequence[int]) -> list[State]:
        """What became of each name; bytes that are not its own are counted here."""
        lease = await store.backend.lookup([key_of(number) for number in numbers], LONG_S)
        slots = [
            Slot(place, memoryview(bytearray(len(header_of(b"")))), memoryview(bytearray(size_of(number))))
            for place, number in enumerate(numbers)
        ]
        try:
            states = await lease.read(slots, LONG_S)
        finally:
            await lease.close()
        for number, slot, state in zip(numbers, slots, states, strict=True):
            landed, header = bytes(slot.payload), bytes(slot.header)
            right = payload(number)
            is_right = (landed, header) == (right, header_of(right)) if state is State.HIT else True
            self.tally.wrong += not is_right or (state is State.MISS and any(landed))
        return states

    def _judge(self, number: int, state: State) -> None:
        tally, ledger = self.tally, self.ledger
        there = state is State.HIT
        tally.failed += state not in (State.HIT, State.MISS)
        if number in ledger.on_disk:
            tally.kept += there
            tally.lost += not there and not ledger.room.gives_up
            tally.gone += not there and ledger.room.gives_up
        elif number in ledger.stored and not there:
            tally.gone += 1
            ledger.stored.discard(number)

    async def _work(self, node: StoreCommand, store: BareStore) -> None:
        """Puts and listings, until the node is dead: some puts after something new came to its disk, or before that."""
        self._killed_s = math.inf
        known = len(self.ledger.on_disk)
        wants_more = self._chance.random() < 0.7 and not self.ledger.is_full
        dead = asyncio.Event()
        tasks = [asyncio.create_task(self._put_on(store, dead)) for _ in range(WRITERS)]
        tasks.append(asyncio.create_task(self._list_on(node.address, dead)))
        try:
            async with asyncio.timeout(LONG_S):
                while wants_more and len(self.ledger.on_disk) == known:  # noqa: ASYNC110 - several tasks add to it
                    await asyncio.sleep(0.001)
            delay_s = self._chance.random() * self._chance.randint(1, self.ledger.room.most_puts) * self._put_s
            await asyncio.to_thread(self._kill_after, delay_s, node)
        finally:
            dead.set()
            await asyncio.gather(*tasks)
        self.tally.kills += 1

    def _kill_after(self, delay_s: float, node: StoreCommand) -> None:
        """In a thread, so that the moment does not depend on what the clients do."""
        time.sleep(delay_s)
        self._killed_s = time.monotonic()
        node.kill()

    async def _put_on(self, store: BareStore, dead: asyncio.Event) -> None:
        while not dead.is_set():
            numbers = self.ledger.draw(self._chance)
            began_s = time.monotonic()
            states = await store.put([(key_of(number), payload(number)) for number in numbers], LONG_S)
            done = {number for number, state in zip(numbers, states, strict=True) if is_there(state)}
            self.ledger.stored |= done
            if done:
                self._put_s = time.monotonic() - began_s
            elif PutState.ERROR in states:
                self.tally.cut += began_s < self._killed_s
                await asyncio.sleep(0.001)

    async def _list_on(self, address: str, dead: asyncio.Event) -> None:
        """Note what the node says that it has on disk, over and over."""
        numbers: dict[bytes, int] = {}
        async with grpc.aio.insecure_channel(address) as channel:
            stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
            with suppress(grpc.aio.AioRpcError):
                while not dead.is_set():
                    for number in range(len(numbers), self.ledger.num_names):
                        numbers[key_of(number).prefix_hash] = number
                    self.ledger.on_disk |= {numbers[name] async for name in listed(stub) if name in numbers}


def is_there(state: PutState) -> bool:
    """Whether a put's answer is a promise."""
    return state in (PutState.STORED, PutState.PRESENT)


async def listed(stub: kvstore_pb2_grpc.KvStoreServiceStub) -> AsyncIterator[bytes]:
    """Hashes of what a node has on disk."""
    token = b""
    while True:
        request = kvstore_pb2.ListObjectsRequest(page_token=token, namespace=SPACE)
        page = await stub.ListObjects(request, timeout=LONG_S)
        for one in page.objects:
            if one.on_disk:
                yield one.key.prefix_hash
        token = page.next_page_token
        if not token:
            return
