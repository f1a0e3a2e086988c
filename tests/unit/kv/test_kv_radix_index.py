"""The radix index: compression, splits, order of eviction, and a check that notices damage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common.kv.block_pool import BlockPool
from common.kv.events import EventKind, EventLog
from common.kv.hashing import block_hashes, prefix_root
from common.kv.radix_index import RadixIndex

ROOT = prefix_root(1, "")


def path(text: str) -> list[bytes]:
    """Hashes of a path with one block per character."""
    return block_hashes(ROOT, [ord(c) for c in text], 1)


class Rig:
    """An index over a pool, with blocks that are held only while a path is inserted."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.pool = BlockPool(num_blocks)
        self.log = EventLog(list, 1000)
        self.index = RadixIndex(self.pool, self.log)

    def add(self, text: str, *, keep: bool = False) -> list[int]:
        """Use what is there of a path, hold it, insert the rest, and let go of everything unless `keep`."""
        hashes = path(text)
        blocks = self.index.blocks_of(hashes)
        for block in blocks:
            if self.pool.hold(block):
                self.index.pin(block)
        if blocks:
            self.index.use(blocks[-1])
        blocks += self.pool.allocate(len(hashes) - len(blocks))
        self.index.insert(hashes, blocks)
        self.index.check()
        if not keep:
            self.release(blocks)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        self.index.unpin([b for b in blocks if self.pool.release(b) and self.index.has(b)])
        self.index.check()

    def evict(self, count: int) -> list[bytes]:
        """Evict and return the hashes that went, in order."""
        self.log.take()
        self.index.evict(count)
        self.index.check()
        return [e.hash for e in self.log.take() if e.kind is EventKind.REMOVED]

    def has(self, text: str) -> bool:
        return self.index.match(path(text)) == len(text)


def test_match_counts_leading_blocks_and_changes_nothing() -> None:
    rig = Rig()
    rig.add("abcd")
    before = (rig.index.num_nodes, rig.index.snapshot())
    assert [rig.index.match(path(t)) for t in ("abcd", "abcdef", "abx", "b", "")] == [4, 4, 2, 0, 0]
    assert (rig.index.num_nodes, rig.index.snapshot()) == before


def test_a_path_without_branches_is_one_node_however_it_grew() -> None:
    rig = Rig()
    blocks = rig.add("ab", keep=True)
    for text in ("abc", "abcd", "abcde"):
        blocks += rig.pool.allocate(1)
        rig.index.insert(path(text), blocks)
    assert rig.index.num_nodes == 1
    assert len(rig.index) == 5


def test_a_branch_splits_a_node_and_shares_its_head() -> None:
    rig = Rig()
    first = rig.add("abcd")
    second = rig.add("abxy")
    assert rig.index.num_nodes == 3
    assert first[:2] == second[:2]
    assert set(first[2:]).isdisjoint(second[2:])
    assert rig.has("abcd") and rig.has("abxy")


def test_use_splits_where_the_path_ends_so_that_the_rest_stays_old() -> None:
    rig = Rig()
    rig.add("abcd")
    rig.add("z")
    rig.add("ab")
    assert rig.index.num_nodes == 3
    assert rig.evict(2) == list(reversed(path("abcd")[2:]))
    assert rig.evict(1) == path("z")


def test_an_indexed_hash_keeps_its_block() -> None:
    rig = Rig()
    first = rig.add("ab")
    copy = rig.pool.allocate(3)
    rig.index.insert(path("abc"), copy)
    rig.index.check()
    assert rig.index.blocks_of(path("abc")) == [*first, copy[2]]
    assert not rig.index.has(copy[0])


def test_eviction_goes_by_last_use_from_the_tail_and_takes_exactly_what_is_asked() -> None:
    rig = Rig()
    rig.add("abc")
    rig.add("xyz")
    rig.add("abc")
    assert rig.evict(2) == [path("xyz")[2], path("xyz")[1]]
    assert rig.evict(2) == [path("xyz")[0], path("abc")[2]]
    assert rig.index.evict(99) == 2
    assert (len(rig.index), rig.index.num_nodes, rig.pool.num_free) == (0, 0, 64)


def test_no_parent_goes_before_its_child() -> None:
    rig = Rig()
    rig.add("ab1")
    rig.add("ab2")
    gone = rig.evict(99)
    assert set(gone[:2]) == {path("ab1")[2], path("ab2")[2]}
    assert gone[2:] == list(reversed(path("ab")))


def test_release_counts_as_use() -> None:
    rig = Rig()
    held = rig.add("a", keep=True)
    rig.add("b")
    rig.release(held)
    assert rig.evict(2) == [*path("b"), *path("a")]


def test_release_in_the_middle_of_a_node_counts_as_use_too() -> None:
    """Blocks a and b of the node abc are held by two; the first lets go, so c is as recent as that."""
    rig = Rig()
    first = rig.add("abc", keep=True)
    rig.release(first[2:])
    rig.add("z")
    rig.release(first[:1])
    assert rig.index.num_nodes == 2
    assert rig.evict(2) == [*path("z"), path("abc")[2]]
    rig.release(first[1:2])


def test_held_blocks_and_those_above_them_stay() -> None:
    rig = Rig()
    rig.add("ab")
    copy = rig.pool.allocate(3)
    rig.index.insert(path("abc"), copy)
    rig.release(copy[:2])
    assert rig.index.num_evictable == 0, "c is held, so a and b stay although nobody holds them"
    assert rig.evict(99) == []
    rig.release(copy[2:])
    assert rig.index.num_evictable == 3
    assert rig.evict(1) == path("abc")[2:]


def test_the_tail_of_a_partly_held_node_can_go() -> None:
    rig = Rig()
    blocks = rig.add("abcd", keep=True)
    rig.release(blocks[2:])
    assert rig.index.num_evictable == 2
    assert rig.evict(99) == list(reversed(path("abcd")[2:]))
    assert rig.has("ab")


def test_snapshot_has_parents_first() -> None:
    rig = Rig()
    for text in ("abc", "abd", "axy", "q"):
        rig.add(text)
    seen = {b""}
    for block_hash, parent in rig.index.snapshot():
        assert parent in seen
        seen.add(block_hash)
    assert len(seen) - 1 == len(rig.index) == 7


def test_blocks_above_a_branch_count_as_shared() -> None:
    rig = Rig()
    for text, shared in (("abcd", 0), ("abxy", 2), ("abxz", 3), ("ab", 3), ("q", 3)):
        rig.add(text)
        assert rig.index.count_shared() == shared


def test_a_run_without_a_branch_of_its_own_is_shared_if_one_lies_below_it() -> None:
    rig = Rig()
    for text in ("abcd", "ab", "abcde", "abcdf"):
        rig.add(text)
    assert rig.index.count_shared() == 4


def test_events_name_the_parent() -> None:
    rig = Rig()
    rig.add("ab")
    rig.add("ac")
    parents = {e.hash: e.parent for e in rig.log.take()}
    a, b = path("ab")
    assert parents == {a: b"", b: a, path("ac")[1]: a}


def test_forget_drops_a_subtree_and_leaves_held_blocks_with_their_holders() -> None:
    rig = Rig()
    held = rig.add("abcd", keep=True)
    rig.add("abxy")
    rig.add("q")
    rig.index.forget(path("ab")[1])
    rig.index.check()
    rig.pool.check()
    assert [rig.index.match(path(t)) for t in ("abcd", "abxy", "q")] == [1, 1, 1]
    assert rig.pool.num_held == 4
    for block in held:
        rig.pool.release(block)
    rig.pool.check()
    rig.index.forget(path("nowhere")[-1])
    assert len(rig.index) == 2


def test_the_same_calls_evict_the_same_blocks() -> None:
    orders = []
    for _ in range(2):
        rig = Rig()
        for text in ("abc", "abd", "xyz", "ab", "xq"):
            rig.add(text)
        orders.append(rig.evict(99))
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index._block_of.popitem(),
        lambda index: index._depth_of.update({0: 7}),
        lambda index: setattr(index, "num_evictable", 1),
        lambda index: setattr(index, "num_nodes", 1),
        lambda index: setattr(index._node_of[0], "pinned", True),
        lambda index: setattr(index._node_of[0], "num_pinned_children", 1),
        lambda index: setattr(index._node_of[2], "last_held", 0),
        lambda index: setattr(index._node_of[2], "used", 99),
        lambda index: setattr(index._node_of[2], "protected", True),
        lambda index: setattr(index._node_of[2], "priority", 1),
        lambda index: setattr(index._order, "num_protected", 1),
        lambda index: setattr(index._node_of[2], "start", 0),
    ],
)
def test_check_notices_damage(damage) -> None:  # type: ignore[no-untyped-def]
    rig = Rig()
    rig.add("abc")
    rig.add("abd")
    rig.index.check()
    damage(rig.index)
    with pytest.raises(AssertionError):
        rig.index.check()
