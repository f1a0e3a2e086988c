"""Several streams as one: order within a stream, leader first, errors and leaving end all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from common.base.merge import merge


class Source:
    """A stream that notes how it was left."""

    def __init__(self, name: str, items: int, error: Exception | None = None, hang: bool = False) -> None:
        self.name, self.items, self.error, self.hang = name, items, error, hang
        self.started = self.closed = False

    async def stream(self) -> AsyncGenerator[tuple[str, int], None]:
        self.started = True
        try:
            for n in range(self.items):
                yield self.name, n
            if self.hang:
                await asyncio.Event().wait()
            if self.error:
                raise self.error
        finally:
            self.closed = True


async def test_all_items_come_in_their_streams_order() -> None:
    sources = [Source(name, 5) for name in "abc"]
    merged = merge(sources[0].stream(), lambda: [source.stream() for source in sources[1:]], 2)
    items = [item async for item in merged]
    assert items[0] == ("a", 0)
    for source in sources:
        assert [n for name, n in items if name == source.name] == [0, 1, 2, 3, 4]


async def test_followers_start_after_the_leaders_first_item() -> None:
    leader, follower = Source("a", 2), Source("b", 1)
    merged = merge(leader.stream(), lambda: [follower.stream()], 1)
    async with aclosing(merged):
        assert not follower.started
        assert await anext(merged) == ("a", 0)
        rest = [item async for item in merged]
    assert sorted(rest) == [("a", 1), ("b", 0)]


@pytest.mark.parametrize("failing", [0, 1])
async def test_the_first_error_ends_all(failing: int) -> None:
    sources = [Source("a", 1, hang=True), Source("b", 1, hang=True)]
    sources[failing].hang = False
    sources[failing].error = ValueError("bang")
    with pytest.raises(ValueError, match="bang"):
        async for _ in merge(sources[0].stream(), lambda: [sources[1].stream()], 4):
            pass
    assert sources[failing].closed and all(source.closed == source.started for source in sources)


async def test_a_leader_that_fails_at_once_ends_it() -> None:
    sources = [Source("a", 0, error=ValueError("bang")), Source("b", 1, hang=True)]
    with pytest.raises(ValueError, match="bang"):
        async for _ in merge(sources[0].stream(), lambda: [sources[1].stream()], 4):
            pass
    assert sources[0].closed and sources[1].closed == sources[1].started


async def test_leaving_cancels_all() -> None:
    sources = [Source("a", 2, hang=True), Source("b", 9)]
    merged = merge(sources[0].stream(), lambda: [sources[1].stream()], 1)
    async with aclosing(merged):
        for _ in range(3):
            await anext(merged)
    assert sources[0].closed and sources[1].closed
