"""Which prefix hashes have a block here, and which of those blocks go first when room is needed.

A path-compressed tree: a node is a run of blocks that were always stored and used together; it is split where one path
ends inside it or leaves it, and what follows it gets a node of its own once the run has been used again::

    root -- [h0 h1 h2] -+- [h3 h4 h5]          (a conversation)
                        +- [h3' h4']           (another one with the same system prompt)

The tree is there for eviction. Matching needs no walk: a prefix hash names its whole history and the index is closed
under prefixes, so the length of a match is found by bisection over one dictionary.

Invariants: an entry's parent is in the index; one block per entry and one entry per block; blocks leave from the tail
of a leaf only, so no parent goes before its child; a held block and everything above it stays. `num_evictable` counts
exactly the blocks that eviction can free now. A run above another was reused and ranks at least as high as it by
priority, because every use and every insertion is one of the whole path.
Costs: match O(log n) in the length of the path, insert O(new blocks + split), eviction O(log nodes) per node touched.
Who holds a block is the pool's knowledge; the owner of both tells the index when that changes (`pin`, `unpin`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.kv.block_pool import BlockPool
from common.kv.events import EventLog
from common.kv.eviction import EvictionOrder, EvictionPolicy
from common.kv.radix_node import Node

OnEvict = Callable[[Sequence[bytes], Sequence[int], int], None]
"""Told of an eviction before it happens: hashes and blocks of the whole path, and how many of its tail go now."""


class RadixIndex:
    """Prefix hash -> block id, with eviction of what nobody holds."""

    def __init__(self, pool: BlockPool, log: EventLog, policy: EvictionPolicy = EvictionPolicy.LRU) -> None:
        """Start empty.

        Args:
            pool: tells which blocks are held; the index sets and clears its cached flags.
            log: receives every entry that comes or goes.
            policy: which leaf goes first.
        """
        self._pool = pool
        self._log = log
        self._root = Node(None, 0, 0)
        self._block_of: dict[bytes, int] = {}
        self._node_of: dict[int, Node] = {}
        self._depth_of: dict[int, int] = {}
        self._order: EvictionOrder[Node] = EvictionOrder(policy, pool.num_blocks)
        self._num_created = 0
        self.num_nodes = 0
        self.num_evictable = 0

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._block_of)

    @property
    def policy(self) -> EvictionPolicy:
        """Which leaf goes first."""
        return self._order.policy

    def has(self, block: int) -> bool:
        """Tell whether the block is in the index."""
        return block in self._node_of

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading hashes of one path are in the index; changes nothing."""
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in self._block_of:
                low = middle + 1
            else:
                high = middle
        return low

    def match_reused(self, hashes: Sequence[bytes]) -> int:
        """Return how many leading hashes of one path were used after they were inserted; changes nothing."""
        low, high = 0, self.match(hashes)
        while low < high:
            middle = (low + high) // 2
            if self._node_of[self._block_of[hashes[middle]]].reused:
                low = middle + 1
            else:
                high = middle
        return low

    def blocks_of(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks of the matching head of `hashes`; changes nothing."""
        return [self._block_of[h] for h in hashes[: self.match(hashes)]]

    def priority_of(self, hashes: Sequence[bytes]) -> int:
        """Return the priority of the last matching block of one path, 0 when nothing matches; changes nothing."""
        known = self.match(hashes)
        return self._node_of[self._block_of[hashes[known - 1]]].priority if known else 0

    def use(self, block: int, priority: int = 0) -> None:
        """Count a use of the path that ends with an indexed block."""
        tip = self._node_ending_at(block)
        self._order.use(tip.ancestry(), priority)
        self._queue(tip)

    def demote(self, hashes: Sequence[bytes]) -> None:
        """Make the matching head of `hashes` the first to go among equals."""
        known = self.match(hashes)
        if known:
            for node in self._node_ending_at(self._block_of[hashes[known - 1]]).ancestry():
                self._order.demote(node)

    def insert(self, hashes: Sequence[bytes], blocks: Sequence[int], priority: int = 0) -> None:
        """Add the entries of one path, given from its first block on; the blocks of new entries must be held.

        Entries that exist keep their block: two requests that computed one prefix at the same time leave one entry.
        The path ends before the first block that was forgotten while somebody held it.
        """
        assert len(hashes) == len(blocks), f"{len(hashes)} hashes for {len(blocks)} blocks"
        hashes = hashes[: self._pool.num_trusted(blocks)]
        known = self.match(hashes)
        if known:
            self._prefer(self._block_of[hashes[known - 1]], priority)
        if known == len(hashes):
            return
        node = self._node_for(hashes, known, priority)
        parent = hashes[known - 1] if known else b""
        for depth in range(known, len(hashes)):
            block, block_hash = blocks[depth], hashes[depth]
            self._pool.cache(block)
            self._block_of[block_hash] = block
            self._node_of[block] = node
            self._depth_of[block] = depth
            node.hashes.append(block_hash)
            node.blocks.append(block)
            self._log.stored(block_hash, parent)
            parent = block_hash
        node.last_held = len(node.blocks) - 1
        self._settle(node)

    def pin(self, block: int) -> None:
        """Note that an indexed block became held."""
        node = self._node_of[block]
        offset = self._depth_of[block] - node.start
        if offset > node.last_held:
            node.last_held = offset
            self._settle(node)

    def unpin(self, blocks: Sequence[int], *, touch: bool = True) -> None:
        """Note that indexed blocks lost their last reference, all at once; if `touch`, their runs are recent now."""
        now = self._order.tick()
        touched: Node | None = None
        for block in blocks:
            node = self._node_of[block]
            if touch and node is not touched:
                touched = node
                self._order.touch(node, now)
            if self._depth_of[block] - node.start == node.last_held:
                node.last_held = node.find_last_held(self._pool, node.last_held - 1)
                self._settle(node)
            else:
                self._queue(node)

    def evict(self, count: int, on_evict: OnEvict | None = None) -> int:
        """Drop up to `count` unheld blocks to make room, leaf by leaf from the tail; return how many."""
        dropped = self._drop_leaves(count, on_evict)
        self._order.note_evicted(dropped)
        return dropped

    def flush(self) -> int:
        """Drop every block that no held one builds on; return how many."""
        return self._drop_leaves(self.num_evictable, None)

    def forget(self, block_hash: bytes) -> None:
        """Drop an entry and all that follow it, held or not.

        Held blocks stay with their holders, and no `insert` takes them in again.
        """
        block = self._block_of.get(block_hash)
        if block is None:
            return
        node = self._node_of[block]
        offset = self._depth_of[block] - node.start
        if offset:
            self._split(node, offset)
        for below in reversed(list(node.walk())):
            below.last_held = -1
            self._settle(below)
            for held in below.blocks:
                self._pool.distrust(held)
            self._drop_tail(below, len(below.blocks))

    def set_policy(self, policy: EvictionPolicy) -> None:
        """Let another policy decide from now on, by what is known of every run: O(nodes)."""
        self._order.set_policy(policy, self._root.walk())

    def snapshot(self) -> list[tuple[bytes, bytes]]:
        """Return (hash, parent hash) of every entry, parents first; b"" is the parent of a first block."""
        entries: list[tuple[bytes, bytes]] = []
        for node in self._root.walk():
            parent = node.parent.hashes[-1] if node.parent is not None and node.parent.hashes else b""
            for block_hash in node.hashes:
                entries.append((block_hash, parent))
                parent = block_hash
        return entries

    def count_shared(self) -> int:
        """Number of entries above a branch, so common to several paths: O(nodes)."""
        above_branch: set[Node] = set()
        for node in reversed(list(self._root.walk())):
            if len(node.children) > 1 or not above_branch.isdisjoint(node.children.values()):
                above_branch.add(node)
        return sum(len(node.blocks) for node in above_branch)

    def check(self) -> None:
        """Assert the invariants by walking the whole tree."""
        evictable = num_nodes = 0
        for node in self._root.walk():
            self._check_node(node)
            evictable += node.evictable
            num_nodes += node is not self._root
        assert evictable == self.num_evictable, f"{evictable} blocks evictable, noted {self.num_evictable}"
        assert num_nodes == self.num_nodes, f"{num_nodes} nodes, noted {self.num_nodes}"
        counts = (len(self._block_of), len(self._node_of), len(self._depth_of), len(self.snapshot()))
        assert len(set(counts)) == 1, f"entries by hash, node, depth, tree: {counts}"
        self._order.check(self._root.walk())

    def _check_node(self, node: Node) -> None:
        for offset, (block_hash, block) in enumerate(zip(node.hashes, node.blocks, strict=True)):
            filed = self._block_of.get(block_hash), self._node_of.get(block)
            assert filed == (block, node), f"block {block} of node {node.serial} is misfiled: {filed}"
            assert self._depth_of[block] == node.start + offset, f"block {block} is not at depth {node.start + offset}"
        node.check(self._pool)
        if node.evictable and not node.children:
            assert self._order.is_in_place(node), f"leaf {node.serial} is not queued under its rank"
        for child in node.children.values():
            above = (node is self._root) or (node.reused >= child.reused and node.priority >= child.priority)
            assert above, f"node {child.serial} ranks above its parent {node.serial}"

    def _create(self, parent: Node, start: int) -> Node:
        self._num_created += 1
        self.num_nodes += 1
        return Node(parent, start, self._num_created)

    def _prefer(self, block: int, priority: int) -> None:
        """Raise the priority of the path that ends with `block`."""
        if self._node_of[block].priority < priority:
            self._order.prefer(self._node_ending_at(block).ancestry(), priority)

    def _node_for(self, hashes: Sequence[bytes], known: int, priority: int) -> Node:
        """Return the node that new blocks after the first `known` ones of a path go to, which may be a new one."""
        tip = self._node_ending_at(self._block_of[hashes[known - 1]]) if known else self._root
        node = tip
        if tip is self._root or tip.children or not self._order.suits(tip, priority):
            self._order.remove(tip)
            node = self._create(tip, known)
            tip.children[hashes[known]] = node
        self._order.admit(node, priority)
        return node

    def _node_ending_at(self, block: int) -> Node:
        """Return the node whose last block is `block`, splitting the one that has it inside."""
        node = self._node_of[block]
        length = self._depth_of[block] - node.start + 1
        return node if length == len(node.blocks) else self._split(node, length)

    def _split(self, lower: Node, at: int) -> Node:
        """Move the first `at` blocks of a node into a new parent of it, and return that parent."""
        assert lower.parent is not None, "the root has nothing to split"
        upper = self._create(lower.parent, lower.start)
        lower.move_head(upper, at, self._pool)
        self._order.split(upper, lower)
        for block in upper.blocks:
            self._node_of[block] = upper
        return upper

    def _settle(self, node: Node) -> None:
        """Bring `pinned` and `evictable` of a node up to date, and of those above it that this changes."""
        while node.parent is not None:
            evictable = node.count_evictable()
            self.num_evictable += evictable - node.evictable
            node.evictable = evictable
            self._queue(node)
            pinned = node.must_stay()
            if pinned == node.pinned:
                return
            node.pinned = pinned
            node.parent.num_pinned_children += 1 if pinned else -1
            node = node.parent

    def _queue(self, node: Node) -> None:
        """Put a leaf that has something to evict into the eviction queue."""
        if node.evictable and not node.children:
            self._order.put(node)

    def _drop_leaves(self, count: int, on_evict: OnEvict | None) -> int:
        dropped = 0
        while dropped < count and (node := self._order.first()) is not None:
            num_tail = min(count - dropped, node.evictable)
            if not num_tail:
                self._order.remove(node)
                continue
            if on_evict is not None:
                on_evict(*node.path(), num_tail)
            self._drop_tail(node, num_tail)
            dropped += num_tail
        return dropped

    def _drop_tail(self, node: Node, count: int) -> None:
        """Remove the last `count` blocks of a leaf from the index, and the leaf itself when it is empty then."""
        parent = node.parent
        assert parent is not None and not node.children, f"node {node.serial} is no leaf"
        self._order.shrink(node, count)
        for _ in range(count):
            block, block_hash = node.blocks.pop(), node.hashes.pop()
            del self._block_of[block_hash], self._node_of[block], self._depth_of[block]
            self._pool.uncache(block)
            self._log.removed(block_hash)
            if not node.blocks:
                del parent.children[block_hash]
        self._settle(node)
        if not node.blocks:
            self.num_nodes -= 1
            node.parent = None
            self._settle(parent)
