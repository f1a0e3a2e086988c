"""An L2 that is smaller than L1, a full L3, every write policy: no error, no cap exceeded, right outputs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.oracle import Ask, Run
from tests.support.store_files import num_files
from tests.support.tier_client import BLOCK, MAX_L3_FILL, TierClient, all_at_once, check_exact
from tests.support.workers import WorkerProcess, Workers

NUM_REQUESTS, NUM_REPEATS, PROMPT_TOKENS, CONCURRENCY = 110, 33, 700, 4
L1_TOKENS, L2_TOKENS = 4096, 1024
L3_BLOCKS = 512
POLICIES = ("write_through", "write_through_selective", "write_back")
FLAGS = {
    "debug_logits_digest": "",
    "max_total_tokens": str(L1_TOKENS),
    "hicache_ratio": str(L2_TOKENS / L1_TOKENS),
}


def workload() -> list[Ask]:
    """Prompts of which three in ten came before; those of half of these have left L1 by then."""
    draw = random.Random(11)
    repeats = set(draw.sample(range(16, NUM_REQUESTS), NUM_REPEATS))
    asks: list[Ask] = []
    for number in range(NUM_REQUESTS):
        if number in repeats:
            asks.append(asks[-draw.choice((2, 3, 4, 10, 12, 16))])
        else:
            asks.append(Ask(tuple(draw.randrange(2, 250) for _ in range(PROMPT_TOKENS)), 1 + number % 2))
    return asks


@pytest.mark.timeout(600)
def test_a_small_l2_and_a_full_l3_under_every_policy(tmp_path: Path) -> None:
    with Workers(**FLAGS) as workers:
        worker = workers.start("decode")
        asyncio.run(_press(worker, tmp_path))
        assert worker.metric("pando_worker_requests_total", outcome="error") == 0
        assert not [line for line in worker.log if '"level": "error"' in line]


async def _press(worker: WorkerProcess, folder: Path) -> None:
    asks = workload()
    assert len(set(asks)) == NUM_REQUESTS - NUM_REPEATS
    async with TierClient(worker.address) as client:
        distinct = list(dict.fromkeys(asks))
        colds = dict(zip(distinct, await client.cold(distinct), strict=True))
        for policy in POLICIES:
            await client.set_policies(write_policy=policy)
            hits = await _run(client, asks, [colds[ask] for ask in asks], folder / policy)
            assert min(hits["l1"], hits["l2"] + hits["l3"]) > 0, f"{policy}: tokens found by tier {hits}"


async def _run(client: TierClient, asks: Sequence[Ask], colds: Sequence[Run], store: Path) -> dict[str, int]:
    """Run everything on an L3 of its own; returns the tokens found per tier."""
    block_file_bytes = await client.block_bytes() + 64
    await client.attach(store, size_gb=L3_BLOCKS * block_file_bytes / 1e9)
    before = await client.hit_tokens()
    async with watched_caps(client):
        check_exact(asks, await all_at_once(client, asks, CONCURRENCY), colds)
    await client.forget()
    assert 0 < num_files(store) <= L3_BLOCKS * MAX_L3_FILL
    after = await client.hit_tokens()
    await client.detach()
    return {tier: after[tier] - before[tier] for tier in after}


@asynccontextmanager
async def watched_caps(client: TierClient) -> AsyncGenerator[None, None]:
    """Look at the tiers all the time while the body runs: what they hold stays within what they may."""

    async def watch() -> None:
        while True:
            tiers = await client.tiers()
            assert tiers["l1"].blocks_total == L1_TOKENS // BLOCK and tiers["l2"].blocks_total == L2_TOKENS // BLOCK
            assert tiers["l3"].bytes <= tiers["l3"].capacity_bytes * MAX_L3_FILL
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        [ended] = await asyncio.gather(watching, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError), ended
