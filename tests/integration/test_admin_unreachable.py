"""No client can arm a failpoint or call an admin method: not at the router's port, not at the gateway's.

Each refusal has its control: the same call does its work at a worker that was started with failpoints.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pando.v1 import admin_pb2, admin_pb2_grpc
from tests.support.admin_server import admin_server, some_failpoints
from tests.support.fake_inference import MODEL
from tests.support.gateway_thread import GatewayThread
from tests.support.router_bench import bench, write_model

METHODS = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name
ARM = admin_pb2.ArmFailpointRequest(name="l3.read", rule="fail")


async def statuses(channel: grpc.aio.Channel) -> dict[str, grpc.StatusCode]:
    """What each admin method answers there to an empty request from an operator's machine."""
    stub, found = admin_pb2_grpc.AdminServiceStub(channel), {}
    for name, method in METHODS.items():
        call = getattr(stub, name)(getattr(admin_pb2, method.input_type.name)(), timeout=20)
        found[name] = await call.code()
    return found


async def listed_services(channel: grpc.aio.Channel) -> set[str]:
    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(ask())
    return {service.name async for answer in call for service in answer.list_services_response.service}


async def test_a_worker_that_was_started_with_failpoints_can_be_armed() -> None:
    failpoints = some_failpoints()
    async with admin_server(failpoints) as (address, _), grpc.aio.insecure_channel(address) as channel:
        assert grpc.StatusCode.UNIMPLEMENTED not in (await statuses(channel)).values()
        assert "pando.v1.AdminService" in await listed_services(channel)
        await admin_pb2_grpc.AdminServiceStub(channel).ArmFailpoint(ARM)
    assert [armed.name for armed in failpoints.armed()] == ["l3.read"]


async def test_the_router_knows_no_admin_method(tmp_path: Path) -> None:
    async with bench(write_model(tmp_path)) as router:
        assert set((await statuses(router.channel)).values()) == {grpc.StatusCode.UNIMPLEMENTED}
        assert not [name for name in await listed_services(router.channel) if "Admin" in name]


@pytest.mark.parametrize("program", ["router", "gateway"])
def test_public_processes_do_not_even_hold_the_service(program: str) -> None:
    """What is not imported cannot be served, nor called on a worker on behalf of a client."""
    probe = "print([m for m in ('pando.v1.admin_pb2', 'common.worker.admin_service') if m in sys.modules])"
    code = f"import sys, services.{program}.__main__; {probe}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_gateway_knows_no_admin_route() -> None:
    with GatewayThread() as gateway, httpx.Client(base_url=gateway.url) as client:
        doors = [door.path for door in gateway.gateway.doors]
        assert "/v1/completions" in doors
        assert not [path for path in doors if "admin" in path.lower() or "failpoint" in path.lower()]
        for method in METHODS:
            for path in (f"/pando.v1.AdminService/{method}", f"/admin/{method.lower()}", f"/v1/admin/{method.lower()}"):
                assert client.post(path, json={"name": "l3.read", "rule": "fail"}).status_code == 404


def test_a_request_cannot_carry_a_rule_to_a_worker() -> None:
    """Whatever a client adds to a request, headers included, the message to the router holds none of it."""
    extra = {"failpoint": "l3.read=fail", "failpoints": {"l3.read": "fail"}, "admin": {"rule": "fail"}}
    headers = {"authorization": "Bearer x", "failpoint": "l3.read=fail", "grpc-metadata-failpoint": "l3.read=fail"}
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    with GatewayThread() as gateway, httpx.Client(base_url=gateway.url) as client:
        assert client.post("/v1/completions", json=body).status_code == 200
        client.post("/v1/completions", json=body | extra, headers=headers)
        requests = [str(request) for request in gateway.fake.requests]
        assert requests and not [text for text in requests if "l3.read" in text]
