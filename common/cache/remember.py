"""What a worker remembers of a store that failed, so that not every request pays for it again.

Two pure things; time is an argument (monotonic seconds, never going back):

* `Remembered`: keys that answered corrupt, expired or with an error are not asked for again for a short time.
* `Breaker`: a store that fails several calls in a row is left alone for a back-off, then probed by one call::

      closed ──limit failures in a row──> open ──back-off over──> probe ──success──> closed
                                            ^                       └──failure──> open, back-off doubled
                                            └── a probe that never reports counts as open for another back-off

Knows nothing of stores, loops or clocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Remembered:
    """Keys that failed lately: bounded, oldest first out.

    Args:
        keep_s: for how long a failure counts; 0 remembers nothing.
        capacity: most keys kept.
    """

    def __init__(self, keep_s: float, capacity: int = 65536) -> None:
        assert keep_s >= 0 and capacity > 0, f"keep_s {keep_s}, capacity {capacity}"
        self._keep_s = keep_s
        self._capacity = capacity
        self._ends_s: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends_s)

    def add(self, key: Hashable, now_s: float) -> None:
        """Remember a failure from now on."""
        self._ends_s[key] = now_s + self._keep_s
        self._ends_s.move_to_end(key)
        self._drop_old(now_s)

    def has(self, key: Hashable, now_s: float) -> bool:
        """Whether the key failed within the last `keep_s`."""
        return self._ends_s.get(key, now_s) > now_s

    def forget(self, key: Hashable) -> None:
        """The key is good again."""
        self._ends_s.pop(key, None)

    def _drop_old(self, now_s: float) -> None:
        """All entries live equally long, so that those which ended, or are too many, stand at the front."""
        while self._ends_s and (len(self._ends_s) > self._capacity or next(iter(self._ends_s.values())) <= now_s):
            self._ends_s.popitem(last=False)


class Breaker:
    """Decides whether a store may be called.

    Args:
        limit: failures in a row that open it.
        back_off_s: how long it stays open at first; doubles with each failed probe.
        max_back_off_s: where doubling ends.
    """

    def __init__(self, limit: int = 3, back_off_s: float = 1.0, max_back_off_s: float = 30.0) -> None:
        assert limit > 0 and 0 < back_off_s <= max_back_off_s, f"{limit} failures, {back_off_s}..{max_back_off_s} s"
        self._limit = limit
        self._first_back_off_s = back_off_s
        self._max_back_off_s = max_back_off_s
        self._back_off_s = back_off_s
        self._num_failures = 0
        self._open_until_s: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, but for probes."""
        return self._open_until_s is not None

    def admit(self, now_s: float) -> bool:
        """Whether a call may go out now. True while open is a probe: others are refused for another back-off."""
        if self._open_until_s is None:
            return True
        if now_s < self._open_until_s:
            return False
        self._open_until_s = now_s + self._back_off_s
        self._probing = True
        return True

    def succeeded(self) -> None:
        """A call was answered: close."""
        self._num_failures = 0
        self._back_off_s = self._first_back_off_s
        self._open_until_s = None
        self._probing = False

    def failed(self, now_s: float) -> None:
        """A call was not answered. While open, only the probe's failure counts: calls from before say nothing new."""
        if self._open_until_s is None:
            self._num_failures += 1
            if self._num_failures >= self._limit:
                self._open_until_s = now_s + self._back_off_s
        elif self._probing:
            self._probing = False
            self._back_off_s = min(2 * self._back_off_s, self._max_back_off_s)
            self._open_until_s = now_s + self._back_off_s
