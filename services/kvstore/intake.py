"""Puts of one node: grant space, pull what is offered, verify it, and only then let anybody see it.

::

    offered ──> PRESENT
       ├─ being pulled by another call ──> wait for that one
       └─ staged (BUSY: wait a little) ──transport read──> committed: STORED
                                              └─ any failure: the pages are free again at once

A writer that dies or freezes costs its staged pages for at most the transport's deadline. Bytes are verified against
the writer's checksum, so what changed while it was read never becomes an object.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.base.errors import BlockCorrupt, LeaseLost, PandoError
from common.base.logging import get_logger
from common.cache.kvstore_wire import Put, split_payloads
from common.transport.base import STREAMS, Endpoint, Extent, Read
from common.transport.checksum import checksum
from common.transport.select import TransportSet
from services.kvstore.holdings import Holdings
from services.kvstore.limits import Refusal
from services.kvstore.memory import Object, Rank

RETRY_AFTER_S = 0.5
_MIN_SHARE_BYTES = 1024 * 1024


@dataclass(slots=True, frozen=True)
class Offer:
    """A batch of objects as a writer offers them; names, headers and extents go together.

    With `payloads`, which are theirs one after the other, nothing is read from the writer; `writer` is its name, for
    people.
    """

    names: Sequence[bytes]
    headers: Sequence[bytes]
    extents: Sequence[Extent]
    endpoints: Sequence[Endpoint]
    soft_pin: bool = False
    payloads: bytes = b""
    writer: str = ""

    @property
    def incarnation(self) -> int:
        """Life of the writer's process, which its own log tells as well."""
        return self.extents[0].incarnation


@dataclass(slots=True, frozen=True)
class Pulling:
    """How bytes are pulled.

    Attributes:
        num_parallel: reads that one put runs at a time.
        transfer_s: longest that staged pages wait for a writer.
        wait_s: longest that a put waits for room that others will free.
    """

    num_parallel: int = STREAMS
    transfer_s: float = 3.0
    wait_s: float = 0.5


@dataclass(slots=True)
class _Call:
    """One put on its way.

    Attributes:
        states: the answer so far.
        ends_s: when the caller leaves.
        staged: by index in the offer; nobody sees them yet.
        lost: the writer does not answer; nothing more is staged for it.
    """

    offer: Offer
    states: list[Put]
    ends_s: float
    staged: dict[int, Object] = field(default_factory=dict)
    lost: bool = False


class Intake:
    """The writing side of a node. Lives on one loop."""

    def __init__(self, holdings: Holdings, transports: TransportSet, pulling: Pulling) -> None:
        self._holdings = holdings
        self._transports = transports
        self._pulling = pulling
        self._coming: dict[bytes, asyncio.Event] = {}

    async def put(self, offer: Offer, deadline_s: float) -> list[Put]:
        """Take objects; returns what became of each. Cancelled, it leaves nothing staged."""
        call = _Call(offer, [Put.ERROR] * len(offer.names), self._holdings.clock() + deadline_s)
        over = asyncio.Event()
        mine, others = self._sort(call, over)
        try:
            await self._take_all(call, mine)
        finally:
            for index in mine:
                del self._coming[offer.names[index]]
            over.set()
        for index, event in others:
            await self._follow(call, index, event)
        self._count(call)
        return call.states

    def _sort(self, call: _Call, over: asyncio.Event) -> tuple[list[int], list[tuple[int, asyncio.Event]]]:
        """Answer what is here; returns what this call brings, until it is `over`, and what another, or itself, does."""
        mine: list[int] = []
        others: list[tuple[int, asyncio.Event]] = []
        for index, name in enumerate(call.offer.names):
            if self._is_here(call, index):
                call.states[index] = Put.PRESENT
            elif name in self._coming:
                others.append((index, self._coming[name]))
            else:
                self._coming[name] = over
                mine.append(index)
        return mine, others

    def _is_here(self, call: _Call, index: int) -> bool:
        one = self._holdings.objects.get(call.offer.names[index])
        if one is None or one.length != call.offer.extents[index].length:
            return False
        self._holdings.objects.refresh(one)
        if call.offer.soft_pin:
            self._holdings.objects.pin_softly(one)
        return True

    async def _take_all(self, call: _Call, mine: Sequence[int]) -> None:
        """Stage and pull in waves, as many objects at a time as there is room for."""
        waiting = list(mine)
        gives_up_s = min(call.ends_s, self._holdings.clock() + self._pulling.wait_s)
        while waiting and not call.lost:
            waiting = self._stage(call, waiting)
            self._holdings.settle()
            if call.staged:
                await self._pull(call)
            elif waiting and not await self._holdings.wait_for_room(gives_up_s - self._holdings.clock()):
                for index in waiting:
                    call.states[index] = Put.NO_SPACE
                return

    def _stage(self, call: _Call, waiting: Sequence[int]) -> list[int]:
        """Stage what there is room for; returns what has to wait."""
        offer = call.offer
        rank = Rank.SOFT_PINNED if offer.soft_pin else Rank.PLAIN
        for place, index in enumerate(waiting):
            extent = offer.extents[index]
            new = Object(offer.names[index], extent.length, offer.headers[index], extent.checksum, rank=rank)
            match self._holdings.objects.stage(new):
                case None:
                    call.staged[index] = new
                case Refusal.BUSY:
                    return list(waiting[place:])
                case Refusal.QUOTA:
                    call.states[index] = Put.QUOTA
                case Refusal.NO_SPACE:
                    call.states[index] = Put.NO_SPACE
        return []

    async def _pull(self, call: _Call) -> None:
        """Pull what is staged in parallel shares; whatever happens, nothing stays staged."""
        ends_s = min(self._holdings.clock() + self._pulling.transfer_s, call.ends_s)
        try:
            if call.offer.payloads:
                self._copy(call)
                return
            async with asyncio.TaskGroup() as group:
                for share in self._shares(call):
                    group.create_task(self._pull_share(call, share, ends_s))
        finally:
            for new in call.staged.values():
                self._holdings.objects.abandon(new)
            call.staged.clear()
            self._holdings.settle()

    def _copy(self, call: _Call) -> None:
        """Take what came with the call."""
        extents = call.offer.extents
        payloads = split_payloads(call.offer.payloads, [extent.length for extent in extents])
        whole = []
        for index, new in call.staged.items():
            assert new.run is not None
            pages = self._holdings.arena.view(new.run)
            pages[:] = payloads[index]
            if checksum(pages) == extents[index].checksum:
                whole.append(index)
            else:
                call.states[index] = Put.CORRUPT
        self._commit(call, whole)

    def _shares(self, call: _Call) -> list[list[int]]:
        """Split what is staged into neighbours of about equal bytes."""
        total = sum(one.length for one in call.staged.values())
        goal = max(_MIN_SHARE_BYTES, -(-total // self._pulling.num_parallel))
        shares: list[list[int]] = [[]]
        num_bytes = 0
        for index, one in call.staged.items():
            if num_bytes >= goal:
                shares.append([])
                num_bytes = 0
            shares[-1].append(index)
            num_bytes += one.length
        return shares

    async def _pull_share(self, call: _Call, share: Sequence[int], ends_s: float) -> None:
        reads = [self._read(call, index) for index in share]
        try:
            await self._transports.read(call.offer.endpoints, reads, max(0.0, ends_s - self._holdings.clock()))
        except (BlockCorrupt, LeaseLost) as error:
            if len(share) == 1:
                call.states[share[0]] = Put.CORRUPT if isinstance(error, BlockCorrupt) else Put.ERROR
                return
            for index in share:  # all or an error: find out which it was
                await self._pull_share(call, [index], ends_s)
        except PandoError as error:
            call.lost = True
            writer, life = call.offer.writer, call.offer.incarnation
            get_logger().warning(
                "offered objects cannot be read",
                writer=writer,
                incarnation=life,
                num_objects=len(share),
                error=error.message,
            )
        else:
            self._commit(call, share)

    def _read(self, call: _Call, index: int) -> Read:
        run = call.staged[index].run
        assert run is not None
        return Read(call.offer.extents[index], self._holdings.arena.view(run))

    def _commit(self, call: _Call, share: Sequence[int]) -> None:
        """Let what has landed be seen, the beginning of a path as the last used."""
        stored: list[Object] = []
        for index in reversed(share):
            new = call.staged.pop(index)
            if self._holdings.objects.commit(new):
                call.states[index] = Put.STORED
                stored.append(new)
            else:
                call.states[index] = Put.PRESENT
        if self._holdings.log is not None:
            self._holdings.log.write(reversed(stored))
        self._holdings.settle()

    async def _follow(self, call: _Call, index: int, event: asyncio.Event) -> None:
        """Wait for the call that brings the same object."""
        try:
            await asyncio.wait_for(event.wait(), max(0.0, call.ends_s - self._holdings.clock()))
        except TimeoutError:
            return
        if self._is_here(call, index):
            call.states[index] = Put.PRESENT

    def _count(self, call: _Call) -> None:
        metrics = self._holdings.metrics
        for state, number in Counter(call.states).items():
            metrics.puts.labels(state.name.lower()).inc(number)
        extents = zip(call.offer.extents, call.states, strict=True)
        metrics.put_bytes.inc(sum(extent.length for extent, state in extents if state is Put.STORED))
