"""The block cache: what scheduler and worker see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from common.kv.block_cache import BlockCache
from common.kv.events import EventKind
from common.kv.hashing import block_hashes, prefix_root

ROOT = prefix_root(1, "")


def path(*ids: int) -> list[bytes]:
    """Hashes of a path with one token per block."""
    return block_hashes(ROOT, ids, 1)


def fill(cache: BlockCache, *ids: int) -> list[int]:
    """Compute a path, index it and let go of it."""
    hashes = path(*ids)
    blocks = cache.acquire(hashes)
    fresh = cache.allocate(len(hashes) - len(blocks))
    assert fresh is not None
    blocks += fresh
    cache.insert(hashes, blocks)
    cache.release(blocks)
    cache.check()
    return blocks


def counts(cache: BlockCache) -> tuple[int, int, int]:
    """Free, cached, held; checked."""
    cache.check()
    assert cache.num_free + cache.num_cached + cache.num_held == cache.num_blocks
    return (cache.num_free, cache.num_cached, cache.num_held)


def test_what_was_computed_is_found_again() -> None:
    cache = BlockCache(8)
    blocks = fill(cache, 1, 2, 3)
    assert counts(cache) == (5, 3, 0)
    assert cache.match(path(1, 2, 9)) == 2
    assert cache.acquire(path(1, 2, 9)) == blocks[:2]
    assert counts(cache) == (5, 1, 2)
    cache.release(blocks[:2])
    assert counts(cache) == (5, 3, 0)


def test_what_was_never_indexed_is_free_after_release() -> None:
    cache = BlockCache(4)
    blocks = cache.allocate(3)
    assert blocks is not None and cache.num_references(blocks[0]) == 1
    cache.release(blocks)
    assert counts(cache) == (4, 0, 0)
    assert cache.generation(blocks[0]) == 1


def test_allocate_evicts_as_little_as_needed() -> None:
    cache = BlockCache(6)
    fill(cache, 1, 2, 3, 4)
    assert cache.num_available == 6
    blocks = cache.allocate(3)
    assert blocks is not None
    assert counts(cache) == (0, 3, 3)
    assert cache.num_evictions == 1
    assert cache.match(path(1, 2, 3, 4)) == 3


def test_allocate_without_room_changes_nothing() -> None:
    cache = BlockCache(4)
    fill(cache, 1, 2)
    held = cache.acquire(path(1))
    assert cache.num_available == 3
    assert cache.allocate(4) is None
    assert counts(cache) == (2, 1, 1)
    assert cache.num_evictions == 0
    assert cache.allocate(3) is not None
    assert cache.match(path(1, 2)) == 1
    cache.release(held)


def test_allocate_of_nothing_always_works() -> None:
    cache = BlockCache(1)
    cache.allocate(1)
    assert cache.allocate(0) == []


def test_two_who_computed_the_same_leave_one_copy() -> None:
    cache = BlockCache(8)
    first, second = cache.allocate(2), cache.allocate(3)
    assert first is not None and second is not None
    cache.insert(path(1, 2), first)
    cache.insert(path(1, 2, 3), second)
    cache.release(first)
    assert counts(cache) == (3, 2, 3)
    assert cache.num_available == 3, "what lies above a held block cannot go"
    cache.release(second)
    assert counts(cache) == (5, 3, 0)
    assert cache.acquire(path(1, 2, 3)) == [*first, second[2]]


def test_hold_keeps_a_block_that_its_first_holder_released() -> None:
    cache = BlockCache(2)
    [block] = cache.allocate(1) or []
    cache.insert(path(1), [block])
    cache.hold([block])
    cache.release([block])
    assert counts(cache) == (1, 0, 1)
    assert cache.allocate(2) is None
    cache.release([block])
    cache.hold([block])
    assert counts(cache) == (1, 0, 1)


def test_flush_frees_what_nobody_holds() -> None:
    cache = BlockCache(8)
    fill(cache, 1, 2, 3)
    held = cache.acquire(path(1))
    cache.take_events()
    assert cache.flush() == 2
    assert counts(cache) == (7, 0, 1)
    assert [e.kind for e in cache.take_events()] == [EventKind.REMOVED] * 2
    cache.release(held)
    assert cache.flush() == 1
    assert [e.kind for e in cache.take_events()] == [EventKind.CLEARED]
    assert cache.flush() == 0
    assert cache.take_events() == [] and cache.num_nodes == 0 and cache.num_evictions == 0


def test_forget_takes_a_damaged_block_and_its_children_out() -> None:
    cache = BlockCache(8)
    fill(cache, 1, 2, 3)
    cache.forget(path(1, 2)[1])
    assert cache.match(path(1, 2, 3)) == 1
    assert counts(cache) == (7, 1, 0)


def test_snapshot_and_events_tell_the_same() -> None:
    cache = BlockCache(8, max_events=2)
    fill(cache, 1, 2, 3)
    fill(cache, 1, 5)
    events = cache.take_events()
    assert events[0].kind is EventKind.CLEARED
    assert [(e.hash, e.parent) for e in events[1:]] == cache.snapshot()
    assert len(cache.snapshot()) == 4


def test_inserting_an_unheld_block_is_a_bug() -> None:
    cache = BlockCache(2)
    with pytest.raises(AssertionError, match="which nobody holds"):
        cache.insert(path(1), [0])
    with pytest.raises(AssertionError, match="2 hashes for 1 blocks"):
        cache.insert(path(1, 2), [0])


class Witness:
    """What `on_evict` is told, and what is true then."""

    def __init__(self, num_blocks: int) -> None:
        self.calls: list[tuple[list[bytes], list[int], int]] = []
        self.during: Callable[[], object] = lambda: None
        self.cache = BlockCache(num_blocks, on_evict=self.note)

    def note(self, hashes: Sequence[bytes], blocks: Sequence[int], num_going: int) -> None:
        assert self.cache.blocks_of(hashes) == blocks, "still indexed"
        assert self.cache.num_free < self.cache.num_blocks - self.cache.num_held, "still not free"
        self.calls.append((list(hashes), list(blocks), num_going))
        self.during()


def test_an_eviction_is_told_with_its_whole_path_before_it_happens() -> None:
    witness = Witness(6)
    old = fill(witness.cache, 1, 2, 3)
    new = fill(witness.cache, 1, 2, 5, 6)
    generations = [witness.cache.generation(block) for block in range(6)]
    taken = witness.cache.allocate(3)
    assert taken is not None
    assert witness.calls == [(path(1, 2, 3), old, 1), (path(1, 2, 5, 6), new, 1)]
    assert witness.cache.generation(old[2]) == generations[old[2]] + 1
    more = witness.cache.allocate(3)
    assert more is not None
    assert witness.calls[2:] == [(path(1, 2, 5), new[:3], 1), (path(1, 2), new[:2], 2)]
    assert witness.cache.num_evictions == 5


def test_only_what_nobody_holds_is_told_to_go() -> None:
    witness = Witness(4)
    blocks = fill(witness.cache, 1, 2, 3, 4)
    witness.cache.hold(blocks[:2])
    assert witness.cache.allocate(3) is None and witness.calls == []
    witness.cache.allocate(2)
    assert witness.calls == [(path(1, 2, 3, 4), blocks, 2)]


def test_flush_and_forget_tell_nobody() -> None:
    witness = Witness(4)
    fill(witness.cache, 1, 2)
    witness.cache.forget(path(1, 2)[1])
    witness.cache.flush()
    assert witness.calls == [] and counts(witness.cache) == (4, 0, 0)


def test_a_cache_that_evicts_must_not_be_changed() -> None:
    witness = Witness(2)
    fill(witness.cache, 1, 2)
    cache = witness.cache
    changes: list[Callable[[], object]] = [
        lambda: cache.acquire(path(1)),
        lambda: cache.use(path(1)),
        lambda: cache.allocate(1),
        lambda: cache.insert(path(1), [0]),
        lambda: cache.hold([0]),
        lambda: cache.release([0]),
        lambda: cache.demote(path(1)),
        lambda: cache.set_eviction(cache.eviction),
        lambda: cache.forget(path(1)[0]),
        cache.flush,
    ]
    for change in changes:
        witness.during = change
        with pytest.raises(AssertionError, match="must not change"):
            cache.allocate(1)
        assert counts(cache) == (0, 2, 0)
    witness.during = lambda: None
    assert cache.allocate(1) is not None, "and it goes on afterwards"
    assert len(witness.calls) == len(changes) + 1


def test_what_was_forgotten_while_it_was_held_is_not_indexed_again() -> None:
    """Whoever shares the path goes on computing with these blocks, and would offer them with every further one."""
    cache = BlockCache(8)
    hashes = [bytes([number]) * 32 for number in range(4)]
    blocks = cache.allocate(3) or []
    cache.insert(hashes[:3], blocks)
    cache.forget(hashes[1])
    more = cache.allocate(1) or []
    cache.insert(hashes, blocks + more)
    assert cache.match(hashes) == 1
    cache.check()
    cache.release(blocks + more)
    again = cache.allocate(4) or []
    cache.insert(hashes, again)
    assert cache.match(hashes) == 4, "other bytes, other trust"
    cache.check()
