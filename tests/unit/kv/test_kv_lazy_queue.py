"""The lazy queue: order by key, and a heap that stays small."""

from __future__ import annotations

from dataclasses import dataclass

from common.kv.lazy_queue import LazyQueue


@dataclass(eq=False)
class Member:
    """The least an owner gives."""

    serial: int


def drain(queue: LazyQueue[Member]) -> list[int]:
    """Serials in the order in which they come out."""
    serials = []
    while (member := queue.peek()) is not None:
        serials.append(member.serial)
        queue.remove(member)
    return serials


def test_the_smallest_key_goes_first() -> None:
    queue: LazyQueue[Member] = LazyQueue()
    for serial, key in ((1, 5), (2, 3), (3, 4)):
        queue.put(Member(serial), key)
    assert len(queue) == 3
    assert drain(queue) == [2, 3, 1]
    assert len(queue) == 0 and queue.peek() is None


def test_ties_go_by_serial_number() -> None:
    queue: LazyQueue[Member] = LazyQueue()
    for serial in (3, 1, 2):
        queue.put(Member(serial), (7, 0))
    assert drain(queue) == [1, 2, 3]


def test_a_member_moves_both_ways_and_back_and_comes_out_once() -> None:
    queue: LazyQueue[Member] = LazyQueue()
    moved, other = Member(1), Member(2)
    queue.put(moved, 1)
    queue.put(other, 2)
    for key, order in ((3, [2, 1]), (0, [1, 2]), (3, [2, 1]), (0, [1, 2])):
        queue.put(moved, key)
        queue.put(moved, key)
        assert (len(queue), queue.key_of(moved)) == (2, key)
        first = queue.peek()
        assert first is not None and first.serial == order[0]
    assert drain(queue) == [1, 2]


def test_a_removed_member_does_not_come_out_until_put_again() -> None:
    queue: LazyQueue[Member] = LazyQueue()
    member, other = Member(1), Member(2)
    queue.put(member, 1)
    queue.put(other, 2)
    queue.remove(member)
    queue.remove(member)
    assert len(queue) == 1 and member not in queue and queue.key_of(member) is None
    assert drain(queue) == [2]
    queue.put(member, 1)
    assert member in queue
    assert drain(queue) == [1], "the same key as before counts again"


def test_the_heap_stays_small_however_often_members_move() -> None:
    queue: LazyQueue[Member] = LazyQueue()
    members = [Member(i) for i in range(10)]
    for now in range(5000):
        queue.put(members[now % 7], now % 3 if now % 2 else now)
    assert len(queue) == 7
    assert len(queue._heap) <= 2 * 7 + 64
    assert len(drain(queue)) == 7
    assert queue._heap == []
