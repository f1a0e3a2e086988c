"""Seals and inspects batches of blocks, in threads: hashing costs more than reading from memory. What is little is done
at once, for a thread costs more than that.

It knows the tag key, and so the names under which a store keeps what is sealed with it. It knows no store.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from common.cache.header import Damage, inspect, make_header, promised_checksum
from common.cache.l3 import AlikeKeys, BlockKey, SealedBlock, Slot, State
from common.cache.threads import IoThreads, Job
from common.transport.tag import Tagger

_AT_ONCE_BYTES, _AT_ONCE_KEYED_BYTES = 1024 * 1024, 128 * 1024
"""Hashed, or hashed and tagged, in about the time that a thread would cost."""
_MAX_SPACES = 64


class Sealer:
    """Makes headers before a put and judges what a read brought; used on one loop."""

    def __init__(self, tagger: Tagger, num_threads: int) -> None:
        self._tagger = tagger
        self._threads = IoThreads("l3-seal", num_threads)
        self._spaces: dict[bytes, bytes] = {}
        self._at_once_bytes = _AT_ONCE_KEYED_BYTES if tagger.keyed else _AT_ONCE_BYTES

    def space(self, namespace: bytes) -> bytes:
        """Namespace under which a store keeps blocks of `namespace` sealed with this key."""
        space = self._spaces.get(namespace)
        if space is None:
            if len(self._spaces) >= _MAX_SPACES:
                self._spaces.clear()
            fields = self._tagger.key_id + struct.pack("<I", len(namespace)) + namespace
            space = self._spaces[namespace] = hashlib.sha256(b"pando-l3-space-1" + fields).digest()
        return space

    def stored(self, key: BlockKey) -> BlockKey:
        """Key under which a store keeps a block sealed with this key."""
        return BlockKey(self.space(key.namespace), key.prefix_hash, key.part)

    def stored_all(self, keys: Sequence[BlockKey]) -> Sequence[BlockKey]:
        """As `stored`, for each."""
        alike = AlikeKeys.of(keys)
        if alike is None:
            return [self.stored(key) for key in keys]
        return AlikeKeys(self.space(alike.namespace), alike.hashes, alike.part)

    async def seal(self, blocks: Sequence[tuple[BlockKey, memoryview]], deadline_s: float) -> list[SealedBlock] | None:
        """Blocks as a store takes them, under their stored keys; None when time is up."""
        headers = [b""] * len(blocks)

        def make(_: Job, number: int) -> None:  # what comes late, nobody looks at
            headers[number] = make_header(*blocks[number], self._tagger)

        if sum([payload.nbytes for _, payload in blocks]) <= self._at_once_bytes:
            headers = [make_header(key, payload, self._tagger) for key, payload in blocks]
        elif not await self._threads.for_each(range(len(blocks)), make, deadline_s):
            return None
        return [
            SealedBlock(self.stored(key), header, payload.cast("B"), promised_checksum(header))
            for (key, payload), header in zip(blocks, headers, strict=True)
        ]

    async def inspect(
        self, keys: Sequence[BlockKey], slots: Sequence[Slot], states: list[State], deadline_s: float
    ) -> dict[int, Damage]:
        """Compare what landed with what it must be.

        Args:
            keys: one per slot, as the worker knows them.
            slots: where it landed.
            states: a backend's answers, corrected in place: a HIT that does not pass becomes CORRUPT, and one that
                nobody looked at in time ERROR.
            deadline_s: seconds from now.

        Returns:
            What is wrong, by number of the slot.
        """
        damage = {number: Damage.LENGTH for number, state in enumerate(states) if state is State.CORRUPT}
        landed = [number for number, state in enumerate(states) if state is State.HIT]

        def judge(number: int, found: Damage | None) -> None:
            states[number] = State.HIT if found is None else State.CORRUPT
            if found is not None:
                damage[number] = found

        def look(number: int) -> Damage | None:
            slot = slots[number]
            return inspect(slot.header, keys[number], slot.payload, self._tagger, slot.seen)

        def look_in_thread(job: Job, number: int) -> None:
            found = look(number)
            job.commit(lambda: judge(number, found))

        if self._num_unread([slots[number] for number in landed]) <= self._at_once_bytes:
            for number in landed:
                judge(number, look(number))
            return damage
        for number in landed:
            states[number] = State.ERROR
        await self._threads.for_each(landed, look_in_thread, deadline_s)
        return damage

    def _num_unread(self, slots: Sequence[Slot]) -> int:
        """Bytes that an inspection has to read."""
        return sum([slot.payload.nbytes for slot in slots if self._tagger.keyed or slot.seen is None])

    def close(self) -> None:
        """End the threads; later batches have no time."""
        self._threads.close()
