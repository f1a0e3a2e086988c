"""The changes of a worker's indexes, one per tier, as one numbered stream for routers.

Every change gets the next `seq` of this life of the worker. A subscriber first gets a snapshot that carries the seq it
is true at, then the events after it, with a digest of the state that they lead to; without changes the digest comes
again from time to time, so that a reader who lost the last message finds out. One that falls too far behind is cut off
and subscribes anew: the log itself keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from common.kv.events import BlockEvent, EventKind, IndexDigest, Snapshot

SNAPSHOT_EVENTS_PER_BATCH = 2048
MAX_PENDING_BATCHES = 1024
CHECK_PERIOD_S = 1.0


@dataclass(slots=True, frozen=True)
class EventBatch:
    """Events in index order; `seq` is that of the last one. The rest as in WatchResponse."""

    seq: int
    events: Sequence[BlockEvent]
    snapshot: bool = False
    snapshot_end: bool = False
    digest: IndexDigest | None = None


class BlockFeed:
    """Numbers and distributes block events. Lives on the worker's loop.

    Args:
        snapshots: for each tier, L1 first: returns (hash, parent hash) of all its indexed blocks, parents first.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots
        self._seq = 0
        self._digest: IndexDigest | None = None
        self._subscribers: set[asyncio.Queue[EventBatch | None]] = set()

    def publish(self, events: Sequence[BlockEvent], digest: IndexDigest | None = None) -> None:
        """Number events of any tiers and hand them to all subscribers; those whose queue is full are dropped.

        `digest` is that of all tiers after the events.
        """
        if not events:
            return
        self._seq += len(events)
        self._digest = digest
        batch = EventBatch(self._seq, events, digest=digest)
        for queue in list(self._subscribers):
            try:
                queue.put_nowait(batch)
            except asyncio.QueueFull:
                self._subscribers.discard(queue)

    def close(self) -> None:
        """End all subscriptions after what they have been sent."""
        subscribers, self._subscribers = self._subscribers, set()
        for queue in subscribers:
            if not queue.full():  # a full one has a reader that does not wait
                queue.put_nowait(None)

    async def watch(self) -> AsyncGenerator[EventBatch, None]:
        """A snapshot, then every event after it; ends when this subscriber fell too far behind."""
        queue: asyncio.Queue[EventBatch | None] = asyncio.Queue(MAX_PENDING_BATCHES)
        entries, seq = self._entries(), self._seq
        self._subscribers.add(queue)
        try:
            for batch in _snapshot_batches(entries, seq):
                yield batch
            while queue in self._subscribers or not queue.empty():
                following = await self._following(queue)
                if following is None:
                    return
                yield following
        finally:
            self._subscribers.discard(queue)

    async def _following(self, queue: asyncio.Queue[EventBatch | None]) -> EventBatch | None:
        try:
            async with asyncio.timeout(CHECK_PERIOD_S):
                return await queue.get()
        except TimeoutError:
            return EventBatch(self._seq, (), digest=self._digest)

    def _entries(self) -> list[BlockEvent]:
        return [
            BlockEvent(EventKind.STORED, block, parent, tier)
            for tier, snapshot in enumerate(self._snapshots, start=1)
            for block, parent in snapshot()
        ]


def _snapshot_batches(events: Sequence[BlockEvent], seq: int) -> list[EventBatch]:
    starts = range(0, max(1, len(events)), SNAPSHOT_EVENTS_PER_BATCH)
    parts = [events[start : start + SNAPSHOT_EVENTS_PER_BATCH] for start in starts]
    return [EventBatch(seq, part, snapshot=True, snapshot_end=part is parts[-1]) for part in parts]
