"""The operator's calls about roles, at one worker."""

from __future__ import annotations

import grpc

from common.base.errors import Leg
from common.rpc.errors import from_rpc_error
from pando.v1 import admin_pb2, admin_pb2_grpc

_TIMEOUT_S = 60.0


async def set_role(address: str, *roles: str, drain_s: float | None = None) -> admin_pb2.SetRoleResponse:
    """Give a worker these roles and no others. Raises PandoError."""
    request = admin_pb2.SetRoleRequest(roles=roles)
    if drain_s is not None:
        request.drain_s = drain_s
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            done: admin_pb2.SetRoleResponse = await admin_pb2_grpc.AdminServiceStub(channel).SetRole(
                request, timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, Leg.NONE) from error
        return done


async def roles_of(address: str) -> admin_pb2.GetRolesResponse:
    """Its roles, and what runs for each."""
    async with grpc.aio.insecure_channel(address) as channel:
        told: admin_pb2.GetRolesResponse = await admin_pb2_grpc.AdminServiceStub(channel).GetRoles(
            admin_pb2.GetRolesRequest(), timeout=_TIMEOUT_S
        )
        return told
