"""Which objects are asked for so often that a second copy pays. Pure; time is an argument.

Counts within a window; at its end, or when too many names are counted, all counts begin anew. So it is bounded, and
what is hot is noticed again in every window, should its copy have gone.
"""

from __future__ import annotations

from collections.abc import Iterable


class Hotness:
    """Counts lookups.

    Args:
        threshold: lookups within a window that make an object hot.
        window_s: length of a window.
        max_names: most names that are counted at a time.
    """

    def __init__(self, threshold: int, window_s: float = 10.0, max_names: int = 200_000) -> None:
        self._threshold = threshold
        self._window_s = window_s
        self._max_names = max_names
        self._counts: dict[bytes, int] = {}
        self._ends_s = 0.0

    def count(self, names: Iterable[bytes], now_s: float) -> list[bytes]:
        """Count lookups; returns the names that have become hot by them."""
        if now_s >= self._ends_s or len(self._counts) >= self._max_names:
            self._counts = {}
            self._ends_s = now_s + self._window_s
        counts, threshold = self._counts, self._threshold
        hot: list[bytes] = []
        for name in names:
            number = counts.get(name, 0) + 1
            counts[name] = number
            if number == threshold:
                hot.append(name)
        return hot
