"""Latencies of recent requests and their high percentiles, for whoever must act on what clients see now.

Pure; time is an argument. Invariants: at most MAX_SAMPLES are kept; none that is older than the window counts.
"""

from __future__ import annotations

from collections import deque

MAX_SAMPLES = 2048
MIN_SAMPLES = 5


class RecentLatency:
    """Samples of the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def add(self, now_s: float, value_s: float) -> None:
        """Take in a sample."""
        self._samples.append((now_s, value_s))

    def percentile(self, ratio: float, now_s: float) -> float | None:
        """The value that a share `ratio` of the samples does not exceed; None when there are fewer than MIN_SAMPLES."""
        while self._samples and self._samples[0][0] < now_s - self._window_s:
            self._samples.popleft()
        if len(self._samples) < MIN_SAMPLES:
            return None
        values = sorted(value for _, value in self._samples)
        return values[min(int(ratio * len(values)), len(values) - 1)]
