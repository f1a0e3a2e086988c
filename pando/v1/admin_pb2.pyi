from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetTiersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTiersResponse(_message.Message):
    __slots__ = ("worker_id", "tiers", "policies")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    tiers: _containers.RepeatedCompositeFieldContainer[TierInfo]
    policies: Policies
    def __init__(self, worker_id: _Optional[str] = ..., tiers: _Optional[_Iterable[_Union[TierInfo, _Mapping]]] = ..., policies: _Optional[_Union[Policies, _Mapping]] = ...) -> None: ...

class TierInfo(_message.Message):
    __slots__ = ("tier", "backend", "blocks_total", "blocks_free", "blocks_cached", "blocks_held", "objects", "bytes", "capacity_bytes", "eviction_policy", "pending_writes", "hit_tokens")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    PENDING_WRITES_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tier: str
    backend: str
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    objects: int
    bytes: int
    capacity_bytes: int
    eviction_policy: str
    pending_writes: int
    hit_tokens: int
    def __init__(self, tier: _Optional[str] = ..., backend: _Optional[str] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_held: _Optional[int] = ..., objects: _Optional[int] = ..., bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., eviction_policy: _Optional[str] = ..., pending_writes: _Optional[int] = ..., hit_tokens: _Optional[int] = ...) -> None: ...

class Policies(_message.Message):
    __slots__ = ("write_policy", "l1_eviction_policy", "l2_eviction_policy", "prefetch")
    WRITE_POLICY_FIELD_NUMBER: _ClassVar[int]
    L1_EVICTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    L2_EVICTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    write_policy: str
    l1_eviction_policy: str
    l2_eviction_policy: str
    prefetch: Prefetch
    def __init__(self, write_policy: _Optional[str] = ..., l1_eviction_policy: _Optional[str] = ..., l2_eviction_policy: _Optional[str] = ..., prefetch: _Optional[_Union[Prefetch, _Mapping]] = ...) -> None: ...

class Prefetch(_message.Message):
    __slots__ = ("policy", "min_tokens", "timeout_base_s", "timeout_per_1k_tokens_s", "patience_ratio", "max_blocks", "deadline_s")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_BASE_S_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_PER_1K_TOKENS_S_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    policy: str
    min_tokens: int
    timeout_base_s: float
    timeout_per_1k_tokens_s: float
    patience_ratio: float
    max_blocks: int
    deadline_s: float
    def __init__(self, policy: _Optional[str] = ..., min_tokens: _Optional[int] = ..., timeout_base_s: _Optional[float] = ..., timeout_per_1k_tokens_s: _Optional[float] = ..., patience_ratio: _Optional[float] = ..., max_blocks: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("tier", "namespace")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tier: str
    namespace: str
    def __init__(self, tier: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("num_blocks_dropped",)
    NUM_BLOCKS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    num_blocks_dropped: int
    def __init__(self, num_blocks_dropped: _Optional[int] = ...) -> None: ...

class AttachStorageRequest(_message.Message):
    __slots__ = ("backend", "settings", "prefetch")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    backend: str
    settings: _containers.ScalarMap[str, str]
    prefetch: Prefetch
    def __init__(self, backend: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., prefetch: _Optional[_Union[Prefetch, _Mapping]] = ...) -> None: ...

class AttachStorageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DetachStorageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DetachStorageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetPoliciesRequest(_message.Message):
    __slots__ = ("write_policy", "l1_eviction_policy", "l2_eviction_policy", "prefetch")
    WRITE_POLICY_FIELD_NUMBER: _ClassVar[int]
    L1_EVICTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    L2_EVICTION_POLICY_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    write_policy: str
    l1_eviction_policy: str
    l2_eviction_policy: str
    prefetch: Prefetch
    def __init__(self, write_policy: _Optional[str] = ..., l1_eviction_policy: _Optional[str] = ..., l2_eviction_policy: _Optional[str] = ..., prefetch: _Optional[_Union[Prefetch, _Mapping]] = ...) -> None: ...

class SetPoliciesResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: Policies
    def __init__(self, policies: _Optional[_Union[Policies, _Mapping]] = ...) -> None: ...

class GetRolesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRolesResponse(_message.Message):
    __slots__ = ("worker_id", "roles", "num_prefill", "num_decode", "changed_s")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_S_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    num_prefill: int
    num_decode: int
    changed_s: float
    def __init__(self, worker_id: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., num_prefill: _Optional[int] = ..., num_decode: _Optional[int] = ..., changed_s: _Optional[float] = ...) -> None: ...

class SetRoleRequest(_message.Message):
    __slots__ = ("roles", "drain_s")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedScalarFieldContainer[str]
    drain_s: float
    def __init__(self, roles: _Optional[_Iterable[str]] = ..., drain_s: _Optional[float] = ...) -> None: ...

class SetRoleResponse(_message.Message):
    __slots__ = ("roles", "before")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    roles: GetRolesResponse
    before: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, roles: _Optional[_Union[GetRolesResponse, _Mapping]] = ..., before: _Optional[_Iterable[str]] = ...) -> None: ...

class ListFailpointsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListFailpointsResponse(_message.Message):
    __slots__ = ("failpoints", "armed")
    FAILPOINTS_FIELD_NUMBER: _ClassVar[int]
    ARMED_FIELD_NUMBER: _ClassVar[int]
    failpoints: _containers.RepeatedCompositeFieldContainer[Failpoint]
    armed: _containers.RepeatedCompositeFieldContainer[ArmedFailpoint]
    def __init__(self, failpoints: _Optional[_Iterable[_Union[Failpoint, _Mapping]]] = ..., armed: _Optional[_Iterable[_Union[ArmedFailpoint, _Mapping]]] = ...) -> None: ...

class Failpoint(_message.Message):
    __slots__ = ("name", "kind", "description", "hits", "fired")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    description: str
    hits: int
    fired: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., description: _Optional[str] = ..., hits: _Optional[int] = ..., fired: _Optional[int] = ...) -> None: ...

class ArmedFailpoint(_message.Message):
    __slots__ = ("name", "source", "rule")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    name: str
    source: str
    rule: str
    def __init__(self, name: _Optional[str] = ..., source: _Optional[str] = ..., rule: _Optional[str] = ...) -> None: ...

class ArmFailpointRequest(_message.Message):
    __slots__ = ("name", "rule")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    name: str
    rule: str
    def __init__(self, name: _Optional[str] = ..., rule: _Optional[str] = ...) -> None: ...

class ArmFailpointResponse(_message.Message):
    __slots__ = ("armed",)
    ARMED_FIELD_NUMBER: _ClassVar[int]
    armed: ArmedFailpoint
    def __init__(self, armed: _Optional[_Union[ArmedFailpoint, _Mapping]] = ...) -> None: ...

class DisarmFailpointRequest(_message.Message):
    __slots__ = ("name", "all")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    name: str
    all: bool
    def __init__(self, name: _Optional[str] = ..., all: bool = ...) -> None: ...

class DisarmFailpointResponse(_message.Message):
    __slots__ = ("num_disarmed", "armed")
    NUM_DISARMED_FIELD_NUMBER: _ClassVar[int]
    ARMED_FIELD_NUMBER: _ClassVar[int]
    num_disarmed: int
    armed: _containers.RepeatedCompositeFieldContainer[ArmedFailpoint]
    def __init__(self, num_disarmed: _Optional[int] = ..., armed: _Optional[_Iterable[_Union[ArmedFailpoint, _Mapping]]] = ...) -> None: ...
