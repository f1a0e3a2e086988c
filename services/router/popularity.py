"""How many running requests share a prefix: what a copy of it on one more worker would be good for.

Counted at a few depths of each prompt only (1, 2, 3, 4, 6, 8, 12, 16, 24, ... blocks), so that a request costs some ten
counters whatever its length. Bounded by what runs. Knows nothing about workers or time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import takewhile


def _depths(limit: int) -> tuple[int, ...]:
    depths = [1, 2, 3, 4]
    while depths[-1] < limit:
        octave = 1 << depths[-1].bit_length() - 1
        depths.append(depths[-1] + max(1, octave // 2))
    return tuple(depths)


DEPTHS = _depths(1 << 16)


class Curve:
    """What of a prompt's blocks a worker would compute for this request alone, by depth."""

    __slots__ = ("_depths", "_shares", "_sums", "total")

    def __init__(self, depths: Sequence[int], shares: Sequence[float], num_blocks: int) -> None:
        """Blocks down to `depths[i]` (from the depth before) count `shares[i]` each; deeper ones count whole.

        `total` is what all `num_blocks` of the prompt count.
        """
        self._depths = depths
        self._shares = shares
        self._sums = [0.0]
        for previous, depth, share in zip((0, *depths), depths, shares, strict=False):
            self._sums.append(self._sums[-1] + (depth - previous) * share)
        self.total = self.blocks(num_blocks)

    def blocks(self, head: int) -> float:
        """What the first `head` blocks count."""
        index = bisect_left(self._depths, head)
        base = self._depths[index - 1] if index else 0
        share = self._shares[index] if index < len(self._shares) else 1.0
        return self._sums[index] + (head - base) * share


class Popularity:
    """Running requests by prefix."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Counters in use."""
        return len(self._counts)

    def enter(self, hashes: Sequence[bytes]) -> None:
        """A request with this prompt runs; the caller calls `leave` with the same hashes once."""
        counts = self._counts
        for depth in DEPTHS[: bisect_right(DEPTHS, len(hashes))]:
            name = hashes[depth - 1]
            counts[name] = counts.get(name, 0) + 1

    def leave(self, hashes: Sequence[bytes]) -> None:
        """The inverse of `enter`."""
        counts = self._counts
        for depth in DEPTHS[: bisect_right(DEPTHS, len(hashes))]:
            name = hashes[depth - 1]
            if counts[name] == 1:
                del counts[name]
            else:
                counts[name] -= 1

    def curve(self, hashes: Sequence[bytes], num_known: int, num_workers: int) -> Curve | None:
        """Each block's cost shared among those that would use a copy, were they spread over all; None: nobody.

        Blocks after the first `num_known` count whole: no worker has them yet, so that those who want them had better
        wait together for the one who computes them. Between the last depth that is counted and `num_known` all is taken
        to be as popular as there: what is held is most often just what is shared.
        """
        if not num_known or hashes[0] not in self._counts:
            return None
        marks = DEPTHS[: bisect_right(DEPTHS, num_known)]
        counts = [*takewhile(bool, (self._counts.get(hashes[depth - 1], 0) for depth in marks))]
        depths = [*marks[: len(counts)]]
        if len(counts) == len(marks):
            depths[-1] = num_known
        return Curve(depths, [1 / (1 + count / num_workers) for count in counts], len(hashes))
