"""The stream that leaders follow: a snapshot, then changes, in order and without a gap."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from services.kvstore.inventory import MAX_PENDING, NAMES_PER_PAGE, Inventory, Page


def name(number: int) -> bytes:
    return number.to_bytes(4, "big")


async def test_a_follower_reconstructs_the_names() -> None:
    names = {name(number): None for number in range(2 * NAMES_PER_PAGE + 5)}
    inventory = Inventory(names)
    known: set[bytes] = set()
    async with aclosing(inventory.watch(10.0)) as pages:
        async for page in pages:
            known.update(page.added)
            if page.snapshot_end:
                break
            if page.snapshot and not known - set(names):
                names[name(10**6)] = None  # comes while the snapshot is sent: an event after it
                inventory.publish([(True, name(10**6))])
                del names[name(0)]
                inventory.publish([(False, name(0)), (True, name(0)), (False, name(0))])
        numbers = []
        while known != set(names):
            page = await anext(pages)
            known.update(page.added)
            known.difference_update(page.removed)
            numbers.append(page.seq)
    assert numbers == sorted(numbers) and inventory.num_followers == 0


async def test_silence_is_a_page_now_and_then() -> None:
    inventory = Inventory([])
    async with aclosing(inventory.watch(0.01)) as pages:
        assert [await anext(pages) for _ in range(3)] == [Page(0, snapshot=True, snapshot_end=True), Page(0), Page(0)]


async def test_one_that_does_not_keep_up_is_cut_off() -> None:
    inventory = Inventory([])
    async with aclosing(inventory.watch(10.0)) as pages:
        await anext(pages)
        for number in range(MAX_PENDING + 1):
            inventory.publish([(True, name(number))])
        seen = [page async for page in pages]
    assert len(seen) == MAX_PENDING


async def test_close_ends_all_streams() -> None:
    inventory = Inventory([])

    async def follow() -> int:
        return len([page async for page in inventory.watch(10.0)])

    following = [asyncio.create_task(follow()) for _ in range(3)]
    while inventory.num_followers < 3:  # noqa: ASYNC110 - the tasks start when they start
        await asyncio.sleep(0)
    inventory.publish([(True, b"a")])
    inventory.close()
    assert await asyncio.gather(*following) == [2, 2, 2]
