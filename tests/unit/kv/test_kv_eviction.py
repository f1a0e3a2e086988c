"""Who goes first under each policy, and that nothing counts for ever."""

from __future__ import annotations

import pytest

from common.kv.block_cache import BlockCache
from common.kv.eviction import EvictionPolicy
from common.kv.hashing import block_hashes, prefix_root

ROOT = prefix_root(1, "")


def path(text: str) -> list[bytes]:
    """Hashes of a path with one block per character."""
    return block_hashes(ROOT, [ord(c) for c in text], 1)


class Rig:
    """A cache that writes down what it evicts: the names of the blocks that go, as the paths they end."""

    def __init__(self, policy: EvictionPolicy, num_blocks: int = 10) -> None:
        self.gone: list[str] = []
        self.names: dict[bytes, str] = {}
        self.cache = BlockCache(num_blocks, eviction=policy, on_evict=self.note)

    def note(self, hashes: list[bytes], blocks: list[int], num_going: int) -> None:
        self.gone += [self.names[h] for h in reversed(hashes[-num_going:])]

    def store(self, text: str, *, priority: int = 0) -> None:
        """Compute what is missing of a path, index it, let go of it. What is there counts as used."""
        hashes = path(text)
        self.names |= {h: text[: i + 1] for i, h in enumerate(hashes)}
        blocks = self.cache.acquire(hashes, priority=priority)
        fresh = self.cache.allocate(len(hashes) - len(blocks))
        assert fresh is not None, f"no room for {text}"
        self.cache.insert(hashes, blocks + fresh, priority=priority)
        self.cache.release(blocks + fresh)
        self.cache.check()

    def use(self, text: str, *, times: int = 1, priority: int = 0) -> None:
        for _ in range(times):
            self.cache.release(self.cache.acquire(path(text), priority=priority))
            self.cache.check()

    def evict(self, count: int) -> list[str]:
        """Names of the next `count` blocks that go, in order."""
        self.gone = []
        taken = self.cache.allocate(self.cache.num_free + count)
        assert taken is not None
        self.cache.release(taken)
        self.cache.check()
        return self.gone


def aged_mix(policy: EvictionPolicy) -> Rig:
    """Four leaves, each of which another policy would let go first (SLRU: x or y, by their segment)."""
    rig = Rig(policy)
    for text, priority in (("h", 1), ("x", 1), ("y", 0), ("z", 1)):
        rig.store(text, priority=priority)
    rig.use("h", times=3)
    for text in "xyyz":
        rig.use(text)
    rig.cache.demote(path("h"))
    return rig


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (EvictionPolicy.LRU, ["h", "x", "y", "z"]),
        (EvictionPolicy.LFU, ["x", "z", "y", "h"]),
        (EvictionPolicy.PRIORITY, ["y", "h", "x", "z"]),
        (EvictionPolicy.SLRU, ["h", "x", "y", "z"]),
    ],
)
def test_each_policy_has_its_own_order(policy: EvictionPolicy, order: list[str]) -> None:
    assert aged_mix(policy).evict(4) == order


@pytest.mark.parametrize("start", EvictionPolicy)
@pytest.mark.parametrize("policy", [EvictionPolicy.LRU, EvictionPolicy.LFU, EvictionPolicy.PRIORITY])
def test_a_policy_that_comes_later_decides_by_all_that_happened_before(
    start: EvictionPolicy, policy: EvictionPolicy
) -> None:
    rig = aged_mix(start)
    rig.cache.set_eviction(policy)
    rig.cache.check()
    assert rig.cache.eviction is policy
    assert rig.evict(4) == aged_mix(policy).evict(4)


def test_slru_lets_go_what_was_used_once_before_what_was_used_again() -> None:
    rig = Rig(EvictionPolicy.SLRU)
    for text in ("ab", "cd", "ef"):
        rig.store(text)
    rig.use("ab")
    rig.use("ef")
    assert rig.evict(6) == ["cd", "c", "ab", "a", "ef", "e"]


def test_slru_keeps_what_was_used_again_through_a_scan() -> None:
    """The same scan washes the same paths out of an LRU cache."""
    left = {}
    for policy in (EvictionPolicy.SLRU, EvictionPolicy.LRU):
        rig = Rig(policy)
        rig.store("hot")
        rig.use("hot")
        for n in range(100):
            rig.store(chr(1000 + n))
        left[policy] = rig.cache.match(path("hot"))
    assert left == {EvictionPolicy.SLRU: 3, EvictionPolicy.LRU: 0}


def test_slru_protects_a_share_only_and_lets_the_oldest_start_over() -> None:
    rig = Rig(EvictionPolicy.SLRU, num_blocks=10)
    for text in ("abc", "def", "ghi", "x"):
        rig.store(text)
    for text in ("abc", "def", "ghi"):
        rig.use(text)
    order = rig.cache._index._order
    assert order.num_protected == 6, "abc had to leave: 9 of 10 blocks are more than the share"
    assert rig.evict(4) == ["x", "abc", "ab", "a"], "it left for the fresh end"
    rig.use("def")
    rig.store("z")
    assert rig.evict(7) == ["z", "ghi", "gh", "g", "def", "de", "d"]
    assert order.num_protected == 0


def test_slru_protects_nothing_that_is_larger_than_its_share() -> None:
    rig = Rig(EvictionPolicy.SLRU, num_blocks=10)
    rig.store("abcdefghi")
    rig.use("abcdefghi")
    rig.store("x")
    assert rig.evict(1) == ["abcdefghi"]


def test_becoming_slru_protects_what_was_used_again_within_the_share() -> None:
    rig = Rig(EvictionPolicy.LRU, num_blocks=10)
    for text in ("abc", "def", "ghi", "x"):
        rig.store(text)
    for text in ("abc", "def", "ghi"):
        rig.use(text)
    rig.cache.set_eviction(EvictionPolicy.SLRU)
    rig.cache.check()
    assert rig.evict(4) == ["x", "abc", "ab", "a"]
    rig.cache.set_eviction(EvictionPolicy.LRU)
    assert rig.cache._index._order.num_protected == 0
    rig.cache.check()


def test_lfu_halves_a_count_with_every_turnover_so_that_nothing_hot_stays_for_ever() -> None:
    rig = Rig(EvictionPolicy.LFU, num_blocks=10)
    rig.store("h")
    rig.use("h", times=255)
    turnovers = 0
    while rig.cache.match(path("h")) and turnovers < 50:
        for n in range(10):
            rig.store(chr(1000 + 10 * turnovers + n))
        turnovers += 1
    assert 8 <= turnovers <= 10, f"256 uses were worth more than one for {turnovers} turnovers"


def test_lfu_without_ageing_would_keep_it_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    rig = Rig(EvictionPolicy.LFU, num_blocks=10)
    monkeypatch.setattr(rig.cache._index._order, "note_evicted", lambda count: None)
    rig.store("h")
    rig.use("h", times=255)
    for n in range(500):
        rig.store(chr(1000 + n))
    assert rig.cache.match(path("h")) == 1


def test_a_flush_is_no_turnover() -> None:
    rig = Rig(EvictionPolicy.LFU, num_blocks=4)
    for _ in range(20):
        rig.store("abcd")
        rig.cache.flush()
    rig.store("h")
    rig.use("h")
    [entry] = rig.cache._index._root.children.values()
    assert (entry.age, entry.uses) == (0, 2)


def test_counts_are_exact_per_block_across_splits_and_extensions() -> None:
    rig = Rig(EvictionPolicy.LFU)
    rig.store("abcd")
    assert rig.cache.used_twice(path("abcd")) == 0
    rig.use("abx")
    assert rig.cache.used_twice(path("abcd")) == 2
    rig.use("abc", times=3)
    rig.store("abcdef")
    assert rig.cache.used_twice(path("abcdefg")) == 4
    uses = {n: rig.cache._index._node_of[b].uses for n, b in enumerate(rig.cache.blocks_of(path("abcdef")))}
    assert uses == {0: 6, 1: 6, 2: 5, 3: 2, 4: 1, 5: 1}
    assert rig.cache.used_twice(path("q")) == rig.cache.used_twice([]) == 0


def test_a_run_grows_in_place_until_somebody_uses_it_again() -> None:
    cache = BlockCache(16)
    blocks = cache.allocate(6)
    assert blocks is not None
    for length in (1, 2, 3):
        cache.insert(path("abcdef")[:length], blocks[:length])
    assert cache.num_nodes == 1
    cache.use(path("abc"))
    for length in (4, 5):
        cache.insert(path("abcdef")[:length], blocks[:length])
    assert cache.num_nodes == 2
    cache.insert(path("abcdef"), blocks, priority=-1)
    assert cache.num_nodes == 3
    cache.check()


def test_priority_is_the_highest_of_all_who_stored_or_used_a_path() -> None:
    rig = Rig(EvictionPolicy.PRIORITY)
    rig.store("ab", priority=-1)
    rig.store("cd", priority=2)
    rig.store("ef", priority=1)
    rig.use("a", priority=5)
    rig.use("ab", priority=-7)
    rig.store("e", priority=3)
    assert rig.evict(6) == ["ab", "ef", "cd", "c", "e", "a"]


def test_storing_a_known_path_raises_its_priority_but_not_that_of_what_follows() -> None:
    rig = Rig(EvictionPolicy.PRIORITY)
    rig.store("abc", priority=1)
    rig.store("z", priority=2)
    copies = rig.cache.allocate(2)
    assert copies is not None
    rig.cache.insert(path("ab"), copies, priority=3)
    rig.cache.release(copies)
    rig.cache.check()
    assert rig.evict(4) == ["abc", "z", "ab", "a"]


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_a_demoted_path_goes_first_among_equals_until_it_is_used(policy: EvictionPolicy) -> None:
    rig = Rig(policy)
    for text in ("ab", "cd", "ef"):
        rig.store(text)
    rig.cache.demote(path("ef"))
    rig.cache.demote(path("cd"))
    rig.cache.demote(path("q"))
    rig.cache.check()
    rig.use("cd")
    assert rig.evict(6) == ["ef", "e", "ab", "a", "cd", "c"]


def test_what_branches_off_a_demoted_path_keeps_its_head() -> None:
    rig = Rig(EvictionPolicy.LRU)
    for text in ("z", "abc", "abd"):
        rig.store(text)
    rig.cache.demote(path("abc"))
    rig.cache.check()
    assert rig.evict(5) == ["abc", "z", "abd", "ab", "a"]


def test_demoting_a_head_leaves_what_follows_it_alone() -> None:
    rig = Rig(EvictionPolicy.LRU)
    rig.store("ab")
    rig.store("z")
    rig.use("ab")
    rig.cache.demote(path("a"))
    assert rig.evict(3) == ["z", "ab", "a"]


def test_looking_without_touching_changes_no_order() -> None:
    rig = Rig(EvictionPolicy.LRU)
    rig.store("a")
    rig.store("b")
    blocks = rig.cache.acquire(path("a"), touch=False)
    rig.cache.release(blocks, touch=False)
    rig.cache.blocks_of(path("a"))
    assert rig.evict(2) == ["a", "b"]


def test_a_use_without_holding_counts() -> None:
    rig = Rig(EvictionPolicy.LRU)
    rig.store("a")
    rig.store("b")
    rig.cache.use(path("a"))
    rig.cache.check()
    assert rig.evict(2) == ["b", "a"]


def entries_kept(cache: BlockCache) -> int:
    """Entries in all that grows with the paths that are known."""
    index = cache._index
    order = index._order
    kept = [index._block_of, index._node_of, index._depth_of, range(index.num_nodes), cache._pool._free]
    for queue in (order._leaves, order._protected):
        kept += [queue._heap, queue._entry_of]
    return sum(len(container) for container in kept)


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_ten_thousand_paths_leave_nothing_behind(policy: EvictionPolicy) -> None:
    cache = BlockCache(64, max_events=100, eviction=policy)
    most = []
    for n in range(10_000):
        hashes = block_hashes(ROOT, [n, n], 1)
        blocks = cache.allocate(2)
        assert blocks is not None
        cache.insert(hashes, blocks, priority=n % 3)
        cache.release(blocks)
        cache.use(hashes, priority=n % 5)
        most.append(entries_kept(cache))
        if n % 100 == 0:
            cache.check()
    assert max(most[2000:]) <= max(most[:2000])
    assert max(most) < 10 * cache.num_blocks
    cache.flush()
    assert entries_kept(cache) <= cache.num_blocks + 3 * 64, "free blocks, and dead entries of the queues"


def test_the_count_of_entries_notices_growth() -> None:
    """Negative control of the test above."""
    cache = BlockCache(64)
    before = entries_kept(cache)
    cache._index._block_of[b"forgotten"] = 1
    assert entries_kept(cache) == before + 1
