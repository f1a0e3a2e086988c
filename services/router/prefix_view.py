"""The prefix view: which worker holds which blocks, by the workers' own word.

Every worker streams its index: a snapshot, then changes with consecutive sequence numbers. The view folds all streams
into one table::

    prefix hash -> bits     bit 2w: worker in slot w has it in L1, bit 2w+1: in L2

so that matching a prompt against all workers is one walk over its hashes. Invariants: a worker's entries come from one
life of it (the key names the incarnation) and from an unbroken stream; its blocks vanish with it; the table never
exceeds its bound (what does not fit is not remembered). The view is a hint: a wrong entry costs a recompute, never a
wrong answer. Knows nothing of tokens, loads, streams or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

WorkerKey = tuple[str, int]
"""One life of a worker: (worker id, incarnation)."""


class ChangeKind(IntEnum):
    """What happened to a block; the values are the wire's."""

    STORED = 1
    REMOVED = 2
    CLEARED = 3


Change = tuple[int, bytes, int]
"""(ChangeKind, prefix hash, tier 1 or 2). CLEARED has no hash; its tier may be 0, which means all of them.

A change of a tier that this router does not know is skipped.
"""

_ALL_TIERS = 3
"""As bits of one worker, like 1 and 2."""


@dataclass(slots=True, frozen=True)
class Update:
    """One message of a worker's stream.

    Attributes:
        seq: number of the last change in it; numbers count changes, so an update of k changes moves it by k.
        snapshot: the changes are entries of the state at `seq`.
        snapshot_end: the state is complete with this update.
    """

    seq: int
    changes: Sequence[Change]
    snapshot: bool = False
    snapshot_end: bool = False


@dataclass(slots=True)
class _Feed:
    slot: int
    seq: int = 0
    exact: bool = False
    in_snapshot: bool = False
    blocks: set[bytes] = field(default_factory=set)


class PrefixView:
    """Blocks of all workers, matched by prefix."""

    def __init__(self, max_blocks: int) -> None:
        """Start empty; at most `max_blocks` different hashes are remembered."""
        self._max_blocks = max_blocks
        self._bits: dict[bytes, int] = {}
        self._feeds: dict[WorkerKey, _Feed] = {}
        self._slots: list[WorkerKey | None] = []
        self._any_l1 = 0
        self.num_dropped = 0

    def __len__(self) -> int:
        """Number of different blocks."""
        return len(self._bits)

    def num_blocks(self, key: WorkerKey) -> int:
        """Blocks known of one worker; 0 for a stranger."""
        feed = self._feeds.get(key)
        return len(feed.blocks) if feed else 0

    def is_exact(self, key: WorkerKey) -> bool:
        """True when the worker's entries equal its index up to the last change it sent."""
        feed = self._feeds.get(key)
        return feed is not None and feed.exact

    def handle(self, key: WorkerKey, update: Update) -> bool:
        """Fold in one update; False when changes are missing and a new snapshot is needed."""
        feed = self._feeds.get(key) or self._admit(key)
        if update.snapshot:
            self._take_snapshot(feed, update)
            return True
        if not feed.exact or update.seq != feed.seq + len(update.changes):
            feed.exact = False
            return False
        feed.seq = update.seq
        self._apply(feed, update.changes)
        return True

    def lost_track(self, key: WorkerKey) -> None:
        """The worker's stream broke: its entries stay as hints until the next snapshot."""
        feed = self._feeds.get(key)
        if feed:
            feed.exact = feed.in_snapshot = False

    def remove(self, key: WorkerKey) -> None:
        """Forget a worker and all it held."""
        feed = self._feeds.pop(key, None)
        if feed is None:
            return
        self._clear(feed)
        self._slots[feed.slot] = None
        self._any_l1 &= ~(1 << 2 * feed.slot)

    def match(self, hashes: Sequence[bytes]) -> dict[WorkerKey, int]:
        """Length in blocks of the contiguous head of `hashes` on each worker that holds at least one."""
        lengths: dict[WorkerKey, int] = {}
        alive = self._any_l1
        for depth, prefix_hash in enumerate(hashes):
            bits = self._bits.get(prefix_hash, 0)
            holding = alive & (bits | bits >> 1)
            if holding != alive:
                self._note(lengths, alive & ~holding, depth)
                alive = holding
                if not alive:
                    return lengths
        self._note(lengths, alive, len(hashes))
        return lengths

    def _note(self, lengths: dict[WorkerKey, int], slots: int, depth: int) -> None:
        while slots and depth:
            lowest = slots & -slots
            key = self._slots[lowest.bit_length() // 2]
            assert key is not None, f"slot {lowest.bit_length() // 2} is empty"
            lengths[key] = depth
            slots ^= lowest

    def _admit(self, key: WorkerKey) -> _Feed:
        slot = self._slots.index(None) if None in self._slots else len(self._slots)
        if slot == len(self._slots):
            self._slots.append(None)
        self._slots[slot] = key
        self._any_l1 |= 1 << 2 * slot
        feed = self._feeds[key] = _Feed(slot)
        return feed

    def _take_snapshot(self, feed: _Feed, update: Update) -> None:
        if not feed.in_snapshot:
            self._clear(feed)
            feed.exact = False
        self._apply(feed, update.changes)
        feed.seq = update.seq
        feed.in_snapshot = not update.snapshot_end
        feed.exact = update.snapshot_end

    def _apply(self, feed: _Feed, changes: Sequence[Change]) -> None:
        for kind, prefix_hash, tier in changes:
            if tier > 2:
                continue
            if kind == ChangeKind.CLEARED:
                self._clear(feed, tier or _ALL_TIERS)
            elif kind == ChangeKind.STORED:
                self._store(feed, prefix_hash, tier)
            elif kind == ChangeKind.REMOVED:
                self._remove(feed, prefix_hash, tier)

    def _store(self, feed: _Feed, prefix_hash: bytes, tier: int) -> None:
        bits = self._bits.get(prefix_hash)
        if bits is None:
            if len(self._bits) >= self._max_blocks:
                self.num_dropped += 1
                return
            bits = 0
        self._bits[prefix_hash] = bits | tier << 2 * feed.slot
        feed.blocks.add(prefix_hash)

    def _remove(self, feed: _Feed, prefix_hash: bytes, tiers: int) -> None:
        bits = self._bits.get(prefix_hash, 0) & ~(tiers << 2 * feed.slot)
        if not bits >> 2 * feed.slot & 3:
            feed.blocks.discard(prefix_hash)
        if bits:
            self._bits[prefix_hash] = bits
        else:
            self._bits.pop(prefix_hash, None)

    def _clear(self, feed: _Feed, tiers: int = _ALL_TIERS) -> None:
        for prefix_hash in list(feed.blocks):
            self._remove(feed, prefix_hash, tiers)
