"""Runs of pages: best fit, joined when freed, and a generation that tells late readers."""

from __future__ import annotations

import random

import pytest

from common.cache.kvstore_arena import Arena, FreeRuns


@pytest.fixture
def arena() -> Arena:
    return Arena(10 * 4096, 4096)


def test_a_run_holds_exactly_what_was_asked_for(arena: Arena) -> None:
    run = arena.allocate(5000)
    assert run is not None
    assert (run.num_pages, arena.view(run).nbytes, arena.num_free_pages) == (2, 5000, 8)
    assert arena.used_bytes == 2 * 4096 and arena.capacity_bytes == 10 * 4096
    arena.view(run)[:] = b"x" * 5000
    assert bytes(arena.region.data[arena.offset(run) : arena.offset(run) + 5000]) == b"x" * 5000


def test_freeing_bumps_the_generation_before_reuse(arena: Arena) -> None:
    run = arena.allocate(1)
    assert run is not None
    before = arena.generation(run)
    arena.free(run)
    assert arena.generation(run) == before + 1


def test_takes_the_shortest_run_that_is_long_enough() -> None:
    free = FreeRuns(20)
    runs = [free.take(length) for length in (5, 1, 3, 1, 10)]
    assert None not in runs and free.num_free == 0 and free.largest == 0
    for place in (0, 2, 4):
        free.free(runs[place] or 0, (5, 1, 3, 1, 10)[place])
    assert free.take(3) == runs[2]
    assert free.take(4) == runs[0]
    assert free.largest == 10 and free.take(11) is None


def test_neighbours_are_joined() -> None:
    free = FreeRuns(12)
    runs = [free.take(3) for _ in range(4)]
    assert sorted(run for run in runs if run is not None) == [0, 3, 6, 9]
    for first in (0, 6, 9, 3):
        free.free(first, 3)
    assert free.largest == free.num_free == 12


def test_pages_are_never_given_twice_or_lost() -> None:
    rng, free, mine = random.Random(5), FreeRuns(200), dict[int, int]()
    for _ in range(5000):
        if mine and rng.random() < 0.5:
            first = rng.choice(list(mine))
            free.free(first, mine.pop(first))
        else:
            length = rng.randint(1, 12)
            first_free = free.take(length)
            if first_free is not None:
                mine[first_free] = length
        pages = [page for first, length in mine.items() for page in range(first, first + length)]
        assert len(pages) == len(set(pages)) == 200 - free.num_free
        assert all(0 <= page < 200 for page in pages)
    for first, length in mine.items():
        free.free(first, length)
    assert free.largest == 200
