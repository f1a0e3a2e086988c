"""The simulated cache against the worker's own: the same blocks found, held and evicted, step by step."""

from __future__ import annotations

from random import Random

import pytest

from bench.replay.cache import PrefixCache
from common.kv.block_cache import BlockCache
from services.router.index_update import ChangeKind

NUM_BLOCKS = 24


def paths(random: Random) -> list[tuple[bytes, ...]]:
    """Prompts of 1 to 8 blocks that share heads: each block's name tells its whole path."""
    made = []
    for _ in range(40):
        letters = "".join(random.choice("abc") for _ in range(random.randint(1, 8)))
        made.append(tuple(letters[: end + 1].encode() for end in range(len(letters))))
    return made


class Both:
    """One user of both caches at a time; `held` is what it has to give back."""

    def __init__(self) -> None:
        self.mine = PrefixCache(NUM_BLOCKS)
        self.real = BlockCache(NUM_BLOCKS)
        self.held: list[tuple[tuple[bytes, ...], int, list[int]]] = []

    def enter(self, path: tuple[bytes, ...]) -> bool:
        """Acquire what is there, allocate the rest, index it; False without room."""
        found = self.mine.match(path)
        assert found == self.real.match(path)
        self.mine.acquire(path[:found])
        blocks = self.real.acquire(path)
        lacking = len(path) - found
        new = self.real.allocate(lacking)
        assert self.mine.allocate(lacking) == (new is not None)
        if new is None:
            self.mine.release(path[:found], 0)
            self.real.release(blocks)
            return False
        stored = [self.mine.index(name) for name in path[found:]]
        assert all(stored)
        self.real.insert(path, blocks + new)
        self.held.append((path, 0, blocks + new))
        return True

    def leave(self, position: int) -> None:
        path, private, blocks = self.held.pop(position)
        self.mine.release(path, private)
        self.real.release(blocks)

    def check(self, known: list[tuple[bytes, ...]]) -> None:
        mine, real = self.mine, self.real
        real.check()
        assert mine.num_free + mine.num_cached + mine.num_held == NUM_BLOCKS
        assert (mine.num_free, mine.num_held) == (real.num_free, real.num_held)
        assert [mine.match(path) for path in known] == [real.match(path) for path in known]


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_holds_and_evicts_what_the_block_cache_does(seed: int) -> None:
    random = Random(seed)
    both, known = Both(), paths(random)
    evicted = 0
    for _ in range(150):
        if both.held and random.random() < 0.5:
            both.leave(random.randrange(len(both.held)))
        else:
            both.enter(random.choice(known))
        both.check(known)
        evicted += sum(kind == ChangeKind.REMOVED for kind, _, _ in both.mine.take_changes())
    assert evicted > 10, "the test does not reach eviction"


def test_changes_tell_what_is_there() -> None:
    cache = PrefixCache(2)
    assert cache.allocate(2)
    assert cache.index(b"a")
    assert cache.index(b"b")
    cache.release((b"a", b"b"), 0)
    assert cache.allocate(1)
    assert cache.take_changes() == [
        (ChangeKind.STORED, b"a", 1),
        (ChangeKind.STORED, b"b", 1),
        (ChangeKind.REMOVED, b"b", 1),
    ]
    assert cache.take_changes() == []


def test_a_second_copy_stays_private_and_pins_the_first() -> None:
    cache = PrefixCache(3)
    assert cache.allocate(1)
    assert cache.index(b"a")
    assert cache.allocate(1)
    assert not cache.index(b"a")
    assert cache.num_held == 2
    cache.release((b"a",), 0)
    assert not cache.allocate(2), "both copies are held"
    cache.release((b"a",), 1)
    assert (cache.num_free, cache.num_cached, cache.num_held) == (2, 1, 0)
