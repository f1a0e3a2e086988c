"""A priority queue whose members may change their key at any time: a heap with lazy deletion.

A member that is put again under another key is pushed again, and its older entry is skipped when it comes up.
Invariant: a member has exactly one entry that counts; the heap holds at most twice as many entries as members (plus a
constant) after every `put`. Knows nothing about what is queued or what the keys mean.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeAlias, TypeVar

Key: TypeAlias = float | tuple[float, ...]
"""The smallest goes first. One queue compares keys of one shape."""


class Numbered(Protocol):
    """What a member has: a number of its own that breaks ties, so that the order is the same in every run."""

    serial: int


M = TypeVar("M", bound=Numbered)


class LazyQueue(Generic[M]):
    """Members by key, ties by serial number."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[Key, int, M]] = []
        self._entry_of: dict[M, tuple[Key, int, M]] = {}

    def __len__(self) -> int:
        """Number of members."""
        return len(self._entry_of)

    def __contains__(self, member: M) -> bool:
        """Tell whether it is queued."""
        return member in self._entry_of

    def key_of(self, member: M) -> Key | None:
        """Return the key a member is queued under, None when it is not queued."""
        entry = self._entry_of.get(member)
        return None if entry is None else entry[0]

    def put(self, member: M, key: Key) -> None:
        """Queue a member, or move it, to `key`: O(log n)."""
        entry = self._entry_of.get(member)
        if entry is not None and entry[0] == key:
            return
        entry = (key, member.serial, member)
        self._entry_of[member] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry_of) + 64:
            self._heap = list(self._entry_of.values())
            heapq.heapify(self._heap)

    def remove(self, member: M) -> None:
        """Take a member out, queued or not: O(1)."""
        self._entry_of.pop(member, None)

    def peek(self) -> M | None:
        """Return the member that goes first; None when none is queued."""
        while self._heap:
            entry = self._heap[0]
            if self._entry_of.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(self._heap)
        return None
