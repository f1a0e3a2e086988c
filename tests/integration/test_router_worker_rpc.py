"""Calls to a worker whose channel is dropped under them end as a lost peer, never as a cancellation of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import Cancelled, PeerLost
from common.tokenizer.tokenizer import Tokenizer
from pando.v1 import worker_pb2
from services.router.running import RunningTable, Ticket
from services.router.worker_rpc import WorkerRpc
from tests.support.fake_worker import FakeWorker, Fault
from tests.support.router_bench import eventually
from tests.support.tiny_vocab import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
async def worker(tokenizer: Tokenizer) -> AsyncIterator[FakeWorker]:
    made = await FakeWorker("w", ["decode"], tokenizer).start()
    yield made
    await made.kill()


@pytest.fixture
async def rpc() -> AsyncIterator[WorkerRpc]:
    made = WorkerRpc(TimeoutsConfig(ping_s=30))
    yield made
    await made.close()


def request() -> worker_pb2.DecodeServiceGenerateRequest:
    made = worker_pb2.DecodeServiceGenerateRequest()
    made.request.prompt_token_ids.append(1)
    made.request.sampling.max_tokens = 5
    return made


async def read(rpc: WorkerRpc, worker: FakeWorker, ticket: Ticket) -> None:
    """Run a generation to its end."""
    with rpc.generate(worker.record.address, request(), 30, ticket) as answers:
        async for _ in answers:
            pass


async def lost(call: Awaitable[object]) -> None:
    with pytest.raises(PeerLost):
        await call


async def test_a_ping(worker: FakeWorker, rpc: WorkerRpc) -> None:
    await rpc.get_info(worker.record.address)
    worker.pings_hang = True
    ping = asyncio.create_task(rpc.get_stats(worker.record.address))
    await eventually(lambda: worker.num_pings == 1, "the ping has come")
    await rpc.forget(worker.record.address)
    await lost(ping)


async def test_a_watch(worker: FakeWorker, rpc: WorkerRpc) -> None:
    updates = rpc.watch(worker.record.address, 1)
    assert (await anext(updates)).snapshot_end
    following = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0)
    await rpc.forget(worker.record.address)
    await lost(following)


async def test_a_generation(worker: FakeWorker, rpc: WorkerRpc) -> None:
    fault = Fault(after=1, hang=True)
    worker.faults.append(fault)
    with RunningTable(1, 100).admit("r") as ticket:
        reading = asyncio.create_task(read(rpc, worker, ticket))
        await fault.reached.wait()
        await rpc.forget(worker.record.address)
        await lost(reading)


async def test_an_abort_and_a_cancelled_caller_are_told_apart(worker: FakeWorker, rpc: WorkerRpc) -> None:
    table = RunningTable(1, 100)
    for ending, how in ((Cancelled, "abort"), (asyncio.CancelledError, "cancel")):
        fault = Fault(after=1, hang=True)
        worker.faults.append(fault)
        with table.admit("r") as ticket:
            reading = asyncio.create_task(read(rpc, worker, ticket))
            await fault.reached.wait()
            assert reading.cancel() if how == "cancel" else table.abort("r")
            with pytest.raises(ending):
                await reading
