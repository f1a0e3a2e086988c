"""The order in which the leaves of an index go: least recently used first.

A heap with lazy deletion: a leaf that is used again is pushed again, and the older entry is skipped when it comes up.
Invariant: a queued leaf has exactly one entry that counts, the one under `leaf.queued`; the heap holds at most twice as
many entries as queued leaves (plus a constant). Knows nothing about trees or blocks: whether a leaf may still go is its
owner's business. Another policy is another class with these three methods.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

_NOT_QUEUED = -1


class Leaf(Protocol):
    """What the order needs to know. `used` never decreases; `serial` is unique; `queued` belongs to the queue."""

    used: int
    serial: int
    queued: int


L = TypeVar("L", bound=Leaf)


class LruQueue(Generic[L]):
    """Leaves by time of last use, ties by serial number."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[int, int, L]] = []
        self._num_queued = 0

    def __len__(self) -> int:
        """Number of queued leaves."""
        return self._num_queued

    def put(self, leaf: L) -> None:
        """Queue a leaf under its latest use: O(log n)."""
        if leaf.queued == leaf.used:
            return
        self._num_queued += leaf.queued == _NOT_QUEUED
        leaf.queued = leaf.used
        heapq.heappush(self._heap, (leaf.used, leaf.serial, leaf))
        if len(self._heap) > 2 * self._num_queued + 64:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].queued]
            heapq.heapify(self._heap)

    def remove(self, leaf: L) -> None:
        """Take a leaf out, queued or not: O(1)."""
        self._num_queued -= leaf.queued != _NOT_QUEUED
        leaf.queued = _NOT_QUEUED

    def pop(self) -> L | None:
        """Take out and return the leaf that goes first; None when none is queued."""
        while self._heap:
            used, _, leaf = heapq.heappop(self._heap)
            if used == leaf.queued:
                self.remove(leaf)
                return leaf
        return None
