"""What changed in one tier's index, in order: the feed from which others learn which prefixes a worker holds.

Invariant: replaying everything ever taken from a log, from an empty set on, gives the set of hashes in the index. A
reader who is too slow costs bounded memory: past the limit the log forgets its history and tells the current state
again (a CLEARED, then a STORED per entry), which replays to the same set. Every event names its tier and speaks of that
tier only, so the events of several tiers can be told in any mixture. What the index adds up to is kept along, so
that a reader can find out whether it has missed something. Knows nothing about subscribers or sequence numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

DIGEST_MODULUS = 1 << 64


class EventKind(StrEnum):
    """What happened to the index of a tier; after CLEARED it is empty."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


class BlockEvent(NamedTuple):
    """One change of tier 1 or 2. `parent` is set for STORED: the hash of the block before, b"" for a first block.

    A tuple, because one is made for every block that comes or goes: a frozen dataclass takes several times as long.
    """

    kind: EventKind
    hash: bytes = b""
    parent: bytes = b""
    tier: int = 1


class IndexDigest(NamedTuple):
    """What indexes add up to, whatever the order in which they were filled; digests of several tiers are added.

    `sum` is that of `digest_term` over all entries, modulo 2^64.
    """

    num_entries: int = 0
    sum: int = 0

    @classmethod
    def of(cls, num_entries: int, total: int) -> IndexDigest:
        """From a sum of terms that may have any size and sign."""
        return cls(num_entries, total % DIGEST_MODULUS)

    def plus(self, other: IndexDigest) -> IndexDigest:
        """The digest of both."""
        return IndexDigest.of(self.num_entries + other.num_entries, self.sum + other.sum)


def digest_term(block_hash: bytes, tier: int) -> int:
    """What an entry adds to a digest; that of an entry in several tiers is the term of the sum of their numbers."""
    return tier * int.from_bytes(block_hash[:8], "little")


Snapshot = Callable[[], Sequence[tuple[bytes, bytes]]]


class EventLog:
    """A bounded list of events that nobody has taken yet."""

    def __init__(self, snapshot: Snapshot, limit: int, tier: int = 1) -> None:
        """Start empty.

        Args:
            snapshot: gives all (hash, parent hash) in the index, parents first; asked only after an overflow.
            limit: most events kept.
            tier: whose index it is.
        """
        assert limit > 0, f"limit {limit}"
        self._snapshot = snapshot
        self._limit = limit
        self._tier = tier
        self._events: list[BlockEvent] = []
        self._overflowed = False
        self._num_entries = 0
        self._sum = 0

    @property
    def digest(self) -> IndexDigest:
        """Of the index as it is, events not yet taken included."""
        return IndexDigest.of(self._num_entries, self._sum)

    def stored(self, block_hash: bytes, parent: bytes) -> None:
        """Note that the block after `parent` is in the index now."""
        self._num_entries += 1
        self._sum += digest_term(block_hash, self._tier)
        self._append(BlockEvent(EventKind.STORED, block_hash, parent, self._tier))

    def removed(self, block_hash: bytes) -> None:
        """Note that a block left the index."""
        self._num_entries -= 1
        self._sum -= digest_term(block_hash, self._tier)
        self._append(BlockEvent(EventKind.REMOVED, block_hash, b"", self._tier))

    def cleared(self) -> None:
        """Note that the index is empty now; events not yet taken no longer matter."""
        self._events = [BlockEvent(EventKind.CLEARED, tier=self._tier)]
        self._overflowed = False
        self._num_entries = self._sum = 0

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call and forget them."""
        events, self._events = self._events, []
        if self._overflowed:
            self._overflowed = False
            stored = [BlockEvent(EventKind.STORED, h, parent, self._tier) for h, parent in self._snapshot()]
            events = [BlockEvent(EventKind.CLEARED, tier=self._tier), *stored]
        return events

    def _append(self, event: BlockEvent) -> None:
        if self._overflowed:
            return
        if len(self._events) == self._limit:
            self._events = []
            self._overflowed = True
            return
        self._events.append(event)
