"""The block pool: states, counts, generations, and asserts on misuse."""

from __future__ import annotations

import pytest

from common.kv.block_pool import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    """Free, cached, held; checked."""
    pool.check()
    return (pool.num_free, pool.num_cached, pool.num_held)


def test_a_block_goes_from_free_to_held_and_back() -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    assert counts(pool) == (1, 0, 2)
    assert pool.release(0)
    assert counts(pool) == (2, 0, 1)
    assert pool.num_blocks == 3


def test_a_block_is_held_until_the_last_reference_goes() -> None:
    pool = BlockPool(1)
    [block] = pool.allocate(1)
    assert not pool.hold(block)
    assert pool.num_references(block) == 2
    assert not pool.release(block)
    assert pool.is_held(block)
    assert pool.release(block)
    assert not pool.is_held(block)


def test_a_cached_block_outlives_its_references() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.cache(block)
    assert counts(pool) == (1, 0, 1)
    assert pool.release(block)
    assert counts(pool) == (1, 1, 0)
    assert pool.hold(block)
    assert counts(pool) == (1, 0, 1)
    pool.release(block)
    pool.uncache(block)
    assert counts(pool) == (2, 0, 0)


def test_a_held_block_that_leaves_the_index_is_free_once_released() -> None:
    pool = BlockPool(1)
    [block] = pool.allocate(1)
    pool.cache(block)
    pool.uncache(block)
    assert counts(pool) == (0, 0, 1)
    pool.release(block)
    assert counts(pool) == (1, 0, 0)


def test_the_generation_counts_how_often_a_block_became_free() -> None:
    pool = BlockPool(1)
    assert pool.generation(0) == 0
    pool.allocate(1)
    pool.cache(0)
    pool.release(0)
    assert pool.generation(0) == 0, "cached bytes are still the promised ones"
    pool.uncache(0)
    assert pool.generation(0) == 1
    pool.allocate(1)
    pool.release(0)
    assert pool.generation(0) == 2


def test_allocation_is_deterministic() -> None:
    first, second = BlockPool(8), BlockPool(8)
    for pool in (first, second):
        pool.allocate(5)
        for block in (3, 0, 4):
            pool.release(block)
    assert first.allocate(4) == second.allocate(4)


def test_misuse_is_an_assert_with_numbers() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="allocate 3 of 2 free"):
        pool.allocate(3)
    with pytest.raises(AssertionError, match="hold of free block 1"):
        pool.hold(1)
    with pytest.raises(AssertionError, match="release of block 1"):
        pool.release(1)
    with pytest.raises(AssertionError, match="cache of block 0"):
        pool.cache(0)
    with pytest.raises(AssertionError, match="block 0 is not in the index"):
        pool.uncache(0)
    pool.allocate(1)
    pool.cache(0)
    with pytest.raises(AssertionError, match="block 0 is in the index already"):
        pool.cache(0)
    with pytest.raises(AssertionError, match="num_blocks 0"):
        BlockPool(0)
    assert counts(pool) == (1, 0, 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._free.append(pool._free[0]), "free twice"),
        (lambda pool: pool._references.__setitem__(0, 0), "counted 0 held"),
        (lambda pool: pool._free.pop(), "!= 4"),
        (lambda pool: pool._in_index.__setitem__(3, True), "counted 1 held and 1 cached"),
    ],
)
def test_check_notices_damage(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(4)
    pool.allocate(1)
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check()
