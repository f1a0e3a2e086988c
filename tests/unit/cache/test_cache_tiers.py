"""Moves between the regions of two tiers, by themselves: what is held while bytes move, and what enters an index."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from common.base.errors import Unavailable
from common.base.failpoints import Failpoints
from common.cache import tiers as tiers_module
from common.cache.config import TierPolicies, WritePolicy
from common.cache.tiers import Tiers
from common.kv.eviction import EvictionPolicy
from common.kv.hashing import block_hashes, prefix_root
from common.transport.region import Region

BLOCK_SIZE, BLOCK_BYTES = 4, 64


def path_of(num_blocks: int, first_token: int = 0) -> list[bytes]:
    tokens = range(first_token, first_token + num_blocks * BLOCK_SIZE)
    return block_hashes(prefix_root(BLOCK_SIZE, ""), tokens, BLOCK_SIZE)


@pytest.fixture
def tiers() -> Iterator[Tiers]:
    with Region.create(8, BLOCK_BYTES) as l1, Region.create(8, BLOCK_BYTES) as l2:
        yield Tiers(l1, l2)


class Gate:
    """Copies in the mover thread stand still until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        copy = tiers_module._copy

        def wait_and_copy(*args: object) -> None:
            self.reached.set()
            assert self.opened.wait(20), "nobody opened the gate"
            copy(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(tiers_module, "MAX_INLINE_BYTES", 0)
        monkeypatch.setattr(tiers_module, "_copy", wait_and_copy)


def store_in_l1(tiers: Tiers, path: list[bytes], priority: int = 0) -> list[int]:
    blocks = tiers.l1.cache.allocate(len(path))
    assert blocks is not None
    tiers.l1.cache.insert(path, blocks, priority=priority)
    tiers.l1.cache.release(blocks)
    return blocks


async def test_a_load_ends_with_its_copy_however_often_it_is_cancelled(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited gives the blocks back then: bytes that come later would be in somebody else's block."""
    gate = Gate(monkeypatch)
    load = asyncio.create_task(tiers.load([0], [1]))
    await asyncio.to_thread(gate.reached.wait, 20)
    for _ in range(3):
        load.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    try:
        assert not load.done()
    finally:
        gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await load
    await tiers.close()


@pytest.mark.parametrize("rule", ["drop", "delay(60)"])
async def test_a_move_that_a_failpoint_holds_up_is_given_up(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """A load has no caller with a deadline: the request, its blocks and the end of the worker would wait for ever."""
    monkeypatch.setattr(tiers_module, "MAX_FAULT_S", 0.02)
    failpoints = Failpoints()
    with Region.create(8, BLOCK_BYTES) as l1, Region.create(8, BLOCK_BYTES) as l2:
        tiers = Tiers(l1, l2, failpoints=failpoints)
        failpoints.arm("l2.load", rule)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(5):
                await tiers.load([0], [1])
        await tiers.close()


async def test_what_is_distrusted_while_it_is_saved_does_not_reach_l2(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, path = Gate(monkeypatch), path_of(3)
    store_in_l1(tiers, path)
    tiers.touched(path, 0)
    await asyncio.to_thread(gate.reached.wait, 20)
    tiers.l1.cache.forget(path[0])
    tiers.distrust(path[0])
    gate.opened.set()
    await tiers.drained()
    assert tiers.match(path) == 0
    tiers.check()
    await tiers.close()


@pytest.mark.parametrize("leaves_by", ["eviction", "park", "load"])
async def test_a_path_keeps_its_priority_below(leaves_by: str) -> None:
    """The first path is older and matters more; under `priority` L2 gives up the second."""
    write = WritePolicy.WRITE_THROUGH if leaves_by == "park" else WritePolicy.WRITE_BACK
    policies = TierPolicies(write, l2_eviction=EvictionPolicy.PRIORITY)
    with Region.create(4, BLOCK_BYTES) as l1, Region.create(4, BLOCK_BYTES) as l2:
        tiers = Tiers(l1, l2, policies)
        assert tiers.l2 is not None
        first, second = path_of(2), path_of(2, first_token=100)
        for path, priority in ((first, 5 * (leaves_by != "load")), (second, 0)):
            blocks = store_in_l1(tiers, path, priority)
            if leaves_by == "park":
                tiers.park(path, blocks)
        taken = tiers.l1.cache.allocate(4)
        assert taken is not None and tiers.match(first) == tiers.match(second) == 2
        if leaves_by == "load":
            tiers.release(tiers.acquire(first, 0, priority=5))
            tiers.release(tiers.acquire(second, 0))
        assert tiers.l2.cache.allocate(2) is not None
        assert (tiers.match(first), tiers.match(second)) == (2, 0)
        await tiers.close()


async def test_blocks_that_l2_has_no_room_for_are_counted(tiers: Tiers) -> None:
    assert tiers.l2 is not None
    held = tiers.l2.cache.allocate(6)
    assert held is not None
    path = path_of(5)
    store_in_l1(tiers, path)
    await tiers.save(path)
    assert (tiers.counters.saved, tiers.counters.dropped) == (2, 3)
    tiers.l2.cache.release(held)
    await tiers.close()
