"""L3 as workers use it: what a backend gives back is checked before anybody sees it, and failures are remembered.

Every block is stored with a header (header.py): length, key, checksum and, if the workers share a key, a tag. A read
lets the backend fill the target and then inspects what is there; only bytes that pass are a HIT. A block that does not
pass is counted, logged, and discarded in the store, so that the next put heals it.

The namespace that the store sees is a digest of the block's namespace and the tag key's id. So workers with another
key, or none, miss each other's blocks instead of finding them corrupt, and changing the key starts an empty cache.

A key that answered corrupt, expired or with an error is not asked for again for a while; a store that does not answer
is left alone for a back-off (remember.py). Hashing runs in threads of its own, outside the interpreter lock.

Knows nothing of tokens, tiers or which backend it stands on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from common.base.clock import Clock, monotonic
from common.base.errors import PandoError
from common.base.logging import get_logger
from common.cache.header import Damage
from common.cache.l3 import (
    HEADER_BYTES,
    Backend,
    BackendLease,
    BlockKey,
    L3Stats,
    Lease,
    PutState,
    Slot,
    State,
)
from common.cache.remember import Breaker, Remembered
from common.cache.sealer import Sealer
from common.transport.tag import Tagger

_T = TypeVar("_T")
_GRACE_S = 0.05
DISCARD_S = 1.0
_REMEMBERED = frozenset({State.CORRUPT, State.ERROR, State.EXPIRED})


@dataclass(frozen=True, slots=True)
class SealConfig:
    """How a worker treats a store.

    Attributes:
        remember_s: for how long a failed key is not asked for again.
        remember_keys: most failed keys kept.
        breaker_limit: unanswered calls of a kind in a row after which the store is left alone.
        back_off_s: for how long at first; doubles with each failed probe.
        max_back_off_s: where doubling ends.
        num_threads: for checksums and tags.
    """

    remember_s: float = 10.0
    remember_keys: int = 65536
    breaker_limit: int = 3
    back_off_s: float = 1.0
    max_back_off_s: float = 30.0
    num_threads: int = 2


class SealedL3:
    """See `L3`. Used on one loop; owns its backend.

    Args:
        backend: where sealed blocks go; `start` and `close` pass on to it.
        tagger: makes and checks tags.
        config: times and bounds.
        on_damage: called once per block that did not pass.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        backend: Backend,
        tagger: Tagger,
        config: SealConfig,
        on_damage: Callable[[Damage], None],
        clock: Clock = monotonic,
    ) -> None:
        self.name = backend.name
        self._backend = backend
        self._sealer = Sealer(tagger, config.num_threads)
        self._on_damage = on_damage
        self._clock = clock
        self._failed = Remembered(config.remember_s, config.remember_keys)
        limits = (config.breaker_limit, config.back_off_s, config.max_back_off_s)
        self._lookups, self._reads, self._puts = Breaker(*limits), Breaker(*limits), Breaker(*limits)

    @property
    def is_backing_off(self) -> bool:
        """Whether the store is being left alone."""
        return self._lookups.is_open or self._reads.is_open or self._puts.is_open

    @property
    def num_remembered(self) -> int:
        """Keys that are not asked for, since they failed lately."""
        return len(self._failed)

    async def start(self) -> None:
        """See `Backend.start`."""
        await self._backend.start()

    async def lookup(self, keys: Sequence[BlockKey], deadline_s: float) -> Lease:
        """See `L3.lookup`; keys that failed lately, and all keys while the store is left alone, are ERROR at once."""
        now_s = self._clock()
        asked = self._askable(keys, now_s)
        lease = SealedLease(self, keys)
        if not asked or not self._lookups.admit(now_s) or not self._reads.admit(now_s):
            return lease
        wanted = self._sealer.stored_all(keys if len(asked) == len(keys) else [keys[index] for index in asked])
        found = await _within(deadline_s, self._backend.lookup(wanted, deadline_s))
        states = [State.ERROR] * len(asked) if found is None else found.states
        lease.fill(asked, states, found)
        num_hits, answered = states.count(State.HIT), states.count(State.ERROR) < len(states)
        self._report(self._lookups, answered)
        if answered and not num_hits:  # no read will follow, which would close the reads' breaker
            self._reads.succeeded()
        if num_hits + states.count(State.MISS) < len(states):
            for index, state in zip(asked, states, strict=True):
                self.remember(keys[index], state)
        return lease

    async def put(self, blocks: Sequence[tuple[BlockKey, memoryview]], deadline_s: float) -> list[PutState]:
        """See `L3.put`; all ERROR while the store is left alone."""
        ends_s = self._clock() + deadline_s
        if not blocks or not self._puts.admit(self._clock()):
            return [PutState.ERROR] * len(blocks)
        sealed = await self._sealer.seal(blocks, deadline_s)
        if sealed is None:
            return [PutState.ERROR] * len(blocks)
        left_s = ends_s - self._clock()
        states = await _within(left_s, self._backend.put(sealed, left_s))
        if states is None:
            states = [PutState.ERROR] * len(blocks)
        self._report(self._puts, any(state is not PutState.ERROR for state in states))
        for (key, _), state in zip(blocks, states, strict=True):
            if state is PutState.STORED:
                self._failed.forget(key)
        return states

    async def discard(self, keys: Sequence[BlockKey]) -> None:
        """See `L3.discard`."""
        await _within(DISCARD_S, self._backend.discard([self._sealer.stored(key) for key in keys]))

    async def remove_namespace(self, namespace: bytes) -> int:
        """See `L3.remove_namespace`."""
        return await self._backend.remove_namespace(self._sealer.space(namespace))

    async def stats(self) -> L3Stats:
        """See `L3.stats`."""
        return await self._backend.stats()

    async def close(self) -> None:
        """See `L3.close`."""
        self._sealer.close()
        await self._backend.close()

    async def unseal(
        self,
        keys: Sequence[BlockKey],
        slots: Sequence[Slot],
        found: BackendLease,
        deadline_s: float,
    ) -> list[State]:
        """Read slots of a backend's lease and inspect what landed; for `SealedLease`. One key per slot."""
        ends_s = self._clock() + deadline_s
        states = await _within(deadline_s, found.read(slots, deadline_s))
        late = self._clock() >= ends_s
        states = [State.ERROR] * len(slots) if states is None else list(states)
        if any(state is State.HIT for state in states):
            self._reads.succeeded()
        elif late:
            self._reads.failed(self._clock())
        damage = await self._sealer.inspect(keys, slots, states, ends_s - self._clock())
        await self._condemn(keys, damage)
        return states

    def remember(self, key: BlockKey, state: State) -> None:
        """Do not ask for a key again soon, if that is what its answer means."""
        if state in _REMEMBERED:
            self._failed.add(key, self._clock())

    def _askable(self, keys: Sequence[BlockKey], now_s: float) -> Sequence[int]:
        """Indices of keys that have not failed lately."""
        if not len(self._failed):
            return range(len(keys))
        return [index for index, key in enumerate(keys) if not self._failed.has(key, now_s)]

    async def _condemn(self, keys: Sequence[BlockKey], damage: dict[int, Damage]) -> None:
        """Count, log and discard damaged blocks."""
        for found in damage.values():
            self._on_damage(found)
            get_logger().warning("a block of L3 is damaged", backend=self.name, how=found.value)
        if damage:
            await self.discard([keys[number] for number in damage])

    def _report(self, breaker: Breaker, answered: bool) -> None:
        if answered:
            breaker.succeeded()
        else:
            breaker.failed(self._clock())


class SealedLease:
    """See `Lease`; stands on a backend's lease, if anything was asked at all."""

    def __init__(self, l3: SealedL3, keys: Sequence[BlockKey]) -> None:
        self._l3 = l3
        self._keys = keys
        self._found: BackendLease | None = None
        self._closed = False
        self._inner: Mapping[int, int] | range = range(0)
        self._states = [State.ERROR] * len(keys)

    @property
    def states(self) -> Sequence[State]:
        """See `Lease.states`."""
        return self._states

    def fill(self, asked: Sequence[int], states: Sequence[State], found: BackendLease | None) -> None:
        """Take over the backend's answers and its lease.

        `asked` are the indices of the keys that it was asked for; a range when those were all.
        """
        self._found = found
        if isinstance(asked, range):
            self._inner, self._states = asked, list(states)
            return
        self._inner = {index: inner for inner, index in enumerate(asked)}
        for index, state in zip(asked, states, strict=True):
            self._states[index] = state

    async def read(self, wanted: Sequence[tuple[int, memoryview]], deadline_s: float) -> list[State]:
        """See `Lease.read`."""
        answers = [self._states[index] for index, _ in wanted]
        todo = [number for number, answer in enumerate(answers) if answer is State.HIT]
        if self._found is None or not todo:
            return answers
        headers = memoryview(bytearray(HEADER_BYTES * len(todo)))
        slots = []
        for place, number in enumerate(todo):
            index, target = wanted[number]
            header = headers[place * HEADER_BYTES : (place + 1) * HEADER_BYTES]
            slots.append(Slot(self._inner[index], header, target.cast("B")))
        keys = [self._keys[wanted[number][0]] for number in todo]
        states = await self._l3.unseal(keys, slots, self._found, deadline_s)
        for number, key, state in zip(todo, keys, states, strict=True):
            answers[number] = state
            if state is not State.HIT and not self._closed:
                self._l3.remember(key, state)
        return answers

    async def close(self) -> None:
        """See `Lease.close`; what a running read then lacks is no fault of the store."""
        self._closed = True
        if self._found is not None:
            await self._found.close()


async def _within(deadline_s: float, call: Awaitable[_T]) -> _T | None:
    """What a backend's call returns; None when it fails, or overruns its deadline and some grace: then it is cancelled.

    A backend that keeps its deadline returns what it has by then, so it comes first.
    """
    try:
        async with asyncio.timeout(max(0.0, deadline_s) + _GRACE_S):
            return await call
    except (TimeoutError, OSError, PandoError) as error:
        get_logger().warning("L3 does not answer", error=str(error) or type(error).__name__)
        return None
