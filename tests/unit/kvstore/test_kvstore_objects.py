"""The objects of a node: commit, eviction by rank, the disk, quotas, removal under pins."""

from __future__ import annotations

import pytest

from common.cache.kvstore_arena import Arena
from common.cache.kvstore_wire import name_of
from common.cache.l3 import HEADER_BYTES, BlockKey
from services.kvstore.limits import Limits, Refusal
from services.kvstore.memory import Object, Rank
from services.kvstore.objects import Objects

PAGE, NUM_PAGES, LENGTH = 256, 8, 256
SIZE = HEADER_BYTES + LENGTH
NO_LIMIT = 1 << 30


def name(number: int, space: bytes = b"n") -> bytes:
    return name_of(BlockKey(space, bytes([number])))


class Node:
    """A table over 8 pages; objects of one page unless told otherwise."""

    def __init__(self, **limits: object) -> None:
        self.arena = Arena(NUM_PAGES * PAGE, PAGE)
        given = {"memory_bytes": NO_LIMIT, "max_staged_bytes": NO_LIMIT, **limits}
        self.objects = Objects(self.arena, Limits(**given))  # type: ignore[arg-type]

    def put(self, number: int, length: int = LENGTH, space: bytes = b"n", rank: Rank = Rank.PLAIN) -> Refusal | None:
        new = Object(name(number, space), length, b"h" * HEADER_BYTES, number, rank=rank)
        refusal = self.objects.stage(new)
        if refusal is None:
            self.objects.commit(new)
        return refusal

    def write(self, number: int) -> None:
        """As the log does."""
        one = self.get(number)
        self.objects.pin(one)
        self.objects.written(one)
        self.objects.unpin(one)

    def get(self, number: int, space: bytes = b"n") -> Object:
        one = self.objects.get(name(number, space))
        assert one is not None
        return one

    def there(self, limit: int = 30) -> list[int]:
        return [number for number in range(limit) if self.objects.get(name(number)) is not None]


def test_staged_objects_are_invisible_until_committed() -> None:
    node = Node()
    new = Object(name(1), LENGTH, b"h" * HEADER_BYTES)
    assert node.objects.stage(new) is None
    assert node.objects.get(name(1)) is None and len(node.objects) == 0 and node.objects.num_bytes == 0
    assert node.objects.staged_bytes == SIZE
    assert node.objects.commit(new)
    assert node.get(1) is new and node.objects.num_bytes == SIZE and node.objects.staged_bytes == 0
    assert node.objects.take_changes().visible == [(True, name(1))]


def test_an_abandoned_object_leaves_nothing() -> None:
    node = Node(quota_bytes=2 * SIZE)
    for _ in range(5):
        new = Object(name(1), LENGTH)
        assert node.objects.stage(new) is None
        node.objects.abandon(new)
    assert node.arena.num_free_pages == NUM_PAGES and node.objects.staged_bytes == node.objects.memory.num_bytes == 0
    assert node.objects.take_changes().visible == []


def test_the_first_of_two_equal_objects_stays() -> None:
    node = Node()
    first, second = Object(name(1), LENGTH), Object(name(1), LENGTH)
    assert node.objects.stage(first) is node.objects.stage(second) is None
    assert node.objects.commit(second) and not node.objects.commit(first)
    assert node.get(1) is second and node.arena.num_free_pages == NUM_PAGES - 1


def test_one_of_another_length_is_replaced() -> None:
    node = Node()
    node.put(1, 77)
    node.put(1)
    assert node.get(1).length == LENGTH and len(node.objects) == 1 and node.objects.num_bytes == SIZE
    assert [came for came, _ in node.objects.take_changes().visible] == [True, False, True]


def test_evicts_what_nobody_used_again_first() -> None:
    node = Node()
    for number in range(NUM_PAGES):
        node.put(number)
    node.objects.touch([node.get(0), node.get(1), node.get(2)])
    for number in range(10, 26):
        node.put(number)
    assert node.there() == [0, 1, 2, 21, 22, 23, 24, 25], "16 new ones did not flush what was used"
    assert node.objects.take_changes().num_evicted == 16


def test_evicts_ends_of_paths_first() -> None:
    node = Node()
    for number in range(NUM_PAGES):
        node.put(number)
    node.objects.touch([node.get(number) for number in range(NUM_PAGES)])
    for number in range(10, 13):
        node.put(number)
    assert node.there() == [0, 1, 2, 3, 4, 10, 11, 12]


def test_a_second_writer_does_not_prove_a_use() -> None:
    node = Node()
    for number in range(NUM_PAGES):
        node.put(number)
    node.objects.refresh(node.get(0))
    node.put(10)
    assert 0 in node.there() and 1 not in node.there(), "it counts as used last"
    for number in range(11, 20):
        node.put(number)
    assert 0 not in node.there(), "but not as used again"


def test_what_was_evicted_and_comes_again_is_worth_keeping() -> None:
    node = Node()
    for number in range(NUM_PAGES + 1):
        node.put(number)
    assert 0 not in node.there()
    node.put(0)
    for number in range(10, 26):
        node.put(number)
    assert 0 in node.there()


def test_pinned_objects_stay_and_when_all_are_there_is_no_space() -> None:
    node = Node()
    for number in range(NUM_PAGES):
        node.put(number)
        node.objects.pin(node.get(number))
    assert node.put(20) is Refusal.NO_SPACE
    node.objects.unpin(node.get(3))
    assert node.put(20) is None
    assert 3 not in node.there() and 20 in node.there()


def test_what_can_never_fit_evicts_nobody() -> None:
    for node in (Node(), Node(memory_bytes=4 * SIZE)):
        node.put(1)
        assert node.put(2, NUM_PAGES * PAGE + 1) is Refusal.NO_SPACE
        assert node.put(3, 4 * SIZE if node.objects.memory.limit_bytes < NO_LIMIT else 10**9) is Refusal.NO_SPACE
        assert node.there() == [1]


def test_a_byte_limit_holds_beside_the_pages() -> None:
    node = Node(memory_bytes=3 * SIZE)
    for number in range(10):
        node.put(number)
        assert node.objects.num_bytes <= 3 * SIZE
    assert node.there() == [7, 8, 9]


def test_large_objects_evict_until_there_is_a_run() -> None:
    node = Node()
    for number in range(NUM_PAGES):
        node.put(number)
    node.objects.pin(node.get(3))
    assert node.put(20, 4 * PAGE) is None
    assert 3 in node.there() and 20 in node.there()


def test_staged_bytes_are_bounded_but_for_a_single_object() -> None:
    node = Node(max_staged_bytes=2 * SIZE)
    staged = [Object(name(number), LENGTH) for number in range(3)]
    assert [node.objects.stage(one) for one in staged] == [None, None, Refusal.BUSY]
    for one in staged[:2]:
        node.objects.abandon(one)
    assert node.objects.stage(Object(name(9), 5 * PAGE)) is None


def test_soft_pins_go_last() -> None:
    node = Node()
    node.put(0, rank=Rank.SOFT_PINNED)
    for number in range(1, 20):
        node.put(number)
    assert 0 in node.there()
    for number in range(20, 28):
        node.put(number, rank=Rank.SOFT_PINNED)
    assert node.there() == list(range(20, 28))


@pytest.mark.parametrize("disk", [False, True])
def test_what_is_there_can_be_pinned_softly_and_stays_so(disk: bool) -> None:
    node = Node(disk_bytes=1 << 20 if disk else 0)
    for number in range(8):
        node.put(number)
    pinned = node.get(0)
    node.objects.pin_softly(pinned)
    node.objects.pin_softly(pinned)
    if disk:
        node.objects.pin(pinned)
        node.objects.written(pinned)
        node.objects.unpin(pinned)
    for number in range(8, 30):
        node.put(number)
    assert pinned.soft_pinned and pinned.run is not None and 0 in node.there()


def test_removal_under_a_pin_keeps_the_bytes() -> None:
    node = Node()
    node.put(1)
    one = node.get(1)
    node.objects.pin(one)
    node.objects.pin(one)
    assert node.objects.remove(name(1)) and not node.objects.remove(name(1))
    assert node.objects.get(name(1)) is None and node.objects.num_bytes == 0
    node.objects.unpin(one)
    assert node.arena.num_free_pages == NUM_PAGES - 1
    node.objects.unpin(one)
    assert node.arena.num_free_pages == NUM_PAGES and node.objects.memory.num_bytes == 0


def test_a_namespace_beyond_its_quota_evicts_its_own() -> None:
    node = Node(quota_bytes=3 * SIZE)
    node.put(0, space=b"other")
    for number in range(5):
        assert node.put(number) is None
    assert node.there() == [2, 3, 4] and node.objects.get(name(0, b"other")) is not None
    for number in (2, 3, 4):
        node.objects.pin(node.get(number))
    assert node.put(9) is Refusal.QUOTA
    assert node.put(9, space=b"third") is None


def disk_node(**limits: object) -> Node:
    return Node(disk_bytes=100 * SIZE, **limits)


def test_written_objects_survive_eviction_from_memory() -> None:
    node = disk_node()
    for number in range(NUM_PAGES):
        node.put(number)
    assert node.objects.unwritten_bytes == NUM_PAGES * SIZE
    for number in (5, 6, 7):
        node.write(number)
    assert node.objects.unwritten_bytes == 5 * SIZE and node.objects.disk_bytes == 3 * SIZE
    for number in range(10, 13):
        node.put(number)
    assert node.there() == [*range(8), 10, 11, 12], "what the disk has goes first, and is still an object"
    assert [node.get(number).run is None for number in (5, 6, 7)] == [True] * 3
    node.put(13)
    assert 0 not in node.there(), "then the oldest that was not written"


def test_loads_bring_bytes_back() -> None:
    node = disk_node()
    node.objects.adopt(name(1), LENGTH)
    one = node.get(1)
    run = node.objects.begin_load(one)
    assert run is not None and one.pins == 1 and one.run is None and node.objects.staged_bytes == SIZE
    node.objects.end_load(one, run, b"h" * HEADER_BYTES, 5)
    assert (one.run, one.checksum, one.pins) == (run, 5, 0) and node.objects.staged_bytes == 0
    for number in range(10, 20):
        node.put(number)
    assert one.run is None and one.header == b"" and one.visible


@pytest.mark.parametrize("removed", [False, True])
def test_a_load_that_fails_removes_the_object(removed: bool) -> None:
    node = disk_node()
    node.objects.adopt(name(1), LENGTH)
    one = node.get(1)
    run = node.objects.begin_load(one)
    assert run is not None
    if removed:
        node.objects.remove(name(1))
    node.objects.end_load(one, run, b"" if not removed else b"h" * HEADER_BYTES, 0)
    assert node.there() == [] and node.arena.num_free_pages == NUM_PAGES
    assert node.objects.take_changes().off_disk == [name(1)] and node.objects.disk_bytes == 0


def test_no_load_without_room() -> None:
    node = disk_node(max_staged_bytes=SIZE)
    for number in (1, 2):
        node.objects.adopt(name(number), LENGTH)
    assert node.objects.begin_load(node.get(1)) is not None
    assert node.objects.begin_load(node.get(2)) is None, "too much is on its way"
    node = disk_node()
    node.objects.adopt(name(20), LENGTH)
    for number in range(NUM_PAGES):
        node.put(number)
        node.objects.pin(node.get(number))
    assert node.objects.begin_load(node.get(20)) is None and node.get(20).pins == 0


def test_what_is_removed_while_it_is_written_leaves_the_disk() -> None:
    node = disk_node()
    node.put(1)
    one = node.get(1)
    node.objects.pin(one)
    node.objects.remove(name(1))
    node.objects.written(one)
    node.objects.unpin(one)
    assert node.objects.take_changes().off_disk == [name(1)]
    assert node.objects.unwritten_bytes == node.objects.disk_bytes == 0
    assert node.arena.num_free_pages == NUM_PAGES


def test_what_the_log_drops_is_gone_unless_memory_has_it() -> None:
    node = disk_node()
    node.objects.adopt(name(1), LENGTH)
    for number in (2, 3):
        node.put(number)
        node.write(number)
    node.objects.touch([node.get(3)])
    assert node.objects.dropped(name(1)) is None and node.there() == [2, 3]
    assert node.objects.dropped(name(2)) is None, "nobody used it"
    assert node.objects.dropped(name(3)) is node.get(3), "to be written again"
    assert node.objects.dropped(name(3)) is None and node.objects.dropped(name(9)) is None
    assert (node.objects.disk_bytes, node.objects.num_on_disk, node.objects.unwritten_bytes) == (0, 0, 2 * SIZE)
    node.write(3)
    assert node.objects.dropped(name(3)) is None, "once per use"
    node.write(3)
    for number in range(10, 17):
        node.put(number)
    assert node.get(3).run is None and 2 in node.there()


def test_use_in_memory_is_told_when_an_object_leaves_it() -> None:
    node = disk_node()
    for number in range(NUM_PAGES):
        node.put(number)
        node.write(number)
    node.objects.touch([node.get(1)])
    for number in range(10, 18):
        node.put(number)
    assert node.objects.take_changes().used == [name(1)]
