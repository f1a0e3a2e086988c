"""The RPCs for operators: tiers, policies, roles and failpoints of one worker.

Served on every worker's own port; router and gateway neither serve nor forward it, so no client reaches it. Each
change is checked in full before anything happens, runs alone, and is logged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, TypeVar

from common.base.errors import InvalidRequest, Unsupported
from common.base.failpoints import Armed, Failpoints
from common.base.logging import get_logger
from common.base.roles import DECODE, PREFILL
from common.cache.config import PrefetchConfig, PrefetchPolicy, TierPolicies, WritePolicy
from common.kv.eviction import EvictionPolicy
from common.rpc.operator import OperatorGuard
from common.rpc.server import Context
from common.worker.admin import StorageRequest, TierControl, TierInfo, TierName
from common.worker.roles import WorkerRoles
from pando.v1 import admin_pb2, admin_pb2_grpc

MAX_NAMESPACE_BYTES = 64
MAX_SETTINGS = 64
MAX_SETTING_CHARS = 4096

E = TypeVar("E", bound=StrEnum)


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """`pando.v1.AdminService`."""

    def __init__(
        self, worker_id: str, tiers: TierControl, failpoints: Failpoints, guard: OperatorGuard, roles: WorkerRoles
    ) -> None:
        self._worker_id = worker_id
        self._tiers = tiers
        self._failpoints = failpoints
        self._guard = guard
        self._roles = roles
        self._changing = asyncio.Lock()

    async def GetTiers(self, request: admin_pb2.GetTiersRequest, context: Context) -> admin_pb2.GetTiersResponse:
        """See the proto."""
        self._check(context)
        tiers = await self._tiers.describe()
        return admin_pb2.GetTiersResponse(
            worker_id=self._worker_id, tiers=[_tier_to_pb(tier) for tier in tiers], policies=self._policies()
        )

    async def Flush(self, request: admin_pb2.FlushRequest, context: Context) -> admin_pb2.FlushResponse:
        """See the proto."""
        self._check(context)
        tier = _choice(TierName, request.tier, "tier")
        namespace = _namespace(request.namespace, tier)
        async with self._changing:
            dropped = await self._tiers.flush(tier, namespace)
        _log(context, "a tier was flushed", tier=tier, blocks=dropped)
        return admin_pb2.FlushResponse(num_blocks_dropped=dropped)

    async def AttachStorage(
        self, request: admin_pb2.AttachStorageRequest, context: Context
    ) -> admin_pb2.AttachStorageResponse:
        """See the proto."""
        self._check(context)
        if not request.backend:
            raise InvalidRequest("name the kind of store to attach", param="backend")
        settings = _settings(request.settings)
        async with self._changing:
            prefetch = _changed_prefetch(self._tiers.prefetch, request.prefetch)
            await self._tiers.attach(StorageRequest(request.backend, settings, prefetch))
        _log(context, "storage was attached", backend=request.backend, settings=sorted(settings))
        return admin_pb2.AttachStorageResponse()

    async def DetachStorage(
        self, request: admin_pb2.DetachStorageRequest, context: Context
    ) -> admin_pb2.DetachStorageResponse:
        """See the proto."""
        self._check(context)
        async with self._changing:
            await self._tiers.detach()
        _log(context, "storage was detached")
        return admin_pb2.DetachStorageResponse()

    async def SetPolicies(
        self, request: admin_pb2.SetPoliciesRequest, context: Context
    ) -> admin_pb2.SetPoliciesResponse:
        """See the proto."""
        self._check(context)
        async with self._changing:
            policies = _changed_policies(self._tiers.policies, request)
            prefetch = _changed_prefetch(self._tiers.prefetch, request.prefetch)
            self._tiers.set_policies(policies, prefetch)
        _log(context, "policies were set", **asdict(policies))
        return admin_pb2.SetPoliciesResponse(policies=self._policies())

    async def GetRoles(self, request: admin_pb2.GetRolesRequest, context: Context) -> admin_pb2.GetRolesResponse:
        """See the proto."""
        self._check(context)
        return self._role_state()

    async def SetRole(self, request: admin_pb2.SetRoleRequest, context: Context) -> admin_pb2.SetRoleResponse:
        """See the proto."""
        self._check(context)
        before = self._roles.set(request.roles, request.drain_s if request.HasField("drain_s") else None)
        _log(context, "roles were set", before=before, roles=self._roles.names)
        return admin_pb2.SetRoleResponse(roles=self._role_state(), before=before)

    async def ListFailpoints(
        self, request: admin_pb2.ListFailpointsRequest, context: Context
    ) -> admin_pb2.ListFailpointsResponse:
        """See the proto."""
        failpoints = self._enabled_failpoints(context)
        points = [
            admin_pb2.Failpoint(
                name=point.name, kind=point.kind, description=point.description, hits=point.hits, fired=point.fired
            )
            for point in failpoints.points()
        ]
        return admin_pb2.ListFailpointsResponse(failpoints=points, armed=self._armed())

    async def ArmFailpoint(
        self, request: admin_pb2.ArmFailpointRequest, context: Context
    ) -> admin_pb2.ArmFailpointResponse:
        """See the proto."""
        armed = self._enabled_failpoints(context).arm(request.name, request.rule)
        _warn(context, "a failpoint was armed", failpoint=armed.name, rule=armed.text)
        return admin_pb2.ArmFailpointResponse(armed=_armed_to_pb(armed))

    async def DisarmFailpoint(
        self, request: admin_pb2.DisarmFailpointRequest, context: Context
    ) -> admin_pb2.DisarmFailpointResponse:
        """See the proto."""
        failpoints = self._enabled_failpoints(context)
        if bool(request.name) == request.all:
            raise InvalidRequest("give either the name of a failpoint or all", param="name")
        num_disarmed = 1
        if request.all:
            num_disarmed = failpoints.disarm_all()
        else:
            failpoints.disarm(request.name)
        _warn(context, "failpoints were disarmed", failpoint=request.name or "all", count=num_disarmed)
        return admin_pb2.DisarmFailpointResponse(num_disarmed=num_disarmed, armed=self._armed())

    def _check(self, context: Context) -> None:
        self._guard.check_call(context)

    def _enabled_failpoints(self, context: Context) -> Failpoints:
        self._check(context)
        if not self._failpoints.enabled:
            raise Unsupported("this worker was started without failpoints", reason="failpoints_disabled")
        return self._failpoints

    def _armed(self) -> list[admin_pb2.ArmedFailpoint]:
        return [_armed_to_pb(armed) for armed in self._failpoints.armed()]

    def _role_state(self) -> admin_pb2.GetRolesResponse:
        roles = self._roles
        return admin_pb2.GetRolesResponse(
            worker_id=self._worker_id,
            roles=roles.names,
            num_prefill=roles.num_running(PREFILL),
            num_decode=roles.num_running(DECODE),
            changed_s=roles.changed_s,
        )

    def _policies(self) -> admin_pb2.Policies:
        policies, prefetch = self._tiers.policies, self._tiers.prefetch
        return admin_pb2.Policies(
            write_policy=policies.write,
            l1_eviction_policy=policies.l1_eviction,
            l2_eviction_policy=policies.l2_eviction,
            prefetch=admin_pb2.Prefetch(**asdict(prefetch)),
        )


def _choice(kind: type[E], value: str, param: str) -> E:
    if value not in list(kind):
        raise InvalidRequest(f"{param} is one of {', '.join(kind)}, not {value!r}", param=param)
    return kind(value)


def _namespace(text: str, tier: TierName) -> bytes:
    try:
        namespace = bytes.fromhex(text)
    except ValueError:
        raise InvalidRequest("namespace is hexadecimal", param="namespace") from None
    if len(namespace) > MAX_NAMESPACE_BYTES:
        raise InvalidRequest(f"namespace has at most {MAX_NAMESPACE_BYTES} bytes", param="namespace")
    if namespace and tier is not TierName.L3:
        raise InvalidRequest(f"{tier} has one namespace, the worker's own: leave it out", param="namespace")
    return namespace


def _settings(settings: Mapping[str, str]) -> dict[str, str]:
    longest = max((len(part) for item in settings.items() for part in item), default=0)
    if len(settings) > MAX_SETTINGS or longest > MAX_SETTING_CHARS:
        raise InvalidRequest(
            f"at most {MAX_SETTINGS} settings of at most {MAX_SETTING_CHARS} characters", param="settings"
        )
    return dict(settings)


def _changed_policies(policies: TierPolicies, request: admin_pb2.SetPoliciesRequest) -> TierPolicies:
    """A copy with the fields of the request that are set."""
    changes: dict[str, Any] = {}
    if request.HasField("write_policy"):
        changes["write"] = _choice(WritePolicy, request.write_policy, "write_policy")
    for tier in (TierName.L1, TierName.L2):
        name = f"{tier}_eviction_policy"
        if request.HasField(name):
            changes[f"{tier}_eviction"] = _choice(EvictionPolicy, getattr(request, name), name)
    return replace(policies, **changes)


def _changed_prefetch(config: PrefetchConfig, request: admin_pb2.Prefetch) -> PrefetchConfig:
    """A checked copy with the fields of the request that are set."""
    changes = {field.name: value for field, value in request.ListFields()}
    if "policy" in changes:
        changes["policy"] = _choice(PrefetchPolicy, request.policy, "policy")
    for name, value in changes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequest(f"{name} is a finite number", param=name)
    return replace(config, **changes)


def _tier_to_pb(tier: TierInfo) -> admin_pb2.TierInfo:
    values = asdict(tier)
    values["eviction_policy"] = values.pop("eviction")
    return admin_pb2.TierInfo(**values)


def _armed_to_pb(armed: Armed) -> admin_pb2.ArmedFailpoint:
    return admin_pb2.ArmedFailpoint(name=armed.name, source=armed.source, rule=armed.text)


def _log(context: Context, event: str, **facts: object) -> None:
    get_logger().info(event, peer=context.peer(), **facts)


def _warn(context: Context, event: str, **facts: object) -> None:
    get_logger().warning(event, peer=context.peer(), **facts)
