"""The prefix view: which worker holds which blocks, by the workers' own word.

Every worker streams its index: a snapshot, then changes with consecutive sequence numbers. The view folds all streams
into one table::

    prefix hash -> bits     bit 2w: worker in slot w has it in L1, bit 2w+1: in L2

so that matching a prompt against all workers is one walk over its hashes. Invariants: a worker's entries come from one
life of it (the key names the incarnation) and from an unbroken stream; its blocks vanish with it; the table never
exceeds its bound (what does not fit is not remembered). How far a worker's entries can be trusted is a state::

    catching up --snapshot complete--> exact --gap, or a digest that differs--> degraded
         ^                               |                                         |
         '-------- stream broke ---------'      '------- next snapshot begins -----'

The view is a hint: a wrong entry costs a recompute, never a wrong answer. Knows nothing of tokens, loads, streams or
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import repeat

from common.kv.events import IndexDigest, digest_term
from services.router.index_update import Change, ChangeKind, Update

WorkerKey = tuple[str, int]
"""One life of a worker: (worker id, incarnation)."""


_ALL_TIERS = 3
"""As bits of one worker, like 1 and 2."""


class Trust(StrEnum):
    """What a worker's entries are worth."""

    EXACT = "exact"
    CATCHING_UP = "catching_up"
    DEGRADED = "degraded"


@dataclass(slots=True)
class _Feed:
    slot: int
    seq: int = 0
    trust: Trust = Trust.CATCHING_UP
    in_snapshot: bool = False
    num_missing: int = 0
    num_entries: int = 0
    sum: int = 0
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
        return self.trust(key) is Trust.EXACT

    def trust(self, key: WorkerKey) -> Trust:
        """What the worker's entries are worth; a stranger is yet to catch up."""
        feed = self._feeds.get(key)
        return feed.trust if feed else Trust.CATCHING_UP

    def handle(self, key: WorkerKey, update: Update) -> bool:
        """Fold in one update; False when something is missing and a new snapshot is needed."""
        feed = self._feeds.get(key) or self._admit(key)
        if update.snapshot:
            self._take_snapshot(feed, update)
            return True
        if feed.trust is Trust.CATCHING_UP or update.seq != feed.seq + len(update.changes):
            feed.trust = Trust.DEGRADED
            return False
        feed.seq = update.seq
        self._apply(feed, update.changes)
        if update.digest is None or feed.num_missing or IndexDigest.of(feed.num_entries, feed.sum) == update.digest:
            return True
        feed.trust = Trust.DEGRADED
        return False

    def lost_track(self, key: WorkerKey) -> None:
        """The worker's stream broke: its entries stay as hints until the next snapshot."""
        feed = self._feeds.get(key)
        if feed:
            feed.in_snapshot = False
            if feed.trust is Trust.EXACT:
                feed.trust = Trust.CATCHING_UP

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
        return self.match_tiers(hashes)[0]

    def match_tiers(self, hashes: Sequence[bytes]) -> tuple[dict[WorkerKey, int], dict[WorkerKey, int]]:
        """Lengths of the heads of `hashes` in any tier by worker, and of the heads in L1 where those are shorter."""
        lengths: dict[WorkerKey, int] = {}
        upper: dict[WorkerKey, int] = {}
        alive = in_l1 = self._any_l1
        if not alive or not hashes:
            return lengths, upper
        before = -1
        for depth, bits in enumerate(map(self._bits.get, hashes, repeat(0))):
            if bits == before:
                continue
            before = bits
            holding = alive & (bits | bits >> 1)
            if holding != alive:
                if depth:
                    self._note(lengths, alive ^ holding, depth)
                alive = holding
                if not alive:
                    return lengths, upper
            in_l1 &= holding
            if in_l1 & ~bits:
                self._note(upper, in_l1 & ~bits, depth)
                in_l1 &= bits
        self._note(lengths, alive, len(hashes))
        return lengths, upper

    def _note(self, lengths: dict[WorkerKey, int], slots: int, depth: int) -> None:
        while slots:
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
            feed.num_missing = 0
            feed.trust = Trust.CATCHING_UP
        self._apply(feed, update.changes)
        feed.seq = update.seq
        feed.in_snapshot = not update.snapshot_end
        if update.snapshot_end:
            feed.trust = Trust.DEGRADED if feed.num_missing else Trust.EXACT

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
        added = tier << 2 * feed.slot
        if bits is None:
            if len(self._bits) >= self._max_blocks:
                self.num_dropped += 1
                feed.num_missing += 1
                feed.trust = Trust.DEGRADED
                return
            self._bits[prefix_hash] = added
        elif bits & added:
            return
        else:
            self._bits[prefix_hash] = bits | added
        feed.blocks.add(prefix_hash)
        feed.num_entries += 1
        feed.sum += digest_term(prefix_hash, tier)

    def _remove(self, feed: _Feed, prefix_hash: bytes, tiers: int) -> None:
        bits = self._bits.get(prefix_hash, 0)
        mine = bits >> 2 * feed.slot & _ALL_TIERS
        gone = mine & tiers
        if not gone:
            return
        feed.num_entries -= gone.bit_count()
        feed.sum -= digest_term(prefix_hash, gone)
        if gone == mine:
            feed.blocks.discard(prefix_hash)
        bits &= ~(gone << 2 * feed.slot)
        if bits:
            self._bits[prefix_hash] = bits
        else:
            del self._bits[prefix_hash]

    def _clear(self, feed: _Feed, tiers: int = _ALL_TIERS) -> None:
        if tiers != _ALL_TIERS:
            for prefix_hash in list(feed.blocks):
                self._remove(feed, prefix_hash, tiers)
            return
        table, others = self._bits, ~(_ALL_TIERS << 2 * feed.slot)
        for prefix_hash in feed.blocks:
            bits = table[prefix_hash] & others
            if bits:
                table[prefix_hash] = bits
            else:
                del table[prefix_hash]
        feed.blocks = set()
        feed.num_entries = feed.sum = 0
