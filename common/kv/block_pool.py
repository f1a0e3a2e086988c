"""The life of a block: who references it, and when its bytes may be written again.

Every block is in exactly one state::

              allocate                 release, not cached
      free ------------------> held ------------------------> free
                               ^  |  release, cached
                          hold |  v
                              cached --- uncache (eviction) -> free

Invariants: ``free + cached + held == total``; a block has references exactly while it is held; its generation counts
how often it became free, so a reader who remembers the generation can tell that the bytes are no longer the ones it
was promised. All operations are O(1) per block. Misuse is a bug: an assert. Knows nothing about hashes, tokens or
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Generations(Protocol):
    """A mutable row of numbers: a list, or memory that other processes see."""

    def __len__(self) -> int: ...

    def __getitem__(self, block: int, /) -> int: ...

    def __setitem__(self, block: int, generation: int, /) -> None: ...


class BlockPool:
    """Reference counts, cached flags and generations of `num_blocks` blocks with ids 0 .. num_blocks - 1."""

    def __init__(self, num_blocks: int, generations: Generations | None = None) -> None:
        """Start with every block free.

        Args:
            num_blocks: how many blocks.
            generations: where the generations are kept, one per block, for those who share them with other processes.
        """
        assert num_blocks > 0, f"num_blocks {num_blocks}"
        self.num_blocks = num_blocks
        self.num_cached = 0
        self.num_held = 0
        self._references = [0] * num_blocks
        self._in_index = [False] * num_blocks
        self._distrusted: set[int] = set()
        self._generations: Generations = [0] * num_blocks if generations is None else generations
        assert len(self._generations) == num_blocks, f"{len(self._generations)} generations"
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Number of blocks that nobody references and the index does not know."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference; the caller has made sure that they exist."""
        assert 0 <= count <= len(self._free), f"allocate {count} of {len(self._free)} free blocks"
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        self.num_held += count
        return blocks

    def hold(self, block: int) -> bool:
        """Add a reference to a held or cached block; True when it was only cached before."""
        references = self._references[block]
        assert references > 0 or self._in_index[block], f"hold of free block {block}"
        self._references[block] = references + 1
        if references:
            return False
        self.num_cached -= 1
        self.num_held += 1
        return True

    def release(self, block: int) -> bool:
        """Drop one reference; True when it was the last: the block is then cached if the index has it, else free."""
        references = self._references[block]
        assert references > 0, f"release of block {block}, which nobody holds"
        self._references[block] = references - 1
        if references > 1:
            return False
        self.num_held -= 1
        if self._in_index[block]:
            self.num_cached += 1
        else:
            self._set_free(block)
        return True

    def distrust(self, block: int) -> None:
        """Note that the bytes of a block must not be indexed any more, whoever holds it; forgotten when it is free."""
        if self._references[block] > 0:
            self._distrusted.add(block)

    def num_trusted(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that may be indexed."""
        if not self._distrusted:
            return len(blocks)
        return next((i for i, block in enumerate(blocks) if block in self._distrusted), len(blocks))

    def cache(self, block: int) -> None:
        """Note that the index has the held block: it outlives its references."""
        assert self._references[block] > 0, f"cache of block {block}, which nobody holds"
        assert not self._in_index[block], f"block {block} is in the index already"
        self._in_index[block] = True

    def uncache(self, block: int) -> None:
        """Note that the index let go of a block: it is free now, or once its last reference is released."""
        assert self._in_index[block], f"block {block} is not in the index"
        self._in_index[block] = False
        if self._references[block] == 0:
            self.num_cached -= 1
            self._set_free(block)

    def is_held(self, block: int) -> bool:
        """Tell whether anybody references the block."""
        return self._references[block] > 0

    def num_references(self, block: int) -> int:
        """Number of references to the block."""
        return self._references[block]

    def generation(self, block: int) -> int:
        """How often the block became free so far."""
        return self._generations[block]

    def check(self) -> None:
        """Assert the conservation law by recounting: O(num_blocks)."""
        held = sum(count > 0 for count in self._references)
        cached = sum(indexed and count == 0 for count, indexed in zip(self._references, self._in_index, strict=True))
        free = set(self._free)
        assert len(free) == len(self._free), f"{len(self._free) - len(free)} blocks are free twice"
        assert (held, cached) == (self.num_held, self.num_cached), (
            f"counted {held} held and {cached} cached, noted {self.num_held} and {self.num_cached}"
        )
        assert len(free) + cached + held == self.num_blocks, (
            f"{len(free)} free + {cached} cached + {held} held != {self.num_blocks}"
        )
        unfree = [b for b in free if self._references[b] or self._in_index[b]]
        assert not unfree, f"free blocks in use: {unfree[:8]}"

    def _set_free(self, block: int) -> None:
        self._generations[block] += 1
        self._distrusted.discard(block)
        self._free.append(block)
