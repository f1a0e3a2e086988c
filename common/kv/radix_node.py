"""A node of the radix index: a run of blocks with one path through it, and which of them must stay.

Invariants: a node without blocks is the root or has left the tree; children are keyed by their first hash and start
where the node ends; `pinned` and `evictable` say what `last_held` and the children amount to, as last settled by the
index. All blocks of a node were inserted and used alike, so they have one rank. Knows nothing about lookups, what the
rank means, or nodes beyond its neighbours (`walk` and `path` follow the links).
"""

from __future__ import annotations

from collections.abc import Iterator

from common.kv.block_pool import BlockPool


class Node:
    """A run of blocks.

    Attributes:
        hashes, blocks: the entries, in path order.
        start: number of blocks before the first one on its path.
        parent: None for the root and for a node that left the tree.
        children: by first hash.
        serial: order of creation.
        used, uses, age, reused, protected, priority: belong to the eviction order (see `eviction.Ranked`).
        last_held: offset of the last held block, -1 when none is.
        num_pinned_children: children with a held block in their subtree.
        pinned, evictable: whether it must stay for a held block in it or below; how many blocks of its tail need not.
    """

    __slots__ = (
        "age",
        "blocks",
        "children",
        "evictable",
        "hashes",
        "last_held",
        "num_pinned_children",
        "parent",
        "pinned",
        "priority",
        "protected",
        "reused",
        "serial",
        "start",
        "used",
        "uses",
    )

    def __init__(self, parent: Node | None, start: int, serial: int) -> None:
        """Make a node without blocks; its parent does not know it yet."""
        self.hashes: list[bytes] = []
        self.blocks: list[int] = []
        self.start = start
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.serial = serial
        self.used = self.age = self.priority = 0
        self.uses = 1
        self.reused = self.protected = False
        self.last_held = -1
        self.num_pinned_children = 0
        self.pinned = False
        self.evictable = 0

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first, in order of insertion."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def ancestry(self) -> list[Node]:
        """Return this node and those above it up to the root, which is left out."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def path(self) -> tuple[list[bytes], list[int]]:
        """Return hashes and blocks from the first block of the path to the last one of this node."""
        hashes: list[bytes] = []
        blocks: list[int] = []
        for node in reversed(self.ancestry()):
            hashes += node.hashes
            blocks += node.blocks
        return hashes, blocks

    def count_evictable(self) -> int:
        """Return the number of blocks after the last held one, 0 if a child must stay."""
        return 0 if self.num_pinned_children else len(self.blocks) - 1 - self.last_held

    def must_stay(self) -> bool:
        """Tell whether a block of it, or of a node below, is held."""
        return self.num_pinned_children > 0 or self.last_held >= 0

    def find_last_held(self, pool: BlockPool, offset: int) -> int:
        """Return the offset of the last held block at or before `offset`, -1 when there is none."""
        while offset >= 0 and not pool.is_held(self.blocks[offset]):
            offset -= 1
        return offset

    def move_head(self, upper: Node, at: int, pool: BlockPool) -> None:
        """Move the first `at` blocks to `upper`, an empty node that takes this one's place above it.

        Pins and evictable blocks are shared between the two; nothing changes for the nodes around them.
        """
        assert self.parent is not None and 0 < at < len(self.blocks), f"split {len(self.blocks)} blocks at {at}"
        upper.hashes, self.hashes = self.hashes[:at], self.hashes[at:]
        upper.blocks, self.blocks = self.blocks[:at], self.blocks[at:]
        self.parent.children[upper.hashes[0]] = upper
        upper.children[self.hashes[0]] = self
        self.parent = upper
        self.start += at
        upper.pinned = self.pinned
        upper.last_held = upper.find_last_held(pool, min(self.last_held, at - 1))
        self.last_held = max(self.last_held - at, -1)
        self.pinned = self.must_stay()
        upper.num_pinned_children = int(self.pinned)
        total = self.evictable
        upper.evictable, self.evictable = upper.count_evictable(), self.count_evictable()
        assert upper.evictable + self.evictable == total, f"split {total} into {upper.evictable}, {self.evictable}"

    def check(self, pool: BlockPool) -> None:
        """Assert the invariants of the node and its links."""
        end = self.start + len(self.blocks)
        for block_hash, child in self.children.items():
            assert child.parent is self and child.start == end, f"node {child.serial} is misplaced"
            assert child.hashes[0] == block_hash, f"node {child.serial} is misnamed"
        pinned_children = sum(child.pinned for child in self.children.values())
        assert pinned_children == self.num_pinned_children, f"{pinned_children} != {self.num_pinned_children} pinned"
        if self.parent is None:
            return
        assert self.blocks, f"node {self.serial} is empty"
        last_held = self.find_last_held(pool, len(self.blocks) - 1)
        stale = (self.last_held, self.pinned, self.evictable) != (last_held, self.must_stay(), self.count_evictable())
        assert not stale, f"node {self.serial}: {self.last_held}, {self.pinned}, {self.evictable} is stale"
