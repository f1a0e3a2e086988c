"""Block tables: admission rules, growth, indexing."""

from __future__ import annotations

import pytest

from common.kv.block_cache import BlockCache
from common.sched.config import SchedulerConfig
from common.sched.tables import BlockTables
from common.sched.tiering import NothingBelow
from tests.support.sched_rig import make_request

CONFIG = SchedulerConfig(block_size=4)


def computed(cache: BlockCache, tables: BlockTables, num_tokens: int) -> None:
    """Leave a computed prompt 0, 1, 2, ... in the cache."""
    request = make_request("before", range(num_tokens))
    assert tables.open(request, CONFIG, idle=True)
    tables.index(request, num_tokens)
    tables.close(request)


def test_open_covers_all_known_tokens_and_reuses_the_prefix() -> None:
    cache = BlockCache(16)
    tables = BlockTables(cache, NothingBelow())
    computed(cache, tables, 8)
    request = make_request("a", range(10), output_ids=[5])
    assert tables.open(request, CONFIG, idle=False)
    assert len(request.block_table) == 3
    assert request.num_computed == 8
    assert cache.num_held == 3


def test_a_full_hit_still_computes_the_last_block() -> None:
    cache = BlockCache(16)
    tables = BlockTables(cache, NothingBelow())
    computed(cache, tables, 8)
    request = make_request("a", range(8))
    assert tables.open(request, CONFIG, idle=False)
    assert (request.num_computed, len(request.block_table)) == (4, 2)
    assert cache.num_references(request.block_table[1]) == 1
    tables.index(request, 8)
    tables.close(request)
    assert (cache.num_cached, cache.num_free) == (2, 14), "the copy of the last block is free again"


@pytest.mark.parametrize(
    ("num_tokens", "config", "idle", "max_new", "opens"),
    [
        (32, {}, False, None, True),
        (33, {}, False, None, False),
        (24, {"growth_reserve_blocks": 2}, False, None, True),
        (25, {"growth_reserve_blocks": 2}, False, None, False),
        (32, {"growth_reserve_blocks": 2}, True, None, True),
        (16, {"high_water_ratio": 0.5}, False, None, True),
        (17, {"high_water_ratio": 0.5}, False, None, False),
        (17, {"high_water_ratio": 0.5}, True, None, True),
        (8, {}, False, 2, True),
        (9, {}, False, 2, False),
    ],
)
def test_admission_leaves_room(
    num_tokens: int, config: dict[str, float], idle: bool, max_new: int | None, opens: bool
) -> None:
    cache = BlockCache(8)
    request = make_request("a", range(num_tokens))
    rules = SchedulerConfig(block_size=4, **config)  # type: ignore[arg-type]
    assert BlockTables(cache, NothingBelow()).open(request, rules, idle=idle, max_new=max_new) is opens
    assert cache.num_held == len(request.block_table) == (request.num_blocks_for(num_tokens) if opens else 0)


def test_what_does_not_fit_leaves_the_cached_prefix_cached() -> None:
    cache = BlockCache(4)
    tables = BlockTables(cache, NothingBelow())
    computed(cache, tables, 8)
    request = make_request("a", range(40))
    assert not tables.open(request, CONFIG, idle=True)
    assert (cache.num_cached, cache.num_held, request.num_computed) == (2, 0, 0)


def test_grow_appends_what_is_missing_or_nothing() -> None:
    cache = BlockCache(2)
    tables = BlockTables(cache, NothingBelow())
    request = make_request("a", range(4))
    tables.open(request, CONFIG, idle=True)
    first = list(request.block_table)
    assert tables.grow(request)
    assert request.block_table == first
    request.append(9)
    assert tables.grow(request)
    assert len(request.block_table) == 2 and request.block_table[:1] == first
    for _ in range(4):
        request.append(9)
    assert not tables.grow(request)
    assert len(request.block_table) == 2


def test_only_full_blocks_are_indexed() -> None:
    cache = BlockCache(8)
    tables = BlockTables(cache, NothingBelow())
    request = make_request("a", range(11))
    tables.open(request, CONFIG, idle=True)
    tables.index(request, 7)
    assert cache.match(request.chain.hashes) == 1
    tables.index(request, 11)
    assert cache.match(request.chain.hashes) == 2


def test_distrust_makes_the_whole_path_unknown() -> None:
    cache = BlockCache(8)
    tables = BlockTables(cache, NothingBelow())
    computed(cache, tables, 8)
    request = make_request("a", range(12))
    tables.open(request, CONFIG, idle=True)
    tables.distrust(request)
    assert cache.match(request.chain.hashes) == 0
    tables.close(request)
    assert cache.num_free == 8
    tables.distrust(make_request("b", range(2)))


def test_a_request_with_blocks_is_not_opened_again() -> None:
    tables = BlockTables(BlockCache(8), NothingBelow())
    request = make_request("a")
    tables.open(request, CONFIG, idle=True)
    with pytest.raises(AssertionError, match="has 1 blocks"):
        tables.open(request, CONFIG, idle=True)
