"""The RPCs that every worker offers: info, stats, watch, lend, configure, flush, health, reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.base.errors import InvalidRequest, LayoutMismatch, Leg, Overloaded, WrongRole
from common.kv.hashing import block_hashes, prefix_root
from common.rpc.convert import join_hashes
from common.rpc.errors import from_rpc_error
from pando.v1 import worker_pb2, worker_pb2_grpc
from tests.support.decode_calls import DecodeClient, prompt_of, request_of
from tests.support.workers import WorkerProcess, Workers


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with Workers(max_lent_blocks="6", worker_id="w1") as workers:
        yield workers.start("decode")


@pytest.fixture
async def client(worker: WorkerProcess) -> AsyncIterator[DecodeClient]:
    async with DecodeClient(worker.address) as client:
        await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
        yield client
        worker.check_idle()


async def lend(
    client: DecodeClient, request: worker_pb2.LendRequest
) -> tuple[grpc.aio.StreamStreamCall[worker_pb2.LendRequest, worker_pb2.LendResponse], worker_pb2.LendResponse]:
    call = client.worker.Lend()
    try:
        await call.write(request)
        answer = await call.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, Leg.NONE) from error
    assert isinstance(answer, worker_pb2.LendResponse)
    return call, answer


async def test_info_says_who_it_is(client: DecodeClient, worker: WorkerProcess) -> None:
    info = await client.worker.GetInfo(worker_pb2.GetInfoRequest())
    assert (info.worker_id, list(info.roles), info.pid) == ("w1", ["decode"], worker.process.pid)
    assert info.incarnation == worker.facts["incarnation"] == worker.stats().incarnation
    assert info.identity.numerics_id == worker.facts["numerics"]
    assert (info.identity.block_size, info.identity.block_bytes, len(info.identity.namespace)) == (16, 8192, 32)
    assert [endpoint.driver for endpoint in info.endpoints] == ["shm"]
    assert (info.max_model_len, info.num_blocks) == (4096, 1024)


async def test_watch_follows_the_index(client: DecodeClient) -> None:
    prompt = prompt_of(64, 1)
    hashes = block_hashes(prefix_root(16, ""), prompt, 16)
    await client.generate(request_of("before", prompt[:40], max_tokens=1))
    watch = client.worker.Watch(worker_pb2.WatchRequest())
    snapshot = await watch.read()
    assert snapshot.snapshot and snapshot.snapshot_end
    assert [event.prefix_hash for event in snapshot.events] == hashes[:2]
    await client.generate(request_of("more", prompt, max_tokens=1))
    stored = await watch.read()
    assert [event.prefix_hash for event in stored.events] == hashes[2:]
    assert stored.events[0].parent_hash == hashes[1]
    assert stored.seq == snapshot.seq + 2 and stored.incarnation == snapshot.incarnation
    await client.worker.FlushCache(worker_pb2.FlushCacheRequest())
    cleared = await watch.read()
    assert cleared.events[-1].kind == worker_pb2.BlockEvent.KIND_CLEARED
    watch.cancel()


async def test_lend_gives_the_contiguous_head_and_holds_it(client: DecodeClient, worker: WorkerProcess) -> None:
    prompt = prompt_of(64, 2)
    await client.generate(request_of("lent", prompt, max_tokens=1))
    hashes = block_hashes(prefix_root(16, ""), prompt, 16)
    identity = (await client.worker.GetInfo(worker_pb2.GetInfoRequest())).identity
    wanted = worker_pb2.LendRequest(
        identity=identity, prefix_hashes=join_hashes([*hashes[:3], bytes(32), bytes(32)]), first_block=1
    )
    call, answer = await lend(client, wanted)
    assert len(answer.extents) == 2, "blocks 1 and 2: block 0 is at the caller, the next is unknown"
    assert worker.stats().blocks_held == 2
    assert (await client.worker.FlushCache(worker_pb2.FlushCacheRequest())).num_blocks_dropped == 1
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    worker.check_idle()


@pytest.mark.parametrize("first_block", [0, 9])
async def test_lend_of_what_is_not_there_is_empty(client: DecodeClient, first_block: int) -> None:
    identity = (await client.worker.GetInfo(worker_pb2.GetInfoRequest())).identity
    call, answer = await lend(
        client, worker_pb2.LendRequest(identity=identity, prefix_hashes=bytes(96), first_block=first_block)
    )
    assert not answer.extents
    call.cancel()


async def test_a_streamed_message_that_is_none_is_the_callers_fault(worker: WorkerProcess) -> None:
    async with grpc.aio.insecure_channel(worker.address) as channel:
        call = channel.stream_stream("/pando.v1.WorkerService/Lend")()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.write(b"\xff\xfe no message")
            await call.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_lend_is_bounded(client: DecodeClient) -> None:
    prompt = prompt_of(16 * 4, 3)
    await client.generate(request_of("lent", prompt, max_tokens=1))
    identity = (await client.worker.GetInfo(worker_pb2.GetInfoRequest())).identity
    hashes = join_hashes(block_hashes(prefix_root(16, ""), prompt, 16))
    request = worker_pb2.LendRequest(identity=identity, prefix_hashes=hashes)
    call, _ = await lend(client, request)
    with pytest.raises(Overloaded) as refused:
        await lend(client, request)
    assert refused.value.reason == "too_many_loans"
    call.cancel()


async def test_lend_to_a_stranger_is_refused(client: DecodeClient) -> None:
    identity = (await client.worker.GetInfo(worker_pb2.GetInfoRequest())).identity
    identity.block_bytes += 1
    with pytest.raises(LayoutMismatch, match="block_bytes"):
        await lend(client, worker_pb2.LendRequest(identity=identity))


async def test_a_request_of_another_namespace_is_refused(client: DecodeClient) -> None:
    request = request_of("stranger", prompt_of(20, 4))
    request.request.namespace = bytes(32)
    with pytest.raises(LayoutMismatch, match="namespace"):
        await client.generate(request)


async def test_configure_checks_first_and_changes_behaviour(client: DecodeClient, worker: WorkerProcess) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.worker.Configure(worker_pb2.ConfigureRequest(schedule_policy="lifo", max_num_seqs=1))
    assert isinstance(from_rpc_error(refused.value, Leg.NONE), InvalidRequest)
    before = await client.worker.Configure(worker_pb2.ConfigureRequest())
    assert (before.schedule_policy, before.chunked_prefill_size, before.max_num_seqs) == ("fcfs", 256, 64)
    assert before.max_batch_tokens == 256

    async def num_steps(request_id: str) -> float:
        began = worker.metric("pando_worker_engine_step_seconds_count", phase="prefill")
        await client.generate(request_of(request_id, prompt_of(128, len(request_id)), max_tokens=1))
        return worker.metric("pando_worker_engine_step_seconds_count", phase="prefill") - began

    assert await num_steps("whole") == 1
    changed = await client.worker.Configure(worker_pb2.ConfigureRequest(chunked_prefill_size=32))
    assert changed.chunked_prefill_size == 32
    assert await num_steps("chunked") == 4
    larger = await client.worker.Configure(worker_pb2.ConfigureRequest(chunked_prefill_size=512))
    assert (larger.chunked_prefill_size, larger.max_batch_tokens) == (512, 512), "a step lets a whole chunk through"


async def test_health_and_reflection(worker: WorkerProcess) -> None:
    async with grpc.aio.insecure_channel(worker.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        services = {"pando.v1.WorkerService", "pando.v1.DecodeService", "pando.v1.PrefillService"}
        for service in ("", *services):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        await call.done_writing()
        assert services <= listed
        prefill = worker_pb2_grpc.PrefillServiceStub(channel).Handoff()
        await prefill.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await prefill.read()
        assert isinstance(from_rpc_error(refused.value, Leg.NONE), WrongRole)


async def test_every_worker_may_be_asked_while_it_computes(client: DecodeClient, worker: WorkerProcess) -> None:
    request = request_of("busy", prompt_of(2000, 5), max_tokens=2000, ignore_eos=True)
    call = asyncio.create_task(client.generate(request))
    num_seen = 0
    while num_seen < 20:
        assert not call.done(), "it ended while it was looked at"
        stats = await client.worker.GetStats(worker_pb2.GetStatsRequest())
        assert stats.blocks_free + stats.blocks_cached + stats.blocks_held == stats.blocks_total
        num_seen += stats.num_running
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert worker.stats().prefill_tokens_per_s > 0
