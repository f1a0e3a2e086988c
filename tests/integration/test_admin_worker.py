"""Failpoints and admin calls at real workers: armed by RPC and by file while they serve, refused unless enabled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from common.base.errors import Leg, PandoError, PeerLost, Unsupported
from common.base.failpoints import POLL_S
from common.rpc.errors import from_rpc_error
from pando.v1 import admin_pb2, admin_pb2_grpc
from tests.support.decode_calls import DecodeClient, prompt_of, request_of
from tests.support.workers import Workers

GENERATE = "rpc.DecodeService.Generate"
LIMIT_S = 30.0


async def arm(address: str, name: str, rule: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await admin_pb2_grpc.AdminServiceStub(channel).ArmFailpoint(
                admin_pb2.ArmFailpointRequest(name=name, rule=rule), timeout=LIMIT_S
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error


async def outcome(client: DecodeClient, request_id: str) -> PandoError | int:
    """The error of a short request, or the number of its tokens."""
    try:
        output = await client.generate(request_of(request_id, prompt_of(20, 1), max_tokens=4, ignore_eos=True))
    except PandoError as error:
        return error
    return len(output.token_ids)


async def test_a_worker_is_broken_and_mended_while_it_serves(tmp_path: Path) -> None:
    with Workers(failpoints_dir=str(tmp_path)) as workers:
        worker = workers.start("decode")
        async with DecodeClient(worker.address) as client:
            assert await outcome(client, "before") == 4
            await arm(worker.address, GENERATE, "1*fail")
            failed = await outcome(client, "fails")
            assert isinstance(failed, PeerLost) and failed.reason == "failpoint"
            await arm(worker.address, f"{GENERATE}.message", "2*off;1*fail")
            assert isinstance(await outcome(client, "breaks"), PeerLost)
            assert await outcome(client, "after") == 4
            await arm_by_file(client, tmp_path / GENERATE)
        assert worker.metric("pando_failpoint_faults_total", failpoint=GENERATE) >= 2
        assert worker.metric("pando_failpoint_hits_total", failpoint=f"{GENERATE}.message") >= 4


async def arm_by_file(client: DecodeClient, file: Path) -> None:
    """A file arms within its poll time, and disarms when it goes."""
    await asyncio.to_thread(file.write_text, "fail")
    await until(client, lambda result: isinstance(result, PeerLost), "armed")
    await asyncio.to_thread(file.unlink)
    await until(client, lambda result: result == 4, "disarmed")


async def until(client: DecodeClient, holds: Callable[[PandoError | int], bool], what: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        number = 0
        while not holds(await outcome(client, f"{what}-{number}")):
            number += 1
            await asyncio.sleep(POLL_S / 5)


async def test_a_worker_that_was_not_told_to_cannot_be_armed() -> None:
    with Workers() as workers:
        worker = workers.start("decode")
        with pytest.raises(Unsupported) as caught:
            await arm(worker.address, GENERATE, "fail")
        assert caught.value.reason == "failpoints_disabled"
        async with DecodeClient(worker.address) as client:
            assert await outcome(client, "served") == 4
        async with grpc.aio.insecure_channel(worker.address) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            answer = await admin.GetTiers(admin_pb2.GetTiersRequest(), timeout=LIMIT_S)
            assert [tier.tier for tier in answer.tiers] == ["l1"] and answer.tiers[0].blocks_cached == 1
            dropped = await admin.Flush(admin_pb2.FlushRequest(tier="l1"), timeout=LIMIT_S)
            assert dropped.num_blocks_dropped == 1
