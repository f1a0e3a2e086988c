"""The admin service without a socket: who may call, what is refused and changes nothing, what is changed."""

from __future__ import annotations

from typing import cast

import pytest
from structlog.testing import capture_logs

from common.base.errors import InvalidRequest, PermissionDenied, Unsupported
from common.base.failpoints import DISABLED, Failpoints, Kind
from common.cache.config import PrefetchConfig, PrefetchPolicy, TierPolicies, WritePolicy
from common.kv.eviction import EvictionPolicy
from common.rpc.operator import OperatorGuard
from common.rpc.server import Context
from common.worker.admin import StorageRequest, TierControl, TierName
from common.worker.admin_service import MAX_SETTINGS, AdminServicer
from common.worker.roles import WorkerRoles
from pando.v1 import admin_pb2
from tests.support.fake_tiers import FakeTiers

TOKEN = "a-long-secret"


class Caller:
    """As much of a gRPC context as the service looks at."""

    def __init__(self, peer: str = "ipv4:127.0.0.1:4711", authorization: str = "") -> None:
        self._peer = peer
        self._authorization = authorization

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", self._authorization),) if self._authorization else ()


LOCAL = cast(Context, Caller())


def make_service(failpoints: Failpoints = DISABLED, token: str = "") -> tuple[AdminServicer, FakeTiers]:
    tiers = FakeTiers()
    control: TierControl = tiers
    roles = WorkerRoles("w1", ["decode"], lambda make_error, request_ids: None, drain_s=1.0)
    return AdminServicer("w1", control, failpoints, OperatorGuard(token), roles), tiers


async def test_every_method_asks_the_guard() -> None:
    service, tiers = make_service(Failpoints(), TOKEN)
    tiers.attached = StorageRequest("file")
    calls = {
        service.GetTiers: admin_pb2.GetTiersRequest(),
        service.Flush: admin_pb2.FlushRequest(tier="l1"),
        service.AttachStorage: admin_pb2.AttachStorageRequest(backend="file"),
        service.DetachStorage: admin_pb2.DetachStorageRequest(),
        service.SetPolicies: admin_pb2.SetPoliciesRequest(write_policy="write_through_selective"),
        service.GetRoles: admin_pb2.GetRolesRequest(),
        service.SetRole: admin_pb2.SetRoleRequest(roles=["prefill"]),
        service.ListFailpoints: admin_pb2.ListFailpointsRequest(),
        service.ArmFailpoint: admin_pb2.ArmFailpointRequest(name="x", rule="fail"),
        service.DisarmFailpoint: admin_pb2.DisarmFailpointRequest(all=True),
    }
    methods = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name
    assert {method.__name__ for method in calls} == set(methods)
    for method, request in calls.items():
        with pytest.raises(PermissionDenied):
            await method(request, LOCAL)  # type: ignore[operator]
    assert tiers == FakeTiers(attached=StorageRequest("file"))


async def test_tiers_are_described() -> None:
    service, tiers = make_service()
    tiers.attached = StorageRequest("file")
    answer = await service.GetTiers(admin_pb2.GetTiersRequest(), LOCAL)
    l1, l3 = answer.tiers
    assert (answer.worker_id, l1.tier, l3.tier, l3.backend) == ("w1", "l1", "l3", "file")
    assert l1.blocks_free + l1.blocks_cached + l1.blocks_held == l1.blocks_total == 100
    assert (l1.eviction_policy, l1.hit_tokens, l3.objects, l3.bytes, l3.pending_writes) == ("lru", 320, 7, 7168, 2)
    assert (answer.policies.write_policy, answer.policies.prefetch.policy) == ("write_through", "timeout")
    assert answer.policies.prefetch.min_tokens == PrefetchConfig().min_tokens


async def test_flush() -> None:
    service, tiers = make_service()
    with capture_logs() as logs:
        answer = await service.Flush(admin_pb2.FlushRequest(tier="l3", namespace="ab01"), LOCAL)
    assert answer.num_blocks_dropped == 30 and tiers.flushed == [(TierName.L3, b"\xab\x01")]
    assert [(log["event"], log["tier"]) for log in logs] == [("a tier was flushed", "l3")]
    await service.Flush(admin_pb2.FlushRequest(tier="l1"), LOCAL)
    assert tiers.flushed[1:] == [(TierName.L1, b"")]


@pytest.mark.parametrize(
    ("tier", "namespace", "param"),
    [
        *(("", "", "tier"), ("l4", "", "tier"), ("L1", "", "tier"), ("l2", "", "tier"), ("l1", "ab", "namespace")),
        *(("l3", "xyz", "namespace"), ("l3", "abc", "namespace"), ("l3", "00" * 65, "namespace")),
    ],
)
async def test_a_bad_flush_drops_nothing(tier: str, namespace: str, param: str) -> None:
    service, tiers = make_service()
    with pytest.raises(InvalidRequest) as caught:
        await service.Flush(admin_pb2.FlushRequest(tier=tier, namespace=namespace), LOCAL)
    assert caught.value.param == param and not tiers.flushed


async def test_policies_change_only_where_set() -> None:
    service, tiers = make_service()
    request = admin_pb2.SetPoliciesRequest(
        write_policy="write_through_selective",
        l2_eviction_policy="slru",
        prefetch=admin_pb2.Prefetch(policy="wait_complete", timeout_base_s=0.0),
    )
    answer = await service.SetPolicies(request, LOCAL)
    assert tiers.policies == TierPolicies(WritePolicy.WRITE_THROUGH_SELECTIVE, l2_eviction=EvictionPolicy.SLRU)
    assert tiers.prefetch == PrefetchConfig(PrefetchPolicy.WAIT_COMPLETE, timeout_base_s=0.0)
    assert (answer.policies.l1_eviction_policy, answer.policies.l2_eviction_policy) == ("lru", "slru")
    await service.SetPolicies(admin_pb2.SetPoliciesRequest(), LOCAL)
    assert tiers.prefetch == PrefetchConfig(PrefetchPolicy.WAIT_COMPLETE, timeout_base_s=0.0)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (admin_pb2.SetPoliciesRequest(write_policy="sometimes"), "write_policy"),
        (admin_pb2.SetPoliciesRequest(write_policy=""), "write_policy"),
        (admin_pb2.SetPoliciesRequest(write_policy="write_back"), "write_policy"),
        (admin_pb2.SetPoliciesRequest(l1_eviction_policy="random"), "l1_eviction_policy"),
        (admin_pb2.SetPoliciesRequest(prefetch=admin_pb2.Prefetch(policy="never")), "policy"),
        (admin_pb2.SetPoliciesRequest(prefetch=admin_pb2.Prefetch(min_tokens=0)), "min_tokens"),
        (admin_pb2.SetPoliciesRequest(prefetch=admin_pb2.Prefetch(timeout_base_s=-1)), "timeout_base_s"),
        (admin_pb2.SetPoliciesRequest(prefetch=admin_pb2.Prefetch(deadline_s=float("nan"))), "deadline_s"),
        (admin_pb2.SetPoliciesRequest(prefetch=admin_pb2.Prefetch(deadline_s=float("inf"))), "deadline_s"),
    ],
)
async def test_one_bad_policy_refuses_all(request_: admin_pb2.SetPoliciesRequest, param: str) -> None:
    service, tiers = make_service()
    for name in ("l1_eviction_policy", "l2_eviction_policy"):
        if not request_.HasField(name):
            setattr(request_, name, "lfu")
    with pytest.raises(InvalidRequest) as caught:
        await service.SetPolicies(request_, LOCAL)
    assert caught.value.param == param
    assert tiers == FakeTiers()


async def test_attach_and_detach() -> None:
    service, tiers = make_service()
    request = admin_pb2.AttachStorageRequest(
        backend="file", settings={"path": "/x"}, prefetch=admin_pb2.Prefetch(policy="best_effort")
    )
    with capture_logs() as logs:
        await service.AttachStorage(request, LOCAL)
    assert tiers.attached == StorageRequest("file", {"path": "/x"}, PrefetchConfig(PrefetchPolicy.BEST_EFFORT))
    assert logs[0]["settings"] == ["path"], "values may be secrets"
    with pytest.raises(InvalidRequest, match="already"):
        await service.AttachStorage(request, LOCAL)
    await service.DetachStorage(admin_pb2.DetachStorageRequest(), LOCAL)
    with pytest.raises(InvalidRequest, match="no store"):
        await service.DetachStorage(admin_pb2.DetachStorageRequest(), LOCAL)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (admin_pb2.AttachStorageRequest(), "backend"),
        (admin_pb2.AttachStorageRequest(backend="tape"), "backend"),
        (admin_pb2.AttachStorageRequest(backend="file", prefetch=admin_pb2.Prefetch(policy="x")), "policy"),
        (
            admin_pb2.AttachStorageRequest(backend="file", settings={str(n): "" for n in range(MAX_SETTINGS + 1)}),
            "settings",
        ),
        (admin_pb2.AttachStorageRequest(backend="file", settings={"path": "x" * 5000}), "settings"),
    ],
)
async def test_a_bad_attach_changes_nothing(request_: admin_pb2.AttachStorageRequest, param: str) -> None:
    service, tiers = make_service()
    with pytest.raises(InvalidRequest) as caught:
        await service.AttachStorage(request_, LOCAL)
    assert caught.value.param == param and tiers == FakeTiers()


async def test_failpoints_are_refused_unless_enabled() -> None:
    service, _ = make_service()
    for call in (
        service.ListFailpoints(admin_pb2.ListFailpointsRequest(), LOCAL),
        service.ArmFailpoint(admin_pb2.ArmFailpointRequest(name="l3.read", rule="fail"), LOCAL),
        service.DisarmFailpoint(admin_pb2.DisarmFailpointRequest(all=True), LOCAL),
    ):
        with pytest.raises(Unsupported):
            await call


async def test_failpoints_are_armed_listed_and_disarmed() -> None:
    failpoints = Failpoints()
    failpoints.register("l3.read", Kind.DATA, "one object is read")
    service, _ = make_service(failpoints)
    with capture_logs() as logs:
        armed = await service.ArmFailpoint(
            admin_pb2.ArmFailpointRequest(name="l3.read", rule=" 1*fail ; 30%flip(recompute)"), LOCAL
        )
    assert armed.armed.rule == "1*fail;30%flip(recompute)"
    assert logs[0]["failpoint"] == "l3.read" and logs[0]["log_level"] == "warning"
    failpoints.hit("l3.read")
    listed = await service.ListFailpoints(admin_pb2.ListFailpointsRequest(), LOCAL)
    assert [(p.name, p.kind, p.hits, p.fired) for p in listed.failpoints] == [("l3.read", "data", 1, 1)]
    assert [(a.name, a.source) for a in listed.armed] == [("l3.read", "admin")]
    for bad in (admin_pb2.DisarmFailpointRequest(), admin_pb2.DisarmFailpointRequest(name="l3.read", all=True)):
        with pytest.raises(InvalidRequest):
            await service.DisarmFailpoint(bad, LOCAL)
    done = await service.DisarmFailpoint(admin_pb2.DisarmFailpointRequest(name="l3.read"), LOCAL)
    assert done.num_disarmed == 1 and not done.armed
    await service.ArmFailpoint(admin_pb2.ArmFailpointRequest(name="*", rule="fail"), LOCAL)
    done = await service.DisarmFailpoint(admin_pb2.DisarmFailpointRequest(all=True), LOCAL)
    assert done.num_disarmed == 1 and not failpoints.armed()


async def test_roles_are_told_and_set() -> None:
    service, _ = make_service()
    told = await service.GetRoles(admin_pb2.GetRolesRequest(), LOCAL)
    assert (told.worker_id, list(told.roles), told.changed_s) == ("w1", ["decode"], 0.0)
    done = await service.SetRole(admin_pb2.SetRoleRequest(roles=["decode", "prefill"], drain_s=0.0), LOCAL)
    assert (list(done.before), list(done.roles.roles)) == (["decode"], ["prefill", "decode"])
    with pytest.raises(InvalidRequest) as refused:
        await service.SetRole(admin_pb2.SetRoleRequest(), LOCAL)
    assert refused.value.param == "roles"
    assert list((await service.GetRoles(admin_pb2.GetRolesRequest(), LOCAL)).roles) == ["prefill", "decode"]
