"""The KV blocks of a simulated worker: which prefixes it holds, who uses them, which go first.

It behaves like `common.kv.BlockCache` with LRU eviction at a fraction of the time, because blocks have no ids here and
paths need no tree: whoever uses a block uses all before it, and blocks are released the last first, so the least
recently used block is never the parent of one that stays. A test runs both side by side.

Invariant: free + cached + held == total. Held blocks are shared (a hash stands for them) or private. Knows nothing
about requests or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from services.router.index_update import Change, ChangeKind

_TIER = 1


class PrefixCache:
    """`num_blocks` blocks, reusable by prefix hash."""

    def __init__(self, num_blocks: int) -> None:
        """Start with every block free."""
        self.num_blocks = num_blocks
        self._holders: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._num_private = 0
        self._changes: list[Change] = []

    @property
    def num_held(self) -> int:
        """Blocks in use."""
        return len(self._holders) + self._num_private

    @property
    def num_cached(self) -> int:
        """Blocks that nobody uses and that a prefix hit would find."""
        return len(self._idle)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self.num_blocks - self.num_held - self.num_cached

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading blocks of the path are here; changes nothing."""
        holders, idle = self._holders, self._idle
        for count, name in enumerate(hashes):
            if name not in holders and name not in idle:
                return count
        return len(hashes)

    def acquire(self, hashes: Sequence[bytes]) -> None:
        """Hold blocks that are all here."""
        holders, idle = self._holders, self._idle
        for name in hashes:
            held = holders.get(name, 0)
            if not held:
                del idle[name]
            holders[name] = held + 1

    def allocate(self, count: int) -> bool:
        """Hold `count` private blocks, evicting as few cached ones as needed; False, and no change, without room."""
        if count > self.num_blocks - self.num_held:
            return False
        for _ in range(count - self.num_free):
            oldest, _ = self._idle.popitem(last=False)
            self._changes.append((ChangeKind.REMOVED, oldest, _TIER))
        self._num_private += count
        return True

    def index(self, name: bytes) -> bool:
        """Hold the block that stands for a hash: a private one from now on (True), or the one that does already.

        In the second case the private copy stays private, and the caller holds both.
        """
        if name in self._holders or name in self._idle:
            self.acquire((name,))
            return False
        assert self._num_private > 0, "no private block to index"
        self._num_private -= 1
        self._holders[name] = 1
        self._changes.append((ChangeKind.STORED, name, _TIER))
        return True

    def release(self, hashes: Sequence[bytes], num_private: int) -> None:
        """Let go of shared blocks, given in the order of their path, and of private ones."""
        for name in reversed(hashes):
            held = self._holders[name]
            if held > 1:
                self._holders[name] = held - 1
            else:
                del self._holders[name]
                self._idle[name] = None
        self._num_private -= num_private
        assert self._num_private >= 0, f"{self._num_private} private blocks"

    def take_changes(self) -> list[Change]:
        """Return what was stored and removed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes
