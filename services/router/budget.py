"""How many retries the router as a whole may make, so that a sick fleet is not hit by a storm of them.

A bucket of retries: every request that comes puts a share of one in, every retry before a first token takes one out,
and it never holds more than its burst. So the fleet never gets more than `1 + share` times the calls of its clients,
but for one burst (a worker's death fails everything it ran at once). Streams that run already are worth more than that:
moving them takes nothing. Pure: knows no time; a bound on attempts per choice holds beside it.
"""

from __future__ import annotations


class RetryBudget:
    """One bucket, full at the start.

    Args:
        share: of a retry that every request brings.
        burst: most retries it holds.
    """

    def __init__(self, share: float, burst: int) -> None:
        self._share = share
        self._burst = burst
        self._level = float(burst)

    @property
    def num_left(self) -> int:
        """Retries that may be made now."""
        return int(self._level)

    def request(self) -> None:
        """A request came."""
        self._level = min(self._level + self._share, self._burst)

    def take(self) -> bool:
        """Pay for one retry; False when the bucket has none, and then none may be made."""
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True
