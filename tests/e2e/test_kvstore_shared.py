"""Prefill and decode share through the store alone: who computed a prefix is gone before who reuses it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.node_kills import ForkedStore
from tests.support.oracle import Ask, Run
from tests.support.store_fleet import all_killed
from tests.support.tier_client import TierClient, check_exact, reusable_tokens
from tests.support.workers import NO_REGISTRY, WorkerProcess, Workers

pytestmark = pytest.mark.e2e
PROMPT = tuple(2 + (i * i * 29 + i * 5) % 250 for i in range(200))
ASK = Ask(PROMPT, 8)
FLAGS = {"debug_logits_digest": "", "local_prefill_tokens": "0"}


@pytest.fixture
def store() -> Iterator[str]:
    """Address of a store that is one process."""
    with all_killed([ForkedStore("shared", NO_REGISTRY, "--roles", "node", "--segment-size", str(64 << 20))]) as nodes:
        yield nodes[0].address


def test_what_a_prefill_worker_computed_a_decode_worker_finds_when_it_is_gone(store: str) -> None:
    """Only the prefill worker writes to the store. The decode worker that reads it began when both others had ended."""
    with Workers(**FLAGS) as workers:
        prefill, decode = workers.start_pair()
        cold = asyncio.run(compute(prefill, decode, store))
        assert (prefill.terminate(), decode.terminate()) == (0, 0)
        alone, found = asyncio.run(reuse(workers.start("decode"), store))
    check_exact([ASK] * 2, [alone, found], [cold] * 2)
    assert alone.num_cached == 0, "without the store there must be nothing to find"
    assert found.usage.cached_tokens.l3 == found.num_cached == reusable_tokens(PROMPT), found.usage


async def compute(prefill: WorkerProcess, decode: WorkerProcess, store: str) -> Run:
    """A request that is computed by a prefill worker, for a decode worker without a store; its run."""
    async with TierClient(prefill.address) as writer, TierClient(decode.address) as client:
        await writer.attach_store(store)
        run = await client.run(replace(ASK, prefill=prefill.address))
        assert run.usage.transfer_bytes > 0 and run.num_cached == 0, run.usage
        await writer.written()
        return run


async def reuse(decode: WorkerProcess, store: str) -> tuple[Run, Run]:
    """The request on a worker that knows nobody, before and after it has the store."""
    async with TierClient(decode.address) as client:
        alone = await client.run(ASK)
        await client.forget()
        await client.attach_store(store)
        return alone, await client.run(ASK)
