"""A history checker for stores whose objects are written once: a read gives exactly the bytes, or it does not hit.

Every key has one payload, for good, so no order of events has to be known: whatever is read can be judged by itself.
`History` writes, reads and judges; who disturbs the store meanwhile is the test's affair.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

from common.cache.l3 import Backend, BlockKey, PutState, State
from tests.support.l3_contract import POISON, BareStore, Store, StoreLease, block_of, key_of, payload_of, targets

Corrupter = Callable[[BlockKey, bytes], bytes]
_PATH = 8


class History:
    """Clients of one store.

    Attributes:
        seen: answers so far, by "read ..." and "put ...".
    """

    def __init__(self, store: Store, num_paths: int, num_bytes: int = 5000) -> None:
        """`num_paths` paths of eight blocks each, all of one size."""
        self.seen = Counter[str]()
        self._store = store
        self._num_paths = num_paths
        self._num_bytes = num_bytes

    def path(self, number: int) -> list[BlockKey]:
        """The keys of a path."""
        return [key_of(number * _PATH + place) for place in range(_PATH)]

    async def write(self, number: int, deadline_s: float = 2.0) -> list[PutState]:
        """Put a path."""
        states = await self._store.put([block_of(key, self._num_bytes) for key in self.path(number)], deadline_s)
        self.seen.update(f"put {state}" for state in states)
        return states

    async def read(self, number: int, linger_s: float = 0.0) -> list[State]:
        """Look a path up, wait, read it, and fail on any byte that is not the key's."""
        keys = self.path(number)
        lease = await self._store.lookup(keys, 3.0)
        try:
            await asyncio.sleep(linger_s)
            return await self._judge(keys, lease)
        finally:
            await lease.close()

    async def work(self, seed: int, stopping: asyncio.Event) -> None:
        """One client that reads and writes at random until told to stop; some reads linger beyond their lease."""
        draw = random.Random(seed)
        while not stopping.is_set():
            number = int(self._num_paths * draw.random() ** 2)  # some paths more often than others
            if draw.random() < 0.4:
                await self.write(number)
            else:
                await self.read(number, draw.choice([0.0, 0.0, 0.0, 0.0, 0.0, 0.02, 0.5, 2.5, 6.0]) * draw.random())
            await asyncio.sleep(0.01)

    async def _judge(self, keys: Sequence[BlockKey], lease: StoreLease) -> list[State]:
        landed = targets(len(keys), self._num_bytes)
        states = await self._store.read(lease, list(enumerate(landed)), 3.0)
        for key, target, state in zip(keys, landed, states, strict=True):
            self.seen[f"read {state}"] += 1
            if state is State.HIT:
                assert bytes(target) == payload_of(key, self._num_bytes), f"a hit with other bytes: {key}"
            elif state is State.MISS:
                assert set(target) == {POISON}, f"a miss that was written to: {key}"
        return states


async def write_wrongly(backend: Backend, history: History, number: int, corrupt: Corrupter) -> None:
    """What a broken writer would do, for negative controls: put a path whose bytes are not those of its keys."""
    blocks = [block_of(key) for key in history.path(number)]
    await BareStore(backend).put([(key, corrupt(key, payload)) for key, payload in blocks])
