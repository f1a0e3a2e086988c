"""Paths that fork while a slow L3 writes them, and an L3 that comes when blocks are here already: names stay right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.oracle import Ask
from tests.support.store_files import num_files
from tests.support.tier_client import BLOCK, TierClient, check_exact, names_of, reusable_tokens
from tests.support.workers import WorkerProcess, Workers

P = tuple(2 + (i * i * 31 + i * 7 + i // 256) % 250 for i in range(1024))
FORK_X, FORK_Y = (*P[:500], *([3, 5, 8] * 20)), (*P[:200], *([9, 4] * 25))
NUM_OUTPUT = 4
FLAGS = {"debug_logits_digest": "", "enable_failpoints": "", "chunked_prefill_size": "128"}
TIERS = {"no-l2": {}, "l2": {"hicache_ratio": "1"}, "small-l2": {"max_total_tokens": "4096", "hicache_ratio": "0.6"}}
"""The small L2 holds P twice: a batch from L3 takes half of it at most."""


@pytest.mark.parametrize("tiers", TIERS)
def test_split_while_writing(tiers: str, tmp_path: Path) -> None:
    with Workers(**(FLAGS | TIERS[tiers])) as workers:
        asyncio.run(_split(workers.start("decode"), tmp_path / "store"))


async def _split(worker: WorkerProcess, store: Path) -> None:
    asks = [Ask(prompt, NUM_OUTPUT) for prompt in (P, FORK_X, FORK_Y)]
    async with TierClient(worker.address) as client:
        colds = await client.cold(asks)
        await client.attach(store)
        await client.arm("l3.put", "delay(0.2)")
        async with writing_seen(client):
            runs = await asyncio.gather(*(client.run(ask) for ask in asks))
        check_exact(asks, runs, colds)
        await client.forget()
        for ask, cold in zip(asks, colds, strict=True):
            back = await client.run(ask)
            check_exact([ask], [back], [cold])
            assert back.usage.cached_tokens.l3 == reusable_tokens(ask.prompt), f"{back.usage.cached_tokens}"
            await client.forget()
        names = {name for ask in asks for name in names_of((*ask.prompt, 0))}
        assert num_files(store) == len(names) < sum(len(ask.prompt) // BLOCK for ask in asks), "forks are stored once"


@asynccontextmanager
async def writing_seen(client: TierClient) -> AsyncGenerator[None, None]:
    """Fail unless something was being written to L3 at some time during the body, or still is after it."""
    seen = [0]

    async def look() -> None:
        while not seen[0]:
            seen[0] = (await client.tiers())["l3"].pending_writes
            await asyncio.sleep(0.005)

    looking = asyncio.create_task(look())
    yield
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert seen[0] or (await client.tiers())["l3"].pending_writes, "the store was not slow"


@pytest.mark.parametrize("tiers", ["no-l2", "l2"])
def test_a_store_attached_late_gets_the_right_names(tiers: str, tmp_path: Path) -> None:
    with Workers(**(FLAGS | TIERS[tiers])) as workers:
        asyncio.run(_attach_late(workers.start("decode"), tmp_path / "store"))


async def _attach_late(worker: WorkerProcess, store: Path) -> None:
    whole, fork, half = Ask(P, NUM_OUTPUT), Ask(FORK_X, NUM_OUTPUT), Ask(P[512:], NUM_OUTPUT)
    async with TierClient(worker.address) as client:
        [cold, cold_fork, cold_half] = await client.cold([whole, fork, half])
        check_exact([whole, fork], [await client.run(whole), await client.run(fork)], [cold, cold_fork])
        await client.attach(store)
        await client.forget()
        run = await client.run(half)
        check_exact([half], [run], [cold_half])
        assert run.num_cached == 0, f"the second half of P was found as if it began a prompt: {run.usage.cached_tokens}"
        for ask, right in ((whole, cold), (fork, cold_fork)):
            await client.forget()
            run = await client.run(ask)
            check_exact([ask], [run], [right])
            assert run.usage.cached_tokens.l3 == reusable_tokens(ask.prompt)
