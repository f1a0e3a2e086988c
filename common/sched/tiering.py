"""What the scheduler needs to know of the tiers below L1: what may be loaded, and whom to tell what.

The scheduler decides *that* blocks are loaded and for whom; whoever implements `LowerTiers` knows where they lie and
moves them. A `Load` names its source blocks, which are held until it is done, and its target by index in the request's
table: jobs carry names and block ids, never places in a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.sched.request import Request


@dataclass(slots=True, frozen=True)
class Load:
    """Blocks to copy from L2 into the table of a LANDING request.

    Attributes:
        request: the blocks go into its table, from `first_block` on.
        first_block: index in the table.
        sources: L2 block ids, held until `LowerTiers.release`.
    """

    request: Request
    first_block: int
    sources: Sequence[int]


class LowerTiers(Protocol):
    """The tiers below L1, as the scheduler sees them. Calls must not block and must not call back."""

    def acquire(self, hashes: Sequence[bytes], num_here: int, *, touch: bool = True, priority: int = 0) -> list[int]:
        """Hold and return the L2 blocks of a path from block `num_here` on, as far as they reach.

        It counts as a use, on behalf of a request of that priority, unless `touch` is False; so does the release.
        """

    def release(self, blocks: Sequence[int], *, touch: bool = True) -> None:
        """Drop the references of an `acquire`."""

    def touched(self, hashes: Sequence[bytes], priority: int) -> None:
        """The path is in L1 and was stored or found there just now; the write policy decides what follows."""

    def park(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """The request of these blocks loses them: keep a copy, made before this returns."""

    def distrust(self, hashes: Sequence[bytes]) -> None:
        """L1 has forgotten the first block of a path and all that build on it, since their KV may be damaged."""


class NothingBelow:
    """`LowerTiers` of a worker that has L1 only."""

    def acquire(self, hashes: Sequence[bytes], num_here: int, *, touch: bool = True, priority: int = 0) -> list[int]:
        """Nothing is there."""
        return []

    def release(self, blocks: Sequence[int], *, touch: bool = True) -> None:
        """Nothing was held."""
        assert not blocks, f"release of L2 blocks {blocks[:8]}, and there is no L2"

    def touched(self, hashes: Sequence[bytes], priority: int) -> None:
        """Nobody wants to know."""

    def park(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """There is no place for a copy."""

    def distrust(self, hashes: Sequence[bytes]) -> None:
        """There is no copy."""
