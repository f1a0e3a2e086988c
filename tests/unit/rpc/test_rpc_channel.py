"""The channel pool: one channel per address and one stub of a kind on it, both new after the address was forgotten."""

from __future__ import annotations

from common.base.config import TimeoutsConfig
from common.rpc.channel import ChannelPool
from pando.v1 import worker_pb2_grpc

ADDRESS, OTHER = "127.0.0.1:1", "127.0.0.1:2"


async def test_stubs_are_made_once_and_not_kept_beyond_their_channel() -> None:
    channels = ChannelPool(TimeoutsConfig())
    stub = channels.stub(worker_pb2_grpc.WorkerServiceStub, ADDRESS)
    assert channels.stub(worker_pb2_grpc.WorkerServiceStub, ADDRESS) is stub
    assert channels.stub(worker_pb2_grpc.WorkerServiceStub, OTHER) is not stub
    assert type(channels.stub(worker_pb2_grpc.DecodeServiceStub, ADDRESS)) is worker_pb2_grpc.DecodeServiceStub
    before = channels.get(ADDRESS)
    await channels.forget(ADDRESS)
    assert channels.get(ADDRESS) is not before
    assert channels.stub(worker_pb2_grpc.WorkerServiceStub, ADDRESS) is not stub
    await channels.close()
