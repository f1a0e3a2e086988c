"""How much per second, measured while there was something to do, with old observations fading. Pure: time comes in."""

from __future__ import annotations

from math import exp

FADE_S = 30.0
MIN_BUSY_S = 0.5


class Rate:
    """An amount per busy second. What was seen counts 1/e after `fade_s`, busy or not, and too little says nothing."""

    def __init__(self, fade_s: float = FADE_S) -> None:
        self._fade_s = fade_s
        self._amount = 0.0
        self._busy_s = 0.0
        self._seen_s = 0.0

    def advance(self, now_s: float, busy: bool) -> None:
        """Time has come to `now_s`; since the last call there was something to do (`busy`), or not."""
        passed_s = now_s - self._seen_s
        if passed_s > 0:
            kept = exp(-passed_s / self._fade_s)
            self._amount *= kept
            self._busy_s = self._busy_s * kept + (self._fade_s * (1 - kept) if busy else 0.0)
            self._seen_s = now_s

    def add(self, amount: float) -> None:
        """So much was done just now."""
        self._amount += amount

    def per_s(self, soon: float = 0.0) -> float | None:
        """The rate, if `soon` is about to be done as well; None while too little was seen lately."""
        return (self._amount + soon) / self._busy_s if self._busy_s >= MIN_BUSY_S else None
