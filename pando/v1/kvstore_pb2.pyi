from pando.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LookupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOOKUP_STATE_UNSPECIFIED: _ClassVar[LookupState]
    LOOKUP_STATE_HIT: _ClassVar[LookupState]
    LOOKUP_STATE_MISS: _ClassVar[LookupState]
    LOOKUP_STATE_EXPIRED: _ClassVar[LookupState]
    LOOKUP_STATE_ERROR: _ClassVar[LookupState]
    LOOKUP_STATE_ELSEWHERE: _ClassVar[LookupState]

class PutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATE_UNSPECIFIED: _ClassVar[PutState]
    PUT_STATE_STORED: _ClassVar[PutState]
    PUT_STATE_PRESENT: _ClassVar[PutState]
    PUT_STATE_NO_SPACE: _ClassVar[PutState]
    PUT_STATE_CORRUPT: _ClassVar[PutState]
    PUT_STATE_ERROR: _ClassVar[PutState]
    PUT_STATE_QUOTA: _ClassVar[PutState]
LOOKUP_STATE_UNSPECIFIED: LookupState
LOOKUP_STATE_HIT: LookupState
LOOKUP_STATE_MISS: LookupState
LOOKUP_STATE_EXPIRED: LookupState
LOOKUP_STATE_ERROR: LookupState
LOOKUP_STATE_ELSEWHERE: LookupState
PUT_STATE_UNSPECIFIED: PutState
PUT_STATE_STORED: PutState
PUT_STATE_PRESENT: PutState
PUT_STATE_NO_SPACE: PutState
PUT_STATE_CORRUPT: PutState
PUT_STATE_ERROR: PutState
PUT_STATE_QUOTA: PutState

class KeyRun(_message.Message):
    __slots__ = ("namespace", "part", "hash_bytes", "hashes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    HASH_BYTES_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    part: int
    hash_bytes: int
    hashes: bytes
    def __init__(self, namespace: _Optional[bytes] = ..., part: _Optional[int] = ..., hash_bytes: _Optional[int] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class StoreNode(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class LookupAndLeaseRequest(_message.Message):
    __slots__ = ("keys", "client_id", "lease_ttl_s", "host_id", "inline_bytes")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyRun]
    client_id: str
    lease_ttl_s: float
    host_id: str
    inline_bytes: int
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyRun, _Mapping]]] = ..., client_id: _Optional[str] = ..., lease_ttl_s: _Optional[float] = ..., host_id: _Optional[str] = ..., inline_bytes: _Optional[int] = ...) -> None: ...

class LookupAndLeaseResponse(_message.Message):
    __slots__ = ("states", "lease_id", "lease_ttl_s", "incarnation", "segment", "extents", "headers", "endpoints", "nodes", "elsewhere", "term", "complete", "payloads")
    STATES_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    states: bytes
    lease_id: int
    lease_ttl_s: float
    incarnation: int
    segment: int
    extents: bytes
    headers: bytes
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    nodes: _containers.RepeatedCompositeFieldContainer[StoreNode]
    elsewhere: bytes
    term: int
    complete: bool
    payloads: bytes
    def __init__(self, states: _Optional[bytes] = ..., lease_id: _Optional[int] = ..., lease_ttl_s: _Optional[float] = ..., incarnation: _Optional[int] = ..., segment: _Optional[int] = ..., extents: _Optional[bytes] = ..., headers: _Optional[bytes] = ..., endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[StoreNode, _Mapping]]] = ..., elsewhere: _Optional[bytes] = ..., term: _Optional[int] = ..., complete: bool = ..., payloads: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease_ids", "lease_ttl_s")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    lease_ttl_s: float
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ..., lease_ttl_s: _Optional[float] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("alive", "lease_ttl_s")
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    alive: bytes
    lease_ttl_s: float
    def __init__(self, alive: _Optional[bytes] = ..., lease_ttl_s: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("keys", "num_bytes", "host_id")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyRun]
    num_bytes: int
    host_id: str
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyRun, _Mapping]]] = ..., num_bytes: _Optional[int] = ..., host_id: _Optional[str] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("present", "nodes")
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    present: bytes
    nodes: _containers.RepeatedCompositeFieldContainer[StoreNode]
    def __init__(self, present: _Optional[bytes] = ..., nodes: _Optional[_Iterable[_Union[StoreNode, _Mapping]]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("keys", "headers", "extents", "incarnation", "endpoints", "soft_pin", "payloads", "client_id")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyRun]
    headers: bytes
    extents: bytes
    incarnation: int
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    soft_pin: bool
    payloads: bytes
    client_id: str
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyRun, _Mapping]]] = ..., headers: _Optional[bytes] = ..., extents: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ..., soft_pin: bool = ..., payloads: _Optional[bytes] = ..., client_id: _Optional[str] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("states", "retry_after_s")
    STATES_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    states: bytes
    retry_after_s: float
    def __init__(self, states: _Optional[bytes] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KeyRun]
    def __init__(self, keys: _Optional[_Iterable[_Union[KeyRun, _Mapping]]] = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ("num_removed",)
    NUM_REMOVED_FIELD_NUMBER: _ClassVar[int]
    num_removed: int
    def __init__(self, num_removed: _Optional[int] = ...) -> None: ...

class RemoveNamespaceRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    def __init__(self, namespace: _Optional[bytes] = ...) -> None: ...

class RemoveNamespaceResponse(_message.Message):
    __slots__ = ("num_removed",)
    NUM_REMOVED_FIELD_NUMBER: _ClassVar[int]
    num_removed: int
    def __init__(self, num_removed: _Optional[int] = ...) -> None: ...

class ListObjectsRequest(_message.Message):
    __slots__ = ("page_token", "namespace", "page_size")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    page_token: bytes
    namespace: bytes
    page_size: int
    def __init__(self, page_token: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListObjectsResponse(_message.Message):
    __slots__ = ("objects", "next_page_token")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[StoredObject]
    next_page_token: bytes
    def __init__(self, objects: _Optional[_Iterable[_Union[StoredObject, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class StoredObject(_message.Message):
    __slots__ = ("key", "num_bytes", "in_memory", "on_disk", "soft_pin", "num_pins")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    ON_DISK_FIELD_NUMBER: _ClassVar[int]
    SOFT_PIN_FIELD_NUMBER: _ClassVar[int]
    NUM_PINS_FIELD_NUMBER: _ClassVar[int]
    key: _types_pb2.BlockKey
    num_bytes: int
    in_memory: bool
    on_disk: bool
    soft_pin: bool
    num_pins: int
    def __init__(self, key: _Optional[_Union[_types_pb2.BlockKey, _Mapping]] = ..., num_bytes: _Optional[int] = ..., in_memory: bool = ..., on_disk: bool = ..., soft_pin: bool = ..., num_pins: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("page_token", "namespace")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    page_token: bytes
    namespace: bytes
    def __init__(self, page_token: _Optional[bytes] = ..., namespace: _Optional[bytes] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("num_checked", "damaged", "next_page_token")
    NUM_CHECKED_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    num_checked: int
    damaged: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockKey]
    next_page_token: bytes
    def __init__(self, num_checked: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[_types_pb2.BlockKey, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class GetStoreStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStoreStatsResponse(_message.Message):
    __slots__ = ("node_id", "incarnation", "roles", "host_id", "term", "leader_id", "num_objects", "num_bytes", "capacity_bytes", "memory_bytes", "memory_capacity_bytes", "disk_bytes", "disk_capacity_bytes", "disk_objects", "unwritten_bytes", "staged_bytes", "num_leases", "transports", "directory_nodes", "directory_objects", "leading", "complete", "framed_port")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    UNWRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_NODES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    LEADING_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FRAMED_PORT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    roles: _containers.RepeatedScalarFieldContainer[str]
    host_id: str
    term: int
    leader_id: str
    num_objects: int
    num_bytes: int
    capacity_bytes: int
    memory_bytes: int
    memory_capacity_bytes: int
    disk_bytes: int
    disk_capacity_bytes: int
    disk_objects: int
    unwritten_bytes: int
    staged_bytes: int
    num_leases: int
    transports: _containers.RepeatedScalarFieldContainer[str]
    directory_nodes: int
    directory_objects: int
    leading: bool
    complete: bool
    framed_port: int
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., roles: _Optional[_Iterable[str]] = ..., host_id: _Optional[str] = ..., term: _Optional[int] = ..., leader_id: _Optional[str] = ..., num_objects: _Optional[int] = ..., num_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_capacity_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., disk_capacity_bytes: _Optional[int] = ..., disk_objects: _Optional[int] = ..., unwritten_bytes: _Optional[int] = ..., staged_bytes: _Optional[int] = ..., num_leases: _Optional[int] = ..., transports: _Optional[_Iterable[str]] = ..., directory_nodes: _Optional[int] = ..., directory_objects: _Optional[int] = ..., leading: bool = ..., complete: bool = ..., framed_port: _Optional[int] = ...) -> None: ...

class WatchInventoryRequest(_message.Message):
    __slots__ = ("term", "leader_id", "leader_address")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    term: int
    leader_id: str
    leader_address: str
    def __init__(self, term: _Optional[int] = ..., leader_id: _Optional[str] = ..., leader_address: _Optional[str] = ...) -> None: ...

class WatchInventoryResponse(_message.Message):
    __slots__ = ("incarnation", "seq", "snapshot", "snapshot_end", "added", "removed", "space")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    seq: int
    snapshot: bool
    snapshot_end: bool
    added: _containers.RepeatedCompositeFieldContainer[KeyRun]
    removed: _containers.RepeatedCompositeFieldContainer[KeyRun]
    space: NodeSpace
    def __init__(self, incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., snapshot: bool = ..., snapshot_end: bool = ..., added: _Optional[_Iterable[_Union[KeyRun, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[KeyRun, _Mapping]]] = ..., space: _Optional[_Union[NodeSpace, _Mapping]] = ...) -> None: ...

class NodeSpace(_message.Message):
    __slots__ = ("host_id", "capacity_bytes", "free_bytes")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    capacity_bytes: int
    free_bytes: int
    def __init__(self, host_id: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ...) -> None: ...
