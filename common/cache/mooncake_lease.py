"""What a lookup in a Mooncake Store found, and how it is read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from common.base.logging import get_logger
from common.cache.l3 import HEADER_BYTES, Slot, State
from common.cache.mooncake_client import Connection, codes_of, left_bytes_behind, read_state
from common.cache.mooncake_staging import Staging, chunks
from common.cache.threads import IoThreads, Job


class MooncakeLease:
    """What a lookup found.

    Args:
        names: of the objects, by index of the lookup's keys.
        connection: where they are; None when the store is closed.
        staging: where they land first.
        threads: where reads run.
        slab_bytes: most bytes a thread fetches at once.
    """

    def __init__(
        self,
        names: Sequence[str],
        connection: Connection | None,
        staging: Staging,
        threads: IoThreads,
        slab_bytes: int,
    ) -> None:
        self.states: list[State] = [State.ERROR] * len(names)
        self._names = names
        self._connection = connection
        self._staging = staging
        self._threads = threads
        self._slab_bytes = slab_bytes
        self._running: set[Job] = set()
        self._closed = False

    def fill(self, states: Sequence[State]) -> None:
        """Take the lookup's answer."""
        self.states[:] = states

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        """See `BackendLease.read`."""
        answers = [self.states[slot.index] for slot in wanted]
        todo = [number for number, answer in enumerate(answers) if answer is State.HIT]
        for number in todo:
            answers[number] = State.EXPIRED if self._closed else State.ERROR
        if self._closed or not todo:
            return answers
        shares = chunks([HEADER_BYTES + wanted[number].payload.nbytes for number in todo], self._slab_bytes)

        def fetch(job: Job, share: int) -> None:
            self._fetch(job, wanted, [todo[one] for one in shares[share]], answers)

        await self._threads.for_each(range(len(shares)), fetch, deadline_s, self._running)
        if self._closed:
            for number in todo:
                answers[number] = State.EXPIRED if answers[number] is State.ERROR else answers[number]
        return answers

    async def close(self) -> None:
        """See `Lease.close`; Mooncake's own lease runs out by itself."""
        self._closed = True
        for job in list(self._running):
            job.revoke()

    def _fetch(self, job: Job, wanted: Sequence[Slot], share: Sequence[int], answers: list[State]) -> None:
        """Fetch a share of a read in a thread, into a slab and from there into the slots that are still wanted."""
        names = [self._names[wanted[number].index] for number in share]
        sizes = [HEADER_BYTES + wanted[number].payload.nbytes for number in share]
        assert self._connection is not None, "nothing is found without a connection"
        with self._connection.use() as client:
            if client is None:
                return
            with self._staging.borrow(client, sum(sizes)) as slab:
                if slab is None:
                    get_logger().warning("no memory to read from Mooncake through", bytes=sum(sizes))
                    return
                offsets = list(itertools.accumulate(sizes, initial=0))[:-1]
                addresses = [slab.address + offset for offset in offsets]
                codes = codes_of(len(names), client.batch_get_into, names, addresses, sizes)
                slab.failed = left_bytes_behind(codes)

                def land(number: int, state: State, offset: int) -> None:
                    if state is State.HIT:
                        slab.read(slab.read(offset, wanted[number].header), wanted[number].payload)
                    answers[number] = state

                states = [read_state(code, size) for code, size in zip(codes, sizes, strict=True)]
                for row in zip(share, states, offsets, strict=True):
                    job.commit(functools.partial(land, *row))
