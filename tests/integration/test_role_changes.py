"""Roles of a real worker change while it serves: what runs ends or is told, what is cached stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from common.base.errors import Leg, WrongRole
from common.rpc.errors import from_rpc_error
from pando.v1 import worker_pb2, worker_pb2_grpc
from tests.support.decode_calls import DecodeClient, Output, prompt_of, request_of
from tests.support.role_calls import roles_of, set_role
from tests.support.workers import WorkerProcess, Workers

BLOCK, LONG = 16, 1000
"""An output that is still under way when a test has looked at its first token and asked for something."""


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with Workers() as workers:
        yield workers.start("decode")


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[DecodeClient]:
    """The worker decodes and has nothing cached; after the test nothing is held."""
    async with DecodeClient(worker.address) as client:
        await set_role(worker.address, "decode")
        await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
        yield client
    worker.check_idle()


async def hand_off(worker: WorkerProcess, request_id: str, prompt: list[int]) -> worker_pb2.FirstToken:
    """Ask the worker to prefill, as a decode worker that has nothing does. Raises PandoError."""
    async with grpc.aio.insecure_channel(worker.address) as channel:
        info = await worker_pb2_grpc.WorkerServiceStub(channel).GetInfo(worker_pb2.GetInfoRequest())
        start = worker_pb2.HandoffStart(request=request_of(request_id, prompt).request, identity=info.identity)
        call = worker_pb2_grpc.PrefillServiceStub(channel).Handoff()
        try:
            await call.write(worker_pb2.HandoffRequest(start=start))
            while (message := await call.read()).WhichOneof("message") != "first_token":
                pass
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        first: worker_pb2.FirstToken = message.first_token
        return first


async def follow(client: DecodeClient, request: worker_pb2.DecodeServiceGenerateRequest, output: Output) -> None:
    async for frame in client.frames(request, timeout_s=600.0):
        output.add(frame)


async def until_first_token(output: Output) -> None:
    async with asyncio.timeout(60):
        while not output.token_ids:  # noqa: ASYNC110 - the frames come from another process
            await asyncio.sleep(0.001)


async def test_a_worker_that_changes_its_role_keeps_its_cache_and_its_life(
    client: DecodeClient, worker: WorkerProcess
) -> None:
    mine, other = prompt_of(10 * BLOCK + 1, 1), prompt_of(10 * BLOCK + 1, 2)
    before = worker.stats()
    watch = client.worker.Watch(worker_pb2.WatchRequest())
    first = await client.generate(request_of("decode", mine))
    assert first.usage.cached_tokens.l1 == 0

    await set_role(worker.address, "prefill")
    as_prefill = await hand_off(worker, "prefill", mine)
    assert as_prefill.cached_tokens.l1 == 10 * BLOCK, "what it computed as decode serves it as prefill"
    assert as_prefill.token_id == first.token_ids[0]
    assert (await hand_off(worker, "new", other)).cached_tokens.l1 == 0

    await set_role(worker.address, "decode")
    for prompt in (mine, other):
        again = await client.generate(request_of("again", prompt))
        assert again.usage.cached_tokens.l1 == 10 * BLOCK, "and what it computed as prefill serves it as decode"
    after = worker.stats()
    assert (before.worker_id, before.incarnation) == (after.worker_id, after.incarnation)
    assert list(after.roles) == ["decode"] and not watch.done()
    watch.cancel()


async def test_what_is_new_is_refused_and_what_runs_ends(client: DecodeClient, worker: WorkerProcess) -> None:
    output = Output()
    running = asyncio.create_task(
        follow(client, request_of("old", prompt_of(20, 2), max_tokens=LONG, ignore_eos=True), output)
    )
    await until_first_token(output)
    done = await set_role(worker.address, "prefill", drain_s=600.0)
    assert (list(done.before), done.roles.num_decode) == (["decode"], 1)
    with pytest.raises(WrongRole) as refused:
        await client.generate(request_of("new", prompt_of(20, 3)))
    assert refused.value.leg is Leg.DECODE
    assert list(worker.stats().roles) == ["prefill"]
    await running
    assert len(output.token_ids) == LONG and output.last.finish_reason
    told = await roles_of(worker.address)
    assert (list(told.roles), told.num_decode) == (["prefill"], 0) and told.changed_s > 0
    assert worker.metric("pando_worker_role", role="prefill") == 1
    assert worker.metric("pando_worker_role", role="decode") == 0


async def test_what_outlives_its_time_is_told_so(client: DecodeClient, worker: WorkerProcess) -> None:
    output = Output()
    running = asyncio.create_task(
        follow(client, request_of("old", prompt_of(20, 4), max_tokens=2 * LONG, ignore_eos=True), output)
    )
    await until_first_token(output)
    await set_role(worker.address, "prefill", drain_s=0.0)
    with pytest.raises(WrongRole):
        await running
    assert 0 < len(output.token_ids) < 2 * LONG


async def test_a_worker_that_does_not_prefill_is_blamed_as_that_leg(
    client: DecodeClient, worker: WorkerProcess
) -> None:
    with pytest.raises(WrongRole) as refused:
        await hand_off(worker, "r", prompt_of(40, 5))
    assert refused.value.leg is Leg.PREFILL
