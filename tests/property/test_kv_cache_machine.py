"""A block cache against a naive model: a dictionary of prefixes with what decides who goes first, reference counts.

The model knows blocks, not runs of blocks; where a call reaches a whole run (a release makes it recent, SLRU moves it)
the run is read off the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from common.kv.block_cache import BlockCache
from common.kv.events import EventKind
from common.kv.eviction import PROTECTED_SHARE, EvictionPolicy
from common.kv.hashing import block_hashes, prefix_root
from common.kv.radix_node import Node

NUM_BLOCKS = 12
TIER = 2
ROOT = prefix_root(1, "")

Path = tuple[bytes, ...]
Table = tuple[Path, tuple[int, ...], int]

paths = st.lists(st.integers(0, 2), max_size=7).map(lambda ids: tuple(block_hashes(ROOT, ids, 1)))
priorities = st.integers(-1, 2)


@dataclass
class Entry:
    """One indexed block."""

    block: int
    parent: bytes
    used: int
    age: int
    priority: int
    uses: int = 1
    reused: bool = False
    protected: bool = False

    def rank(self, policy: EvictionPolicy) -> tuple[int, int]:
        """The smallest goes first."""
        first = {
            EvictionPolicy.LRU: 0,
            EvictionPolicy.LFU: self.uses * 2**self.age,
            EvictionPolicy.SLRU: int(self.protected),
            EvictionPolicy.PRIORITY: self.priority,
        }[policy]
        return first, self.used


class CacheMachine(RuleBasedStateMachine):
    """Requests come, compute, insert, share and leave, in any order and at any time."""

    policy = EvictionPolicy.LRU
    switches = False
    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(NUM_BLOCKS, max_events=9, tier=TIER, eviction=self.policy, on_evict=self.watch_eviction)
        self.entries: dict[bytes, Entry] = {}
        self.references: dict[int, int] = {}
        self.distrusted: set[int] = set()
        self.replayed: set[bytes] = set()
        self.generations = [0] * NUM_BLOCKS
        self.now = self.num_evicted = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    @property
    def age(self) -> int:
        return self.num_evicted // NUM_BLOCKS

    def matching(self, path: Sequence[bytes]) -> list[Entry]:
        """Entries of the head of a path that is there."""
        head = []
        for block_hash in path:
            if block_hash not in self.entries:
                break
            head.append(self.entries[block_hash])
        return head

    def evictable(self) -> set[bytes]:
        """Entries with no held block at or below them."""
        pinned: set[bytes] = set()
        for block_hash, entry in self.entries.items():
            if self.references.get(entry.block):
                above = block_hash
                while above:
                    pinned.add(above)
                    above = self.entries[above].parent
        return set(self.entries) - pinned

    def run_of(self, block: int) -> Node:
        """The run that the cache keeps a block in."""
        return self.cache._index._node_of[block]

    def touch(self, blocks: Iterable[int], *, count: bool = False) -> None:
        """Make the runs of indexed blocks recent; `count`: as of now, they were stored a moment ago."""
        now = self.tick()
        for run in {self.run_of(block) for block in blocks}:
            for block_hash in run.hashes:
                self.entries[block_hash].used = now
                if count:
                    self.entries[block_hash].age = self.age

    def use(self, path: Sequence[bytes], priority: int) -> None:
        now = self.tick()
        for entry in self.matching(path):
            entry.used = now
            entry.uses = (entry.uses >> (self.age - entry.age)) + 1
            entry.age = self.age
            entry.reused = True
            entry.priority = max(entry.priority, priority)
            entry.protected = self.policy is EvictionPolicy.SLRU

    def sync_protected(self) -> None:
        """Follow SLRU in whom it stopped protecting, after checking that it had to and took the right ones."""
        limit = int(PROTECTED_SHARE * NUM_BLOCKS)
        runs = {self.run_of(entry.block) for entry in self.entries.values()}
        expected = {h for h, entry in self.entries.items() if entry.protected}
        kept = {h for run in runs if run.protected for h in run.hashes}
        assert kept <= expected and len(kept) <= limit
        demoted = [run for run in runs if set(run.hashes) <= expected - kept]
        demoted.sort(key=lambda run: (self.entries[run.hashes[0]].used, -run.start))
        assert sum(len(run.hashes) for run in demoted) == len(expected) - len(kept)
        if demoted:
            last = self.entries[demoted[-1].hashes[0]].used
            assert all(self.entries[h].used >= last for h in kept), "somebody less recent stayed protected"
            assert len(kept) + len(demoted[-1].hashes) > limit, "there was no need"
        for run in demoted:
            now = self.tick()
            for block_hash in run.hashes:
                self.entries[block_hash].protected = False
                self.entries[block_hash].used = now

    def watch_eviction(self, hashes: Sequence[bytes], blocks: Sequence[int], num_going: int) -> None:
        """Check that the path is whole and that its tail is next, and let it go in the model."""
        assert 0 < num_going <= len(hashes) and self.cache.match(hashes) == len(hashes)
        head = self.matching(hashes)
        assert [entry.block for entry in head] == list(blocks)
        assert [entry.parent for entry in head] == [b"", *hashes[:-1]]
        for block_hash in reversed(hashes[-num_going:]):
            parents = {entry.parent for entry in self.entries.values()}
            leaves = self.evictable() - parents
            assert block_hash in leaves, "a held block, or one with a child, was to be evicted"
            first = min(self.entries[h].rank(self.policy) for h in leaves)
            assert self.entries[block_hash].rank(self.policy) == first, "somebody else comes first"
            del self.entries[block_hash]

    @rule(target=tables, path=paths, priority=priorities)
    def request(self, path: Path, priority: int):  # type: ignore[no-untyped-def]
        """Match, hold, allocate the rest: the table holds the whole path, or nothing."""
        expected = [entry.block for entry in self.matching(path)]
        assert self.cache.match(path) == len(expected)
        held = self.acquire(path, priority)
        assert held == expected
        evictable = len(self.evictable())
        room = self.cache.num_free + evictable
        assert self.cache.num_available == room
        need = len(path) - len(held)
        num_evicted = max(0, need - self.cache.num_free)
        num_entries = len(self.entries)
        fresh = self.cache.allocate(need)
        assert (fresh is None) == (need > room)
        assert num_entries - len(self.entries) == (0 if fresh is None else num_evicted)
        if fresh is None:
            self.drop(held)
            return multiple()
        self.num_evicted += num_evicted
        assert not any(self.references.get(b) for b in fresh), "a held block was handed out"
        self.references.update(dict.fromkeys(fresh, 1))
        return path, tuple(held + fresh), priority

    @rule(table=tables, count=st.integers(0, 7))
    def insert(self, table: Table, count: int) -> None:
        path, blocks, priority = table[0][:count], table[1][:count], table[2]
        self.cache.insert(path, blocks, priority=priority)
        path = path[: next((i for i, block in enumerate(blocks) if block in self.distrusted), len(path))]
        known = self.matching(path)
        for entry in known:
            entry.priority = max(entry.priority, priority)
        for i in range(len(known), len(path)):
            self.entries[path[i]] = Entry(blocks[i], path[i - 1] if i else b"", 0, self.age, priority)
        if len(known) < len(path):
            self.touch(blocks[len(known) : len(path)], count=True)

    @rule(table=consumes(tables), touch=st.booleans())
    def release(self, table: Table, touch: bool) -> None:
        self.drop(table[1], touch=touch)

    @rule(target=tables, table=tables)
    def lend(self, table: Table):  # type: ignore[no-untyped-def]
        """A transfer holds the same blocks once more."""
        self.cache.hold(table[1])
        for block in table[1]:
            self.references[block] += 1
        return table

    @rule(path=paths, priority=priorities)
    def reuse(self, path: Path, priority: int) -> None:
        self.drop(self.acquire(path, priority))

    @rule(path=paths, priority=priorities)
    def count_use(self, path: Path, priority: int) -> None:
        """A use of blocks that nobody need hold."""
        self.cache.use(path, priority=priority)
        self.use(path, priority)
        self.sync_protected()

    @rule(path=paths)
    def look(self, path: Path) -> None:
        """What changes nothing: not even who goes first."""
        head = self.matching(path)
        assert self.cache.blocks_of(path) == [entry.block for entry in head]
        assert self.cache.used_twice(path) == sum(entry.reused for entry in head)
        blocks = self.cache.acquire(path, touch=False)
        assert blocks == [entry.block for entry in head]
        self.cache.release(blocks, touch=False)

    @rule(path=paths)
    def demote(self, path: Path) -> None:
        self.cache.demote(path)
        for entry in self.matching(path):
            entry.used, entry.protected = 0, False

    @precondition(lambda self: self.switches)
    @rule(policy=st.sampled_from(EvictionPolicy))
    def switch(self, policy: EvictionPolicy) -> None:
        self.cache.set_eviction(policy)
        self.policy = policy
        for entry in self.entries.values():
            entry.protected = entry.reused and policy is EvictionPolicy.SLRU
        self.sync_protected()

    @rule()
    def flush(self) -> None:
        doomed = self.evictable()
        assert self.cache.flush() == len(doomed)
        for block_hash in doomed:
            del self.entries[block_hash]

    @rule(path=paths)
    def forget(self, path: Path) -> None:
        if not path:
            return
        self.cache.forget(path[-1])
        doomed = {path[-1]} & set(self.entries)
        while grown := {h for h, entry in self.entries.items() if entry.parent in doomed} - doomed:
            doomed |= grown
        for block_hash in doomed:
            block = self.entries.pop(block_hash).block
            if self.references.get(block):
                self.distrusted.add(block)

    @rule()
    def replay(self) -> None:
        for event in self.cache.take_events():
            assert event.tier == TIER
            if event.kind is EventKind.STORED:
                assert event.hash not in self.replayed
                assert not event.parent or event.parent in self.replayed
                self.replayed.add(event.hash)
            elif event.kind is EventKind.REMOVED:
                self.replayed.remove(event.hash)
            else:
                self.replayed.clear()
        assert self.replayed == set(self.entries)

    def acquire(self, path: Path, priority: int) -> list[int]:
        held = self.cache.acquire(path, priority=priority)
        for block in held:
            self.references[block] = self.references.get(block, 0) + 1
        self.use(path, priority)
        self.sync_protected()
        return held

    def drop(self, blocks: Sequence[int], *, touch: bool = True) -> None:
        self.cache.release(blocks, touch=touch)
        for block in blocks:
            self.references[block] -= 1
        self.distrusted = {block for block in self.distrusted if self.references[block]}
        indexed = {entry.block for entry in self.entries.values()}
        if touch:
            self.touch(b for b in blocks if b in indexed and not self.references[b])

    @invariant()
    def conserves(self) -> None:
        self.cache.check()
        held = {b for b, count in self.references.items() if count}
        cached = {entry.block for entry in self.entries.values()} - held
        assert (self.cache.num_held, self.cache.num_cached) == (len(held), len(cached))
        assert self.cache.num_free == NUM_BLOCKS - len(held) - len(cached)
        assert dict(self.cache.snapshot()) == {h: entry.parent for h, entry in self.entries.items()}
        assert self.cache.num_evictions == self.num_evicted
        for block in range(NUM_BLOCKS):
            assert self.cache.num_references(block) == self.references.get(block, 0)
            assert self.cache.generation(block) >= self.generations[block]
            self.generations[block] = self.cache.generation(block)

    def teardown(self) -> None:
        self.replay()


class LfuMachine(CacheMachine):
    """By number of uses."""

    policy = EvictionPolicy.LFU


class SlruMachine(CacheMachine):
    """In two segments."""

    policy = EvictionPolicy.SLRU


class PriorityMachine(CacheMachine):
    """By priority of the requests."""

    policy = EvictionPolicy.PRIORITY


class SwitchingMachine(CacheMachine):
    """With a policy that changes under way."""

    switches = True


SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
TestLfuMachine = LfuMachine.TestCase
TestSlruMachine = SlruMachine.TestCase
TestPriorityMachine = PriorityMachine.TestCase
TestSwitchingMachine = SwitchingMachine.TestCase
for case in (TestCacheMachine, TestLfuMachine, TestSlruMachine, TestPriorityMachine, TestSwitchingMachine):
    case.settings = SETTINGS


def stored(machine: CacheMachine, *ids: int) -> Path:
    """Compute a path and let go of it."""
    path = tuple(block_hashes(ROOT, ids, 1))
    table = machine.request(path, 0)
    machine.insert(table, len(path))
    machine.release(table, touch=True)
    return path


def test_the_model_notices_a_leaked_reference() -> None:
    """Negative control: one hold too many and the machine's invariant goes red."""
    machine = CacheMachine()
    path = tuple(block_hashes(ROOT, [1, 2], 1))
    _, blocks, _ = machine.request(path, 0)
    machine.cache.hold(blocks[:1])
    with pytest.raises(AssertionError):
        machine.conserves()


def test_the_model_notices_an_eviction_from_the_middle() -> None:
    """Negative control: an entry that goes before its child is seen."""
    machine = CacheMachine()
    path = stored(machine, 1, 2, 3)
    del machine.cache._index._block_of[path[1]]
    with pytest.raises(AssertionError):
        machine.conserves()


@pytest.mark.parametrize("other", [EvictionPolicy.LFU, EvictionPolicy.SLRU, EvictionPolicy.PRIORITY])
@pytest.mark.parametrize("swapped", [False, True])
def test_the_model_notices_another_order(other: EvictionPolicy, swapped: bool) -> None:
    """Negative control: a cache that goes by another policy than it should is caught at its first eviction."""
    machine = SwitchingMachine()
    machine.switch(other)
    machine.reuse(stored(machine, 0, 1, 2), 2)
    stored(machine, 1, 1, 1)
    newcomer = tuple(block_hashes(ROOT, [2] * 7, 1))
    if swapped:
        machine.cache.set_eviction(EvictionPolicy.LRU)
    else:
        machine.policy = EvictionPolicy.LRU
    with pytest.raises(AssertionError, match=r"somebody else comes first|there was no need"):
        machine.request(newcomer, 0)


def test_the_model_notices_a_path_that_is_not_whole() -> None:
    """Negative control: an eviction that tells only the run that goes is seen."""
    machine = CacheMachine()
    path = stored(machine, 1, 2, 3)
    with pytest.raises(AssertionError):
        machine.watch_eviction(path[1:], machine.cache.blocks_of(path)[1:], 1)
