"""The eviction queue: order of last use, and a heap that stays small."""

from __future__ import annotations

from dataclasses import dataclass

from common.kv.eviction import LruQueue


@dataclass
class Leaf:
    """The least an owner gives."""

    serial: int
    used: int
    queued: int = -1


def drain(queue: LruQueue[Leaf]) -> list[int]:
    """Serials in the order in which they come out."""
    serials = []
    while (leaf := queue.pop()) is not None:
        serials.append(leaf.serial)
    return serials


def test_the_least_recently_used_leaf_goes_first() -> None:
    queue: LruQueue[Leaf] = LruQueue()
    for leaf in (Leaf(1, 5), Leaf(2, 3), Leaf(3, 4)):
        queue.put(leaf)
    assert len(queue) == 3
    assert drain(queue) == [2, 3, 1]
    assert len(queue) == 0 and queue.pop() is None


def test_ties_go_by_serial_number() -> None:
    queue: LruQueue[Leaf] = LruQueue()
    for serial in (3, 1, 2):
        queue.put(Leaf(serial, 7))
    assert drain(queue) == [1, 2, 3]


def test_a_leaf_used_again_goes_later_and_comes_out_once() -> None:
    queue: LruQueue[Leaf] = LruQueue()
    old, new = Leaf(1, 1), Leaf(2, 2)
    queue.put(old)
    queue.put(new)
    old.used = 3
    queue.put(old)
    queue.put(old)
    assert len(queue) == 2
    assert drain(queue) == [2, 1]


def test_a_removed_leaf_does_not_come_out_until_put_again() -> None:
    queue: LruQueue[Leaf] = LruQueue()
    leaf, other = Leaf(1, 1), Leaf(2, 2)
    queue.put(leaf)
    queue.put(other)
    queue.remove(leaf)
    queue.remove(leaf)
    assert len(queue) == 1
    assert drain(queue) == [2]
    leaf.used = 9
    queue.put(leaf)
    assert drain(queue) == [1]


def test_the_heap_stays_small_however_often_leaves_are_used() -> None:
    queue: LruQueue[Leaf] = LruQueue()
    leaves = [Leaf(i, i) for i in range(10)]
    for now in range(10, 5000):
        leaf = leaves[now % 7]
        leaf.used = now
        queue.put(leaf)
    assert len(queue) == 7
    assert len(queue._heap) <= 2 * 7 + 64
    assert len(drain(queue)) == 7
