"""Failpoints at a real gRPC server: calls are late, fail with the usual detail, or are never answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from common.base.config import TimeoutsConfig
from common.base.errors import DeadlineExceeded, InvalidRequest, Leg, PandoError, PeerLost
from common.base.failpoints import DISABLED, Failpoints
from common.rpc.errors import from_rpc_error
from common.rpc.server import Context, RpcServer
from pando.v1 import worker_pb2, worker_pb2_grpc

SERVICE = "pando.v1.WorkerService"
NUM_ANSWERS = 5


class Servicer(worker_pb2_grpc.WorkerServiceServicer):
    """One method of each shape; counts the calls that reach it and those that have ended."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.closed = asyncio.Event()

    async def GetStats(self, request: worker_pb2.GetStatsRequest, context: Context) -> worker_pb2.GetStatsResponse:
        self.begun += 1
        return worker_pb2.GetStatsResponse(worker_id="w")

    async def Watch(
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncGenerator[worker_pb2.WatchResponse, None]:
        self.begun += 1
        try:
            for seq in range(NUM_ANSWERS):
                yield worker_pb2.WatchResponse(seq=seq)
        finally:
            self.ended += 1
            self.closed.set()

    async def Lend(
        self, request_iterator: AsyncIterator[worker_pb2.LendRequest], context: Context
    ) -> AsyncGenerator[worker_pb2.LendResponse, None]:
        self.begun += 1
        async for _ in request_iterator:
            yield worker_pb2.LendResponse()


@asynccontextmanager
async def serving(failpoints: Failpoints) -> AsyncIterator[tuple[worker_pb2_grpc.WorkerServiceAsyncStub, Servicer]]:
    server, servicer = RpcServer(TimeoutsConfig(), [SERVICE], failpoints), Servicer()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.grpc)
    port = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield worker_pb2_grpc.WorkerServiceStub(channel), servicer
    finally:
        await server.stop(0)


async def stats(stub: worker_pb2_grpc.WorkerServiceAsyncStub, timeout_s: float = 20) -> str:
    try:
        answer = await stub.GetStats(worker_pb2.GetStatsRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, Leg.DECODE) from error
    return answer.worker_id


async def watch(stub: worker_pb2_grpc.WorkerServiceAsyncStub, timeout_s: float = 20) -> tuple[int, PandoError | None]:
    """How many answers came, and how it ended."""
    num_answers = 0
    try:
        async for _ in stub.Watch(worker_pb2.WatchRequest(), timeout=timeout_s):
            num_answers += 1
    except grpc.aio.AioRpcError as error:
        return num_answers, from_rpc_error(error, Leg.DECODE)
    return num_answers, None


async def test_unarmed_and_disabled_servers_serve() -> None:
    for failpoints in (Failpoints(), DISABLED):
        async with serving(failpoints) as (stub, _):
            assert await stats(stub) == "w"
            assert await watch(stub) == (NUM_ANSWERS, None)
    assert DISABLED.points() == []


async def test_each_method_has_its_names_but_not_the_admin_service() -> None:
    failpoints = Failpoints()
    RpcServer(TimeoutsConfig(), [SERVICE, "pando.v1.AdminService"], failpoints)
    names = {point.name for point in failpoints.points()}
    assert {"rpc.WorkerService.GetStats", "rpc.WorkerService.Lend", "rpc.WorkerService.Lend.message"} <= names
    assert "rpc.WorkerService.GetStats.message" not in names
    assert not [name for name in names if "Admin" in name]


async def test_a_call_that_fails_has_the_usual_detail() -> None:
    failpoints = Failpoints()
    async with serving(failpoints) as (stub, servicer):
        failpoints.arm("rpc.WorkerService.GetStats", "1*fail")
        with pytest.raises(PeerLost) as caught:
            await stats(stub)
        assert (caught.value.reason, caught.value.leg) == ("failpoint", Leg.DECODE)
        assert "rpc.WorkerService.GetStats" in caught.value.message
        assert servicer.begun == 0
        assert await stats(stub) == "w"
    (point,) = [p for p in failpoints.points() if p.name == "rpc.WorkerService.GetStats"]
    assert (point.hits, point.fired) == (2, 1)


async def test_a_call_that_is_late() -> None:
    failpoints = Failpoints()
    async with serving(failpoints) as (stub, _):
        failpoints.arm("rpc.WorkerService.*", "delay(0.2)")
        began = time.monotonic()
        assert await stats(stub) == "w"
        assert time.monotonic() - began >= 0.2


async def test_a_call_that_is_dropped_ends_with_its_deadline() -> None:
    failpoints = Failpoints()
    async with serving(failpoints) as (stub, servicer):
        failpoints.arm("rpc.WorkerService.GetStats", "drop")
        with pytest.raises(DeadlineExceeded):
            await stats(stub, timeout_s=0.2)
        failpoints.arm("rpc.WorkerService.Watch", "drop")
        num_answers, error = await watch(stub, timeout_s=0.2)
        assert num_answers == 0 and isinstance(error, DeadlineExceeded)
        assert servicer.begun == 0
        failpoints.disarm_all()
        assert await stats(stub) == "w"


async def test_a_stream_fails_after_some_messages() -> None:
    failpoints = Failpoints()
    async with serving(failpoints) as (stub, servicer):
        failpoints.arm("rpc.WorkerService.Watch.message", "3*off;1*fail")
        num_answers, error = await watch(stub)
        assert num_answers == 3 and isinstance(error, PeerLost)
        assert (servicer.begun, servicer.ended) == (1, 1), "the handler behind it was not closed"
        assert await watch(stub) == (NUM_ANSWERS, None)


async def test_a_stream_that_stalls() -> None:
    failpoints = Failpoints()
    async with serving(failpoints) as (stub, servicer):
        failpoints.arm("rpc.WorkerService.Watch.message", "2*off;drop")
        num_answers, error = await watch(stub, timeout_s=2.0)
        assert num_answers == 2 and isinstance(error, DeadlineExceeded)
        async with asyncio.timeout(20):
            await servicer.closed.wait()


async def test_streams_both_ways() -> None:
    failpoints = Failpoints()
    async with serving(failpoints) as (stub, _):
        failpoints.arm("rpc.WorkerService.Lend.message", "1*off;1*fail")
        call = stub.Lend()
        await call.write(worker_pb2.LendRequest())
        assert await call.read() == worker_pb2.LendResponse()
        await call.write(worker_pb2.LendRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_arming_is_checked_against_the_methods() -> None:
    failpoints = Failpoints()
    async with serving(failpoints):
        with pytest.raises(InvalidRequest, match="no payload"):
            failpoints.arm("rpc.WorkerService.Lend", "truncate")
        with pytest.raises(InvalidRequest, match=r"rpc\.WorkerService\.Lend"):
            failpoints.arm("rpc.WorkerService.Borrow", "fail")
