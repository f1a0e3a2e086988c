"""Which leaves of an index go first: four policies over one queue.

===========  ===========================================================================================
``lru``      least recently used first
``lfu``      fewest uses first; a count is worth half with every turnover of the tier, so that what was hot
             once does not stay for ever
``slru``     what was used once goes before what was used again (protected); at most `PROTECTED_SHARE` of the
             tier is protected: beyond it the least recently used of the protected start over as the others do
``priority`` lowest priority first: the highest of all requests that stored or used the leaf
===========  ===========================================================================================

Ties go to the least recently used, then to the older leaf. A use is one `use` or the insertion; a release moves
recency only. The statistics are kept whatever the policy is, so that it can change at any time.

Halving by turnover is forward decay (Cormode et al., "Forward decay", ICDE 2009; the idea of one scale from LFU to LRU
is LRFU, Lee et al., IEEE Trans. Computers 50(12), 2001): ``uses * 2**age`` orders counts noted at different ages and
never has to be computed anew while an entry lies still. SLRU: Karedla, Love and Wherry, IEEE Computer 27(3), 1994.

Invariants: recency is a logical counter, so the same calls give the same order; every protected leaf is in the
protected queue. Knows nothing about trees, hashes or who holds a block: whether a leaf may go is its owner's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from common.kv.lazy_queue import Key, LazyQueue

PROTECTED_SHARE = 0.8
DEMOTED = 0
"""Older than any use."""


class EvictionPolicy(StrEnum):
    """Names of the policies, as operators write them."""

    LRU = "lru"
    LFU = "lfu"
    SLRU = "slru"
    PRIORITY = "priority"


class Ranked(Protocol):
    """What decides about a run of blocks; `EvictionOrder` writes all but the first three.

    Attributes:
        serial, start, blocks: unique number; blocks before it on its path; its own blocks.
        used: logical time of the last use.
        uses: number of uses, as they counted at turnover `age`.
        reused: used since it was inserted.
        protected: in SLRU's protected segment.
        priority: highest priority of those who inserted or used it.
    """

    serial: int
    start: int
    blocks: list[int]
    used: int
    uses: int
    age: int
    reused: bool
    protected: bool
    priority: int


R = TypeVar("R", bound=Ranked)


def _by_recency(leaf: Ranked) -> Key:
    return leaf.used


def _by_frequency(leaf: Ranked) -> Key:
    fraction, exponent = math.frexp(leaf.uses)
    return leaf.age + exponent, fraction, leaf.used  # in the order of uses * 2**age, without the large number


def _by_segment(leaf: Ranked) -> Key:
    return leaf.protected, leaf.used


def _by_priority(leaf: Ranked) -> Key:
    return leaf.priority, leaf.used


_KEYS: Mapping[EvictionPolicy, Callable[[Ranked], Key]] = {
    EvictionPolicy.LRU: _by_recency,
    EvictionPolicy.LFU: _by_frequency,
    EvictionPolicy.SLRU: _by_segment,
    EvictionPolicy.PRIORITY: _by_priority,
}


class EvictionOrder(Generic[R]):
    """Keeps the statistics of runs of blocks and the queue of those that are leaves."""

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        """Start empty, for a tier of `num_blocks` blocks."""
        self.policy = policy
        self.num_protected = 0
        self._max_protected = int(PROTECTED_SHARE * num_blocks)
        self._num_blocks = num_blocks
        self._num_evicted = 0
        self._age = 0
        self._clock = DEMOTED
        self._key = _KEYS[policy]
        self._leaves: LazyQueue[R] = LazyQueue()
        self._protected: LazyQueue[R] = LazyQueue()

    def admit(self, leaf: R, priority: int) -> None:
        """Give new blocks their first use."""
        leaf.used = self.tick()
        leaf.uses = 1
        leaf.age = self._age
        leaf.priority = priority

    def suits(self, leaf: R, priority: int) -> bool:
        """Tell whether blocks stored now with `priority` rank like those of `leaf`, so that they may join it."""
        return not leaf.reused and leaf.priority == priority

    def use(self, path: Sequence[R], priority: int) -> None:
        """Count one use of every run of a path, given from its end up."""
        self.prefer(path, priority)
        now, age = self.tick(), self._age
        for run in path:
            run.used = now
            run.uses = (run.uses >> (age - run.age)) + 1
            run.age = age
            run.reused = True
        if self.policy is EvictionPolicy.SLRU:
            for run in path:
                self._protect(run)
            self._bound_protected()

    def tick(self) -> int:
        """Return a time after all earlier ones."""
        self._clock += 1
        return self._clock

    def touch(self, run: R, now: int) -> None:
        """Make a run as recent as `now`, without counting a use."""
        run.used = now
        if run.protected:
            self._protect(run)

    def prefer(self, path: Sequence[R], priority: int) -> None:
        """Raise the priority of every run of a path, given from its end up; a lower one changes nothing."""
        for run in path:
            if run.priority >= priority:
                return  # so has every run above it
            run.priority = priority
            self._requeue(run)

    def demote(self, run: R) -> None:
        """Make a run the first to go among those of its rank; SLRU protects it no longer."""
        self._unprotect(run)
        run.used = DEMOTED
        self._requeue(run)

    def split(self, upper: R, lower: R) -> None:
        """Give `upper`, whose blocks were the head of `lower`, the same rank."""
        upper.used, upper.uses, upper.age = lower.used, lower.uses, lower.age
        upper.reused, upper.priority = lower.reused, lower.priority
        if lower.protected:
            self.num_protected -= len(upper.blocks)
            self._protect(upper)
            self._protect(lower)

    def put(self, leaf: R) -> None:
        """Queue a leaf, or move it to where it belongs now: O(log n)."""
        self._leaves.put(leaf, self._key(leaf))

    def remove(self, leaf: R) -> None:
        """Take out a leaf that is none any more, queued or not: O(1)."""
        self._leaves.remove(leaf)

    def first(self) -> R | None:
        """Return the leaf that goes first; None when none is queued."""
        return self._leaves.peek()

    def shrink(self, leaf: R, count: int) -> None:
        """Note that a leaf is about to lose its last `count` blocks; with all of them it is forgotten."""
        if leaf.protected:
            self.num_protected -= count
        if count == len(leaf.blocks):
            self._leaves.remove(leaf)
            self._protected.remove(leaf)

    def note_evicted(self, count: int) -> None:
        """Let the counts of uses age by `count` evicted blocks."""
        self._num_evicted += count
        self._age = self._num_evicted // self._num_blocks

    def set_policy(self, policy: EvictionPolicy, runs: Iterable[R]) -> None:
        """Order all leaves anew; `runs` are all runs of the tree: O(n log n)."""
        leaves, self._leaves = self._leaves, LazyQueue()
        self.policy = policy
        self._key = _KEYS[policy]
        for run in runs:
            self._unprotect(run)
            if policy is EvictionPolicy.SLRU and run.reused:
                self._protect(run)
            if run in leaves:
                self.put(run)
        self._bound_protected()

    def check(self, runs: Iterable[R]) -> None:
        """Assert what the order knows of protected runs; `runs` are all runs of the tree."""
        protected = 0
        for run in runs:
            assert run.protected == (run in self._protected), f"protected run {run.serial} is misfiled"
            protected += len(run.blocks) * run.protected
        assert protected == self.num_protected, f"{protected} blocks protected, noted {self.num_protected}"
        assert protected <= self._max_protected, f"{protected} blocks protected, at most {self._max_protected}"

    def is_in_place(self, leaf: R) -> bool:
        """Tell whether a leaf is queued where its rank belongs."""
        return self._leaves.key_of(leaf) == self._key(leaf)

    def _requeue(self, run: R) -> None:
        if run in self._leaves:
            self.put(run)

    def _protect(self, run: R) -> None:
        if not run.protected:
            run.protected = True
            self.num_protected += len(run.blocks)
            self._requeue(run)
        self._protected.put(run, (run.used, -run.start))

    def _unprotect(self, run: R) -> None:
        if run.protected:
            run.protected = False
            self.num_protected -= len(run.blocks)
            self._protected.remove(run)

    def _bound_protected(self) -> None:
        """Move the least recently used of the protected to the fresh end of the others, deepest first."""
        while self.num_protected > self._max_protected:
            run = self._protected.peek()
            assert run is not None, f"{self.num_protected} blocks protected by nobody"
            self._unprotect(run)
            run.used = self.tick()
            self._requeue(run)
