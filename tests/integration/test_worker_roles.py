"""Roles of real workers change while they serve: what runs ends or is told, what is cached stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from common.base.errors import Leg, WrongRole
from pando.v1 import worker_pb2
from tests.support.decode_calls import DecodeClient, Output, prompt_of, request_of
from tests.support.role_calls import roles_of, set_role
from tests.support.workers import WorkerProcess, Workers

BLOCK, LONG = 16, 600


@dataclass
class Pair:
    """A worker of each role at the start, and clients of both."""

    p: WorkerProcess
    d: WorkerProcess
    at_p: DecodeClient
    at_d: DecodeClient


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with Workers(local_prefill_tokens="0") as workers:
        yield workers.start_pair()


@pytest.fixture
async def pair(processes: tuple[WorkerProcess, WorkerProcess]) -> AsyncIterator[Pair]:
    """Each worker has its own role and nothing cached; after the test nothing is held."""
    p, d = processes
    async with DecodeClient(p.address) as at_p, DecodeClient(d.address) as at_d:
        for client in (at_p, at_d):
            await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
        yield Pair(p, d, at_p, at_d)
        await set_role(p.address, "prefill")
        await set_role(d.address, "decode")
    for worker in processes:
        worker.check_idle()


async def follow(client: DecodeClient, request: worker_pb2.DecodeServiceGenerateRequest, output: Output) -> None:
    async for frame in client.frames(request):
        output.add(frame)


async def until_first_token(output: Output) -> None:
    async with asyncio.timeout(30):
        while not output.token_ids:  # noqa: ASYNC110 - the frames come from another process
            await asyncio.sleep(0.001)


async def test_a_worker_that_changes_its_role_keeps_its_cache_and_its_life(pair: Pair) -> None:
    prompt = prompt_of(10 * BLOCK + 1, 1)
    before = pair.p.stats()
    watch = pair.at_p.worker.Watch(worker_pb2.WatchRequest())
    first = await pair.at_d.generate(request_of("pd", prompt, prefill=pair.p.address))
    assert first.usage.cached_tokens.l1 == 0 and first.usage.transfer_bytes > 0

    await set_role(pair.p.address, "decode")
    await set_role(pair.d.address, "prefill")
    as_decode = await pair.at_p.generate(request_of("at-p", prompt))
    assert as_decode.usage.cached_tokens.l1 == 10 * BLOCK, "what it computed as prefill serves it as decode"
    await pair.at_p.worker.FlushCache(worker_pb2.FlushCacheRequest())
    swapped = await pair.at_p.generate(request_of("dp", prompt, prefill=pair.d.address))
    assert swapped.usage.cached_tokens.l1 == 10 * BLOCK, "what it fetched as decode serves it as prefill"

    await set_role(pair.p.address, "prefill")
    await set_role(pair.d.address, "decode")
    await pair.at_d.worker.FlushCache(worker_pb2.FlushCacheRequest())
    back = await pair.at_d.generate(request_of("back", prompt, prefill=pair.p.address))
    assert back.usage.cached_tokens.l1 == 10 * BLOCK
    assert first.token_ids == as_decode.token_ids == swapped.token_ids == back.token_ids

    after = pair.p.stats()
    assert (before.worker_id, before.incarnation) == (after.worker_id, after.incarnation)
    assert list(after.roles) == ["prefill"] and not watch.done()
    watch.cancel()


async def test_what_is_new_is_refused_and_what_runs_ends(pair: Pair) -> None:
    output = Output()
    running = asyncio.create_task(follow(pair.at_d, request_of("old", prompt_of(20, 2), max_tokens=LONG), output))
    await until_first_token(output)
    done = await set_role(pair.d.address, "prefill")
    assert (list(done.before), done.roles.num_decode) == (["decode"], 1)
    with pytest.raises(WrongRole) as refused:
        await pair.at_d.generate(request_of("new", prompt_of(20, 3)))
    assert refused.value.leg is Leg.DECODE
    assert list(pair.d.stats().roles) == ["prefill"]
    await running
    assert len(output.token_ids) == LONG and output.last.finish_reason
    told = await roles_of(pair.d.address)
    assert (list(told.roles), told.num_decode) == (["prefill"], 0) and told.changed_s > 0
    assert pair.d.metric("pando_worker_role", role="prefill") == 1
    assert pair.d.metric("pando_worker_role", role="decode") == 0


async def test_what_outlives_its_time_is_told_so(pair: Pair) -> None:
    output = Output()
    running = asyncio.create_task(follow(pair.at_d, request_of("old", prompt_of(20, 4), max_tokens=LONG), output))
    await until_first_token(output)
    await set_role(pair.d.address, "prefill", drain_s=0.0)
    with pytest.raises(WrongRole):
        await running
    assert 0 < len(output.token_ids) < LONG


async def test_a_prefill_worker_that_left_is_blamed_as_that_leg(pair: Pair) -> None:
    await set_role(pair.p.address, "decode")
    with pytest.raises(WrongRole) as refused:
        await pair.at_d.generate(request_of("r", prompt_of(40, 5), prefill=pair.p.address))
    assert refused.value.leg is Leg.PREFILL
