from pando.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATE_UNSPECIFIED: _ClassVar[PutState]
    PUT_STATE_STORED: _ClassVar[PutState]
    PUT_STATE_NO_SPACE: _ClassVar[PutState]
    PUT_STATE_CORRUPT: _ClassVar[PutState]

class LookupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOOKUP_STATE_UNSPECIFIED: _ClassVar[LookupState]
    LOOKUP_STATE_HIT: _ClassVar[LookupState]
    LOOKUP_STATE_MISS: _ClassVar[LookupState]
    LOOKUP_STATE_EXPIRED: _ClassVar[LookupState]
    LOOKUP_STATE_ERROR: _ClassVar[LookupState]
PUT_STATE_UNSPECIFIED: PutState
PUT_STATE_STORED: PutState
PUT_STATE_NO_SPACE: PutState
PUT_STATE_CORRUPT: PutState
LOOKUP_STATE_UNSPECIFIED: LookupState
LOOKUP_STATE_HIT: LookupState
LOOKUP_STATE_MISS: LookupState
LOOKUP_STATE_EXPIRED: LookupState
LOOKUP_STATE_ERROR: LookupState

class PutRequest(_message.Message):
    __slots__ = ("keys", "extents", "endpoints")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockKey]
    extents: _containers.RepeatedCompositeFieldContainer[_types_pb2.Extent]
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    def __init__(self, keys: _Optional[_Iterable[_Union[_types_pb2.BlockKey, _Mapping]]] = ..., extents: _Optional[_Iterable[_Union[_types_pb2.Extent, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[PutState]
    def __init__(self, states: _Optional[_Iterable[_Union[PutState, str]]] = ...) -> None: ...

class LookupAndLeaseRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[_types_pb2.BlockKey, _Mapping]]] = ...) -> None: ...

class LookupAndLeaseResponse(_message.Message):
    __slots__ = ("endpoints", "blocks", "lease_s")
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    blocks: _containers.RepeatedCompositeFieldContainer[LeasedBlock]
    lease_s: float
    def __init__(self, endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[LeasedBlock, _Mapping]]] = ..., lease_s: _Optional[float] = ...) -> None: ...

class LeasedBlock(_message.Message):
    __slots__ = ("state", "extent")
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    state: LookupState
    extent: _types_pb2.Extent
    def __init__(self, state: _Optional[_Union[LookupState, str]] = ..., extent: _Optional[_Union[_types_pb2.Extent, _Mapping]] = ...) -> None: ...
