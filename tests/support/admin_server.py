"""A server with the admin service over tiers that do not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.base.config import TimeoutsConfig
from common.base.failpoints import DISABLED, Failpoints, Kind
from common.rpc.failpoint_interceptor import ADMIN_SERVICE
from common.rpc.operator import OperatorGuard
from common.rpc.server import RpcServer
from common.worker.admin_service import AdminServicer
from common.worker.roles import WorkerRoles
from pando.v1 import admin_pb2_grpc
from tests.support.fake_tiers import FakeTiers


def some_failpoints() -> Failpoints:
    """Enabled, with `l3.read` registered."""
    failpoints = Failpoints()
    failpoints.register("l3.read", Kind.DATA, "one object is read")
    return failpoints


@asynccontextmanager
async def admin_server(failpoints: Failpoints = DISABLED, token: str = "") -> AsyncIterator[tuple[str, FakeTiers]]:
    """Yields host:port and the tiers."""
    server, tiers = RpcServer(TimeoutsConfig(), [ADMIN_SERVICE], failpoints), FakeTiers()
    roles = WorkerRoles("w1", ["prefill"], lambda make_error, request_ids: None, drain_s=1.0)
    servicer = AdminServicer("w1", tiers, failpoints, OperatorGuard(token), roles)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server.grpc)
    port = server.bind("127.0.0.1", 0)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", tiers
    finally:
        await server.stop(0)
