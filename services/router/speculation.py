"""Blocks that a worker is about to have: those of prompts that were just sent to it.

Between a plan and the worker's word that the blocks are there, a burst of requests with the same prefix would see
nothing and scatter. So each placement is remembered as a promise: its whole prompt counts as held by the workers it
goes to, until a while after its first token (then the real events have come) or until it fails. Prefix hashes chain, so
two prompts share exactly the blocks up to the last position at which their hashes are equal: a promise is a list of
hashes that it shares with the request, and matching is a binary search. Bounded: the oldest promises fall out.
Knows nothing about the view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from services.router.prefix_view import WorkerKey

MAX_LOOKED_AT = 32
"""Newest promises with the same first block; of older ones the workers have told by now."""
NOTHING = (0, False)


@dataclass(slots=True, eq=False)
class Promise:
    """A worker will hold the blocks of `hashes`.

    Attributes:
        landing: they come from another worker, so they are not computed there.
        until_s: when it lapses; None while the prompt is being computed.
    """

    key: WorkerKey
    hashes: Sequence[bytes]
    landing: bool
    until_s: float | None = None


class Speculations:
    """All promises, by the first block of their prompt."""

    def __init__(self, lifetime_s: float, max_promises: int) -> None:
        """Promises live for `lifetime_s` after their first token; at most `max_promises` are kept."""
        self._lifetime_s = lifetime_s
        self._max_promises = max_promises
        self._by_first: dict[bytes, dict[Promise, None]] = {}
        self._all: dict[Promise, None] = {}
        self._lapsing: deque[tuple[float, Promise]] = deque()

    def __len__(self) -> int:
        """Promises that are kept."""
        return len(self._all)

    def add(self, key: WorkerKey, hashes: Sequence[bytes], landing: bool) -> Promise | None:
        """Note that a prompt goes to a worker; None when it has no full block."""
        if not hashes or self._max_promises == 0:
            return None
        if len(self._all) >= self._max_promises:
            self.drop(next(iter(self._all)))
        promise = Promise(key, hashes, landing)
        self._all[promise] = None
        self._by_first.setdefault(hashes[0], {})[promise] = None
        return promise

    def computed(self, promise: Promise, now_s: float) -> None:
        """The prompt is computed: the worker's own events are about to come."""
        promise.until_s = now_s + self._lifetime_s
        self._lapsing.append((promise.until_s, promise))

    def drop(self, promise: Promise) -> None:
        """It will not come true (or has); dropping it twice does nothing."""
        if promise in self._all:
            del self._all[promise]
            group = self._by_first[promise.hashes[0]]
            del group[promise]
            if not group:
                del self._by_first[promise.hashes[0]]

    def forget(self, key: WorkerKey) -> None:
        """The worker is gone."""
        for promise in [promise for promise in self._all if promise.key == key]:
            self.drop(promise)

    def lapse(self, now_s: float) -> None:
        """Drop what has lapsed."""
        while self._lapsing and self._lapsing[0][0] <= now_s:
            self.drop(self._lapsing.popleft()[1])

    def match(self, hashes: Sequence[bytes], now_s: float) -> dict[WorkerKey, tuple[int, bool]]:
        """(blocks of the head that are promised, whether they land there from elsewhere) by worker."""
        found: dict[WorkerKey, tuple[int, bool]] = {}
        group = self._by_first.get(hashes[0]) if hashes else None
        if not group:
            return found
        whole = (len(hashes), False)
        for promise in islice(reversed(group), MAX_LOOKED_AT):
            best = found.get(promise.key, NOTHING)
            if best == whole or (promise.until_s is not None and promise.until_s <= now_s):
                continue
            known, landing = best
            if known < len(hashes) and known < len(promise.hashes) and promise.hashes[known] == hashes[known]:
                found[promise.key] = _shared(promise.hashes, hashes, known), promise.landing
            elif landing and not promise.landing and promise.hashes[known - 1 : known] == hashes[known - 1 : known]:
                found[promise.key] = known, False
        return found


def _shared(a: Sequence[bytes], b: Sequence[bytes], known: int) -> int:
    """Length of the common head of two chains that are known to share the block at `known`."""
    low, high = known + 1, min(len(a), len(b))
    if a[high - 1] == b[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
