"""An L3 that freezes under load: nobody waits for it, and once it thaws it is used as before.

The store takes calls and never answers, as a hung network mount does. What is new meanwhile is computed, with the same
logits; requests are about as fast as without a store.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

import pytest

from common.cache.seal import SealConfig
from tests.support.oracle import Ask, Run
from tests.support.tier_client import TierClient, check_exact, reusable_tokens
from tests.support.workers import WorkerProcess, Workers

CONCURRENCY = 4
FLAGS = {
    "debug_logits_digest": "",
    "enable_failpoints": "",
    "max_total_tokens": "2048",
    "hicache_ratio": "1",
}
ASKS = [Ask(tuple(random.Random(n).choices(range(2, 250), k=300)), 3) for n in range(24)]
"""About three times of what L1 and L2 together hold: each comes back after it was evicted."""


@pytest.mark.parametrize("frozen_s", [6.0, pytest.param(60.0, marks=pytest.mark.chaos)])
def test_service_goes_on_while_the_store_is_frozen(frozen_s: float, tmp_path: Path) -> None:
    with Workers(**FLAGS) as workers:
        worker = workers.start("decode")
        asyncio.run(_freeze(worker, tmp_path / "store", frozen_s))
        assert worker.metric("pando_worker_requests_total", outcome="error") == 0
        assert worker.metric("pando_worker_integrity_failures_total") == 0


async def _freeze(worker: WorkerProcess, store: Path, frozen_s: float) -> None:
    async with TierClient(worker.address) as client:
        colds = await client.cold(ASKS)
        without = await _load(client, colds, 2.0)
        await client.forget()
        await client.attach(store, policy="timeout", timeout_base_s=0.1, patience_ratio=0.1)
        for ask in ASKS:
            await client.run(ask)
            await client.written()
        await _load(client, colds, 1.0)
        await client.arm("l3.*", "drop")
        before = await client.hit_tokens()
        frozen = await _load(client, colds, frozen_s)
        after = await client.hit_tokens()
        assert after["l3"] - before["l3"] <= CONCURRENCY * len(ASKS[0].prompt), "it was not frozen"
        usual_s, frozen_median_s = statistics.median(without), statistics.median(frozen)
        assert frozen_median_s <= 2 * usual_s + 0.1, f"median {frozen_median_s:.3f} s, {usual_s:.3f} s without a store"
        assert max(frozen) <= max(without) + 2.0, f"one took {max(frozen):.1f} s, {max(without):.1f} s without a store"
        await client.disarm()
        await _thaw(client, colds, frozen_s)


async def _load(client: TierClient, colds: list[Run], seconds: float) -> list[float]:
    """Requests for so long; returns how long each took."""
    ends_at = time.monotonic() + seconds
    times: list[float] = []
    order = iter(range(10**9))

    async def ask_on() -> None:
        while time.monotonic() < ends_at:
            which = next(order) * 7 % len(ASKS)
            began_at = time.monotonic()
            run = await client.run(ASKS[which])
            times.append(time.monotonic() - began_at)
            check_exact([ASKS[which]], [run], [colds[which]])

    await asyncio.gather(*(ask_on() for _ in range(CONCURRENCY)))
    assert len(times) > 2 * CONCURRENCY
    return times


async def _thaw(client: TierClient, colds: list[Run], frozen_s: float) -> None:
    """The store is found to answer within its back-off, and then has all that it had, and takes what is new."""
    within_s = min(2 * frozen_s, SealConfig().max_back_off_s) + 15.0
    began_at = time.monotonic()
    await client.set_policies(prefetch={"policy": "wait_complete"})
    number = 0
    while not (await _ask_l3(client, colds, number)):
        assert time.monotonic() - began_at < within_s, f"L3 is not used again after {within_s:.0f} s"
        number += 1
        await asyncio.sleep(0.2)
    while not await _writes(client):
        assert time.monotonic() - began_at < within_s, f"L3 is not written again after {within_s:.0f} s"
        await asyncio.sleep(0.2)


async def _ask_l3(client: TierClient, colds: list[Run], number: int) -> bool:
    """Whether a prompt comes whole from L3."""
    which = number % len(ASKS)
    await client.flush()
    run = await client.run(ASKS[which])
    check_exact([ASKS[which]], [run], [colds[which]])
    return run.usage.cached_tokens.l3 == reusable_tokens(ASKS[which].prompt)


async def _writes(client: TierClient) -> bool:
    """Whether a prompt that nobody asked before reaches L3."""
    before = (await client.tiers())["l3"].objects
    await client.run(Ask(tuple(random.choices(range(2, 250), k=100)), 1))
    await client.written()
    return (await client.tiers())["l3"].objects > before
