"""What a lookup in the KV store found, over all nodes that answered, and reading it.

A lease here is one handle a node; each pins that node's objects until it is closed or its time is over. Long-lived ones
are renewed when they are read. Bytes go by the transport from the node's memory straight into the reader's targets;
the transport verifies length, generation and checksum, and writes nothing once a read has ended. A few bytes come with
the answer to the lookup, and are good while the lease needs no renewal.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.base.errors import BlockCorrupt, LeaseLost, PandoError, StaleIncarnation
from common.base.logging import get_logger
from common.cache.kvstore_wire import LEASED, Lookup
from common.cache.l3 import HEADER_BYTES, Slot, State
from common.transport.base import STREAMS, Endpoint, Extent, Read
from common.transport.checksum import checksum

_MIN_SHARE_BYTES = 2 * 1024 * 1024
_STATES = {
    Lookup.HIT: State.HIT,
    Lookup.MISS: State.MISS,
    Lookup.EXPIRED: State.EXPIRED,
    Lookup.ERROR: State.ERROR,
}


@dataclass(slots=True, eq=False)
class Part:
    """What one node leased.

    Attributes:
        address, lease_id: to renew and release.
        endpoints, incarnation, segment: to read.
        extents, headers: packed, one per hit.
        renew_at_s: when half of its life is over.
        ends_s: when it is over, counted from before it was asked for.
        payloads: of all hits, if they came with the answer.
    """

    address: str
    lease_id: int
    endpoints: Sequence[Endpoint]
    incarnation: int
    segment: int
    extents: bytes
    headers: bytes
    renew_at_s: float
    ends_s: float
    payloads: Sequence[memoryview] = ()

    def extent(self, number: int) -> Extent:
        """Of a hit."""
        offset, length, generation, checksum = LEASED.unpack_from(self.extents, number * LEASED.size)
        return Extent(self.incarnation, self.segment, offset, length, generation, checksum)

    def header(self, number: int) -> bytes:
        """Of a hit."""
        return self.headers[number * HEADER_BYTES : (number + 1) * HEADER_BYTES]


class Board:
    """The answers to one lookup, gathered from several nodes: a hit beats an error, an error beats a miss."""

    def __init__(self, num_keys: int) -> None:
        self.states = [State.MISS] * num_keys
        self.parts: list[Part] = []
        self._hits: dict[int, tuple[Part, int]] = {}
        self._all: Part | None = None

    def take(self, indices: Iterable[int], states: bytes, part: Part | None) -> None:
        """Fold in what one node said about some keys; ELSEWHERE changes nothing."""
        if part is not None:
            self.parts.append(part)
        elif Lookup.ERROR not in states:
            return
        if part is not None and not self._hits and states.count(Lookup.HIT) == len(self.states):
            self._all = part  # of one lookup a node is asked for all keys in order, or for some of them
            self.states = [State.HIT] * len(self.states)
            return
        number = 0
        for index, code in zip(indices, states, strict=True):
            if code == Lookup.HIT and part is not None:
                if index not in self._hits:
                    self._hits[index] = (part, number)
                    self.states[index] = State.HIT
                number += 1
            elif code == Lookup.ERROR:
                self.fail((index,))

    def fail(self, indices: Iterable[int]) -> None:
        """Nobody knows about these, unless another node has them."""
        for index in indices:
            if self.states[index] is State.MISS:
                self.states[index] = State.ERROR

    def hit(self, index: int) -> tuple[Part, int]:
        """Where a key that is a HIT is leased."""
        return self._hits[index] if self._all is None else (self._all, index)


class Reader(Protocol):
    """What a lease needs of the client."""

    def now_s(self) -> float:
        """Monotonic seconds."""

    async def read(self, endpoints: Sequence[Endpoint], reads: Sequence[Read], deadline_s: float) -> None:
        """As `Transport.read`."""

    async def renew(self, part: Part, deadline_s: float) -> bool:
        """Let a part live on; whether it does."""

    def release(self, part: Part) -> None:
        """Give a part back, some time soon."""


@dataclass(slots=True)
class _Job:
    """Slots of one part that are read together.

    Attributes:
        part: who leased them.
        numbers, hits: their places in the call, and among the part's hits.
        extents: of these hits.
    """

    part: Part
    numbers: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)


class KvStoreLease:
    """See `BackendLease`.

    Args:
        board: complete.
        reader: of the backend.
        on_closed: called once.
    """

    def __init__(self, board: Board, reader: Reader, on_closed: Callable[[KvStoreLease], None]) -> None:
        self._board = board
        self._reader = reader
        self._on_closed = on_closed
        self._closed = False
        self._running: set[asyncio.Task[None]] = set()

    @property
    def states(self) -> Sequence[State]:
        """See `Lease.states`."""
        return self._board.states

    async def read(self, wanted: Sequence[Slot], deadline_s: float) -> list[State]:
        """See `BackendLease.read`."""
        answers = [self._board.states[slot.index] for slot in wanted]
        now_s = self._reader.now_s()
        in_time = deadline_s > 0 and not self._closed
        jobs = self._jobs(wanted, answers, now_s if in_time else math.inf)
        ends_s = now_s + deadline_s
        if jobs and not self._closed:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    task = group.create_task(self._run(job, wanted, answers, ends_s))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
        if self._closed:
            for number in (number for job in jobs for number in job.numbers):
                answers[number] = State.EXPIRED if answers[number] is State.ERROR else answers[number]
        return answers

    async def close(self) -> None:
        """See `Lease.close`."""
        self.end()

    def end(self) -> None:
        """Close, without waiting: running reads are told to stop, and whoever awaits them waits for that."""
        if self._closed:
            return
        self._closed = True
        for task in self._running:
            task.cancel()
        for part in self._board.parts:
            self._reader.release(part)
        self._on_closed(self)

    def _jobs(self, wanted: Sequence[Slot], answers: list[State], now_s: float) -> list[_Job]:
        """Take what came with the lookup, and split what else can be read into jobs; its answers are ERROR until it
        has landed, or CORRUPT by length."""
        by_part: dict[Part, list[tuple[int, int, Extent]]] = {}
        for number, slot in enumerate(wanted):
            if answers[number] is State.HIT:
                part, hit = self._board.hit(slot.index)
                extent = part.extent(hit)
                if extent.length != slot.payload.nbytes:
                    answers[number] = State.CORRUPT
                elif now_s < part.renew_at_s and part.payloads and len(part.payloads[hit]) == extent.length:
                    answers[number] = _copy(part.payloads[hit], part, hit, slot)
                else:
                    answers[number] = State.ERROR
                    by_part.setdefault(part, []).append((number, hit, extent))
        return [job for part, entries in by_part.items() for job in _shares(part, entries)]

    async def _run(self, job: _Job, wanted: Sequence[Slot], answers: list[State], ends_s: float) -> None:
        """Read one job, and tell apart what of it failed."""
        reader, part = self._reader, job.part
        now_s = reader.now_s()
        if now_s >= part.renew_at_s and not await reader.renew(part, ends_s - now_s):
            for number in job.numbers:
                answers[number] = State.EXPIRED
            return
        reads = [Read(extent, wanted[number].payload) for number, extent in zip(job.numbers, job.extents, strict=True)]
        try:
            await reader.read(part.endpoints, reads, ends_s - reader.now_s())
        except (LeaseLost, StaleIncarnation, BlockCorrupt) as error:
            if len(job.numbers) == 1:
                answers[job.numbers[0]] = State.CORRUPT if isinstance(error, BlockCorrupt) else State.EXPIRED
                return
            for number, hit, extent in zip(job.numbers, job.hits, job.extents, strict=True):
                # all or an error: find out which it was
                await self._run(_Job(part, [number], [hit], [extent]), wanted, answers, ends_s)
        except PandoError as error:
            get_logger().warning("leased objects cannot be read", num_objects=len(reads), error=error.message)
        else:
            for number, hit, extent in zip(job.numbers, job.hits, job.extents, strict=True):
                answers[number] = _landed(part, hit, wanted[number], extent.checksum)


def _copy(payload: memoryview, part: Part, hit: int, slot: Slot) -> State:
    """Fill a slot with what came with the lookup. CORRUPT: it is not what the node promised."""
    slot.payload[:] = payload
    seen = checksum(slot.payload)
    return _landed(part, hit, slot, seen) if seen == part.extent(hit).checksum else State.CORRUPT


def _landed(part: Part, hit: int, slot: Slot, seen: int) -> State:
    """A slot's payload is there, with this checksum."""
    slot.header[:] = part.header(hit)
    slot.seen = seen
    return State.HIT


def _shares(part: Part, entries: Sequence[tuple[int, int, Extent]]) -> list[_Job]:
    """Jobs of about equal bytes for (place in the call, hit, extent)."""
    goal = max(_MIN_SHARE_BYTES, -(-sum([extent.length for _, _, extent in entries]) // STREAMS))
    jobs: list[_Job] = []
    num_bytes = goal
    for entry in entries:
        if num_bytes >= goal:
            job, num_bytes = _Job(part), 0
            jobs.append(job)
        number, hit, extent = entry
        job.numbers.append(number)
        job.hits.append(hit)
        job.extents.append(extent)
        num_bytes += extent.length
    return jobs
