"""The feed of index changes: what a subscriber replays is the index, and a slow one is cut off."""

from __future__ import annotations

import asyncio

import pytest

from common.kv.events import BlockEvent, EventKind, IndexDigest
from common.worker import block_feed
from common.worker.block_feed import BlockFeed, EventBatch


def stored(number: int) -> BlockEvent:
    return BlockEvent(EventKind.STORED, bytes([number]), bytes([number - 1]) if number else b"")


async def test_a_subscriber_gets_the_snapshot_then_what_follows() -> None:
    entries = [(b"\x00", b""), (b"\x01", b"\x00")]
    feed = BlockFeed([lambda: entries])
    feed.publish([stored(0), stored(1)])
    feed.publish([])
    watch = feed.watch()
    first = await anext(watch)
    assert (first.seq, first.snapshot, first.snapshot_end) == (2, True, True)
    assert [(event.hash, event.parent) for event in first.events] == entries
    feed.publish([stored(2), BlockEvent(EventKind.REMOVED, b"\x02")])
    second = await anext(watch)
    assert (second.seq, second.snapshot) == (4, False)
    assert second.seq - len(second.events) == first.seq, "no gap"
    await watch.aclose()


async def test_an_empty_index_has_a_snapshot_too() -> None:
    watch = BlockFeed([lambda: []]).watch()
    assert await anext(watch) == EventBatch(0, [], snapshot=True, snapshot_end=True)
    await watch.aclose()


async def test_the_snapshot_tells_every_tier_and_events_keep_theirs() -> None:
    feed = BlockFeed([lambda: [(b"a", b""), (b"b", b"a")], lambda: [(b"a", b"")]])
    watch = feed.watch()
    first = await anext(watch)
    assert [(event.hash, event.parent, event.tier) for event in first.events] == [
        (b"a", b"", 1),
        (b"b", b"a", 1),
        (b"a", b"", 2),
    ]
    changes = [BlockEvent(EventKind.CLEARED, tier=2), BlockEvent(EventKind.REMOVED, b"b", tier=1)]
    feed.publish(changes)
    assert await anext(watch) == EventBatch(2, changes)
    await watch.aclose()


async def test_a_large_snapshot_comes_in_parts_and_only_the_last_says_so() -> None:
    size = block_feed.SNAPSHOT_EVENTS_PER_BATCH
    entries = [(number.to_bytes(4, "big"), b"") for number in range(2 * size + 1)]
    watch = BlockFeed([lambda: entries]).watch()
    parts = [await anext(watch) for _ in range(3)]
    assert [len(part.events) for part in parts] == [size, size, 1]
    assert [part.snapshot_end for part in parts] == [False, False, True]
    assert {part.seq for part in parts} == {0}
    await watch.aclose()


async def test_changes_during_a_snapshot_follow_it() -> None:
    size = block_feed.SNAPSHOT_EVENTS_PER_BATCH
    feed = BlockFeed([lambda: [(number.to_bytes(4, "big"), b"") for number in range(size + 1)]])
    watch = feed.watch()
    await anext(watch)
    feed.publish([stored(7)])
    assert (await anext(watch)).snapshot_end
    assert (await anext(watch)).events == [stored(7)]
    await watch.aclose()


async def test_a_subscriber_that_is_too_slow_is_cut_off_after_what_it_had() -> None:
    feed = BlockFeed([lambda: []])
    slow, quick = feed.watch(), feed.watch()
    await anext(slow)
    await anext(quick)
    for number in range(block_feed.MAX_PENDING_BATCHES + 1):
        feed.publish([stored(number % 256)])
        if number == 0:
            await anext(quick)
    received = [batch async for batch in slow]
    assert [batch.seq for batch in received] == list(range(1, block_feed.MAX_PENDING_BATCHES + 1))
    assert (await anext(quick)).seq == 2
    await quick.aclose()


async def test_closing_ends_those_who_wait_and_those_who_do_not() -> None:
    feed = BlockFeed([lambda: []])
    waiting, behind = feed.watch(), feed.watch()
    await anext(waiting)
    await anext(behind)
    following = asyncio.ensure_future(anext(waiting, None))
    await asyncio.sleep(0)
    feed.close()
    async with asyncio.timeout(5):
        assert await following is None
        assert [batch async for batch in behind] == []


async def test_leaving_unsubscribes() -> None:
    feed = BlockFeed([lambda: []])
    watch = feed.watch()
    await anext(watch)
    await watch.aclose()
    feed.publish([stored(1)])
    assert not feed._subscribers


async def test_the_digest_comes_with_changes_and_again_when_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_feed, "CHECK_PERIOD_S", 0.001)
    feed = BlockFeed([lambda: []])
    watch = feed.watch()
    await anext(watch)
    assert await anext(watch) == EventBatch(0, ()), "nothing was published yet, so there is nothing to compare"
    feed.publish([stored(0)], IndexDigest(1, 7))
    assert await anext(watch) == EventBatch(1, [stored(0)], digest=IndexDigest(1, 7))
    assert await anext(watch) == EventBatch(1, (), digest=IndexDigest(1, 7))
    await watch.aclose()
