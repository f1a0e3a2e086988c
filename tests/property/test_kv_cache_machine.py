"""A block cache against a naive model: a dictionary of prefixes, reference counts and the order of last use."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from common.kv.block_cache import BlockCache
from common.kv.events import EventKind
from common.kv.hashing import block_hashes, prefix_root

NUM_BLOCKS = 12
ROOT = prefix_root(1, "")

paths = st.lists(st.integers(0, 2), max_size=7).map(lambda ids: tuple(block_hashes(ROOT, ids, 1)))


class CacheMachine(RuleBasedStateMachine):
    """Requests come, compute, insert, share and leave, in any order and at any time."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(NUM_BLOCKS, max_events=9)
        self.block_of: dict[bytes, int] = {}
        self.parent_of: dict[bytes, bytes] = {}
        self.references: dict[int, int] = {}
        self.replayed: set[bytes] = set()
        self.generations = [0] * NUM_BLOCKS

    def expected_match(self, path: tuple[bytes, ...]) -> int:
        count = 0
        while count < len(path) and path[count] in self.block_of:
            count += 1
        return count

    def evictable(self) -> set[bytes]:
        """Entries with no held block at or below them."""
        pinned: set[bytes] = set()
        for block_hash, block in self.block_of.items():
            if self.references.get(block):
                above = block_hash
                while above:
                    pinned.add(above)
                    above = self.parent_of[above]
        return set(self.block_of) - pinned

    def sync_evictions(self) -> int:
        """Bring the model up to date with what the cache dropped; returns how many entries went."""
        allowed, alive = self.evictable(), dict(self.cache.snapshot())
        gone = set(self.block_of) - set(alive)
        assert gone <= allowed, "a held block, or one above a held block, was evicted"
        for block_hash in gone:
            del self.block_of[block_hash], self.parent_of[block_hash]
        assert all(not parent or parent in self.block_of for parent in self.parent_of.values())
        return len(gone)

    @rule(target=tables, path=paths)
    def request(self, path: tuple[bytes, ...]):  # type: ignore[no-untyped-def]
        """Match, hold, allocate the rest: the table holds the whole path, or nothing."""
        expected = self.expected_match(path)
        assert self.cache.match(path) == expected
        held = self.cache.acquire(path)
        assert held == [self.block_of[h] for h in path[:expected]]
        for block in held:
            self.references[block] = self.references.get(block, 0) + 1
        room = self.cache.num_free + len(self.evictable())
        assert self.cache.num_available == room
        need = len(path) - expected
        free_before = self.cache.num_free
        fresh = self.cache.allocate(need)
        assert (fresh is None) == (need > room)
        assert self.sync_evictions() == (0 if fresh is None else max(0, need - free_before))
        if fresh is None:
            self.drop(held)
            return multiple()
        assert not any(self.references.get(b) for b in fresh), "a held block was handed out"
        self.references.update(dict.fromkeys(fresh, 1))
        return path, tuple(held + fresh)

    @rule(table=tables, count=st.integers(0, 7))
    def insert(self, table: tuple[tuple[bytes, ...], tuple[int, ...]], count: int) -> None:
        path, blocks = table[0][:count], table[1][:count]
        self.cache.insert(path, blocks)
        for i, (block_hash, block) in enumerate(zip(path, blocks, strict=True)):
            if block_hash not in self.block_of:
                self.block_of[block_hash] = block
                self.parent_of[block_hash] = path[i - 1] if i else b""

    @rule(table=consumes(tables))
    def release(self, table: tuple[tuple[bytes, ...], tuple[int, ...]]) -> None:
        self.drop(list(table[1]))

    @rule(target=tables, table=tables)
    def lend(self, table: tuple[tuple[bytes, ...], tuple[int, ...]]):  # type: ignore[no-untyped-def]
        """A transfer holds the same blocks once more."""
        self.cache.hold(table[1])
        for block in table[1]:
            self.references[block] += 1
        return table

    @rule(path=paths)
    def use(self, path: tuple[bytes, ...]) -> None:
        held = self.cache.acquire(path)
        for block in held:
            self.references[block] = self.references.get(block, 0) + 1
        self.drop(held)

    @rule()
    def flush(self) -> None:
        expected = len(self.evictable())
        assert self.cache.flush() == expected
        assert self.sync_evictions() == expected

    @rule(path=paths)
    def forget(self, path: tuple[bytes, ...]) -> None:
        if not path:
            return
        self.cache.forget(path[-1])
        doomed = {path[-1]} & set(self.block_of)
        while grown := {h for h, parent in self.parent_of.items() if parent in doomed} - doomed:
            doomed |= grown
        for block_hash in doomed:
            del self.block_of[block_hash], self.parent_of[block_hash]

    @rule()
    def replay(self) -> None:
        for event in self.cache.take_events():
            if event.kind is EventKind.STORED:
                assert event.hash not in self.replayed
                assert not event.parent or event.parent in self.replayed
                self.replayed.add(event.hash)
            elif event.kind is EventKind.REMOVED:
                self.replayed.remove(event.hash)
            else:
                self.replayed.clear()
        assert self.replayed == set(self.block_of)

    def drop(self, blocks: list[int]) -> None:
        self.cache.release(blocks)
        for block in blocks:
            self.references[block] -= 1

    @invariant()
    def conserves(self) -> None:
        self.cache.check()
        held = {b for b, count in self.references.items() if count}
        cached = set(self.block_of.values()) - held
        assert (self.cache.num_held, self.cache.num_cached) == (len(held), len(cached))
        assert self.cache.num_free == NUM_BLOCKS - len(held) - len(cached)
        assert dict(self.cache.snapshot()) == self.parent_of
        for block in range(NUM_BLOCKS):
            assert self.cache.num_references(block) == self.references.get(block, 0)
            assert self.cache.generation(block) >= self.generations[block]
            self.generations[block] = self.cache.generation(block)

    def teardown(self) -> None:
        self.replay()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_model_notices_a_leaked_reference() -> None:
    """Negative control: one hold too many and the machine's invariant goes red."""
    machine = CacheMachine()
    path = tuple(block_hashes(ROOT, [1, 2], 1))
    _, blocks = machine.request(path)
    machine.cache.hold(blocks[:1])
    with pytest.raises(AssertionError):
        machine.conserves()


def test_the_model_notices_an_eviction_from_the_middle() -> None:
    """Negative control: an entry that goes before its child is seen."""
    machine = CacheMachine()
    path = tuple(block_hashes(ROOT, [1, 2, 3], 1))
    table = machine.request(path)
    machine.insert(table, 3)
    machine.release(table)
    del machine.cache._index._block_of[path[1]]
    with pytest.raises(AssertionError):
        machine.conserves()
