from pando.v1 import inference_pb2 as _inference_pb2
from pando.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRef(_message.Message):
    __slots__ = ("worker_id", "incarnation", "address")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    address: str
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class BlockSource(_message.Message):
    __slots__ = ("worker", "num_blocks")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerRef
    num_blocks: int
    def __init__(self, worker: _Optional[_Union[WorkerRef, _Mapping]] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class WorkerRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "output_token_ids", "sampling", "choice", "attempt", "priority", "cache_salt", "prefix_hashes", "namespace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.SamplingParams
    choice: int
    attempt: int
    priority: int
    cache_salt: str
    prefix_hashes: bytes
    namespace: bytes
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., choice: _Optional[int] = ..., attempt: _Optional[int] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., prefix_hashes: _Optional[bytes] = ..., namespace: _Optional[bytes] = ...) -> None: ...

class DecodeServiceGenerateRequest(_message.Message):
    __slots__ = ("request", "prefill", "sources", "text_offset")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    request: WorkerRequest
    prefill: WorkerRef
    sources: _containers.RepeatedCompositeFieldContainer[BlockSource]
    text_offset: int
    def __init__(self, request: _Optional[_Union[WorkerRequest, _Mapping]] = ..., prefill: _Optional[_Union[WorkerRef, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[BlockSource, _Mapping]]] = ..., text_offset: _Optional[int] = ...) -> None: ...

class DecodeServiceGenerateResponse(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: _inference_pb2.GenerateResponse
    def __init__(self, frame: _Optional[_Union[_inference_pb2.GenerateResponse, _Mapping]] = ...) -> None: ...

class HandoffRequest(_message.Message):
    __slots__ = ("start",)
    START_FIELD_NUMBER: _ClassVar[int]
    start: HandoffStart
    def __init__(self, start: _Optional[_Union[HandoffStart, _Mapping]] = ...) -> None: ...

class HandoffStart(_message.Message):
    __slots__ = ("request", "num_blocks_held", "identity", "sources", "host_id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    request: WorkerRequest
    num_blocks_held: int
    identity: _types_pb2.KvIdentity
    sources: _containers.RepeatedCompositeFieldContainer[BlockSource]
    host_id: str
    def __init__(self, request: _Optional[_Union[WorkerRequest, _Mapping]] = ..., num_blocks_held: _Optional[int] = ..., identity: _Optional[_Union[_types_pb2.KvIdentity, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[BlockSource, _Mapping]]] = ..., host_id: _Optional[str] = ...) -> None: ...

class HandoffResponse(_message.Message):
    __slots__ = ("accepted", "blocks", "first_token")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    accepted: HandoffAccepted
    blocks: BlocksReady
    first_token: FirstToken
    def __init__(self, accepted: _Optional[_Union[HandoffAccepted, _Mapping]] = ..., blocks: _Optional[_Union[BlocksReady, _Mapping]] = ..., first_token: _Optional[_Union[FirstToken, _Mapping]] = ...) -> None: ...

class HandoffAccepted(_message.Message):
    __slots__ = ("worker_id", "identity", "endpoints")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    identity: _types_pb2.KvIdentity
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    def __init__(self, worker_id: _Optional[str] = ..., identity: _Optional[_Union[_types_pb2.KvIdentity, _Mapping]] = ..., endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ...) -> None: ...

class BlocksReady(_message.Message):
    __slots__ = ("first_block", "extents")
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    first_block: int
    extents: _containers.RepeatedCompositeFieldContainer[_types_pb2.Extent]
    def __init__(self, first_block: _Optional[int] = ..., extents: _Optional[_Iterable[_Union[_types_pb2.Extent, _Mapping]]] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("token_id", "logprob", "logits_digest", "finish_reason", "prompt_logprobs", "cached_tokens", "queue_s", "prefill_s")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    LOGITS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: _types_pb2.TokenLogprob
    logits_digest: bytes
    finish_reason: _types_pb2.FinishReason
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.TokenLogprob]
    cached_tokens: _types_pb2.CachedTokens
    queue_s: float
    prefill_s: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[_Union[_types_pb2.TokenLogprob, _Mapping]] = ..., logits_digest: _Optional[bytes] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_types_pb2.TokenLogprob, _Mapping]]] = ..., cached_tokens: _Optional[_Union[_types_pb2.CachedTokens, _Mapping]] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ...) -> None: ...

class LendRequest(_message.Message):
    __slots__ = ("identity", "prefix_hashes", "first_block", "host_id")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    identity: _types_pb2.KvIdentity
    prefix_hashes: bytes
    first_block: int
    host_id: str
    def __init__(self, identity: _Optional[_Union[_types_pb2.KvIdentity, _Mapping]] = ..., prefix_hashes: _Optional[bytes] = ..., first_block: _Optional[int] = ..., host_id: _Optional[str] = ...) -> None: ...

class LendResponse(_message.Message):
    __slots__ = ("endpoints", "extents")
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    extents: _containers.RepeatedCompositeFieldContainer[_types_pb2.Extent]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ..., extents: _Optional[_Iterable[_Union[_types_pb2.Extent, _Mapping]]] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("worker_id", "incarnation", "roles", "model", "identity", "endpoints", "max_model_len", "num_blocks", "pid")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    roles: _containers.RepeatedScalarFieldContainer[str]
    model: str
    identity: _types_pb2.KvIdentity
    endpoints: _containers.RepeatedCompositeFieldContainer[_types_pb2.TransportEndpoint]
    max_model_len: int
    num_blocks: int
    pid: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., roles: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., identity: _Optional[_Union[_types_pb2.KvIdentity, _Mapping]] = ..., endpoints: _Optional[_Iterable[_Union[_types_pb2.TransportEndpoint, _Mapping]]] = ..., max_model_len: _Optional[int] = ..., num_blocks: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("incarnation", "seq", "snapshot", "snapshot_end", "events", "digest")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    seq: int
    snapshot: bool
    snapshot_end: bool
    events: _containers.RepeatedCompositeFieldContainer[BlockEvent]
    digest: IndexDigest
    def __init__(self, incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., snapshot: bool = ..., snapshot_end: bool = ..., events: _Optional[_Iterable[_Union[BlockEvent, _Mapping]]] = ..., digest: _Optional[_Union[IndexDigest, _Mapping]] = ...) -> None: ...

class IndexDigest(_message.Message):
    __slots__ = ("num_entries", "sum")
    NUM_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    num_entries: int
    sum: int
    def __init__(self, num_entries: _Optional[int] = ..., sum: _Optional[int] = ...) -> None: ...

class BlockEvent(_message.Message):
    __slots__ = ("kind", "prefix_hash", "parent_hash", "tier")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[BlockEvent.Kind]
        KIND_STORED: _ClassVar[BlockEvent.Kind]
        KIND_REMOVED: _ClassVar[BlockEvent.Kind]
        KIND_CLEARED: _ClassVar[BlockEvent.Kind]
    KIND_UNSPECIFIED: BlockEvent.Kind
    KIND_STORED: BlockEvent.Kind
    KIND_REMOVED: BlockEvent.Kind
    KIND_CLEARED: BlockEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    kind: BlockEvent.Kind
    prefix_hash: bytes
    parent_hash: bytes
    tier: int
    def __init__(self, kind: _Optional[_Union[BlockEvent.Kind, str]] = ..., prefix_hash: _Optional[bytes] = ..., parent_hash: _Optional[bytes] = ..., tier: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("worker_id", "incarnation", "num_running", "num_waiting", "waiting_tokens", "blocks_free", "blocks_cached", "blocks_held", "blocks_total", "engine_step_age_s", "prefill_tokens_per_s", "draining", "roles", "max_num_seqs")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    num_running: int
    num_waiting: int
    waiting_tokens: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_total: int
    engine_step_age_s: float
    prefill_tokens_per_s: float
    draining: bool
    roles: _containers.RepeatedScalarFieldContainer[str]
    max_num_seqs: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_held: _Optional[int] = ..., blocks_total: _Optional[int] = ..., engine_step_age_s: _Optional[float] = ..., prefill_tokens_per_s: _Optional[float] = ..., draining: bool = ..., roles: _Optional[_Iterable[str]] = ..., max_num_seqs: _Optional[int] = ...) -> None: ...

class AbortRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortRequestResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class ConfigureRequest(_message.Message):
    __slots__ = ("schedule_policy", "chunked_prefill_size", "max_batch_tokens", "max_num_seqs")
    SCHEDULE_POLICY_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    schedule_policy: str
    chunked_prefill_size: int
    max_batch_tokens: int
    max_num_seqs: int
    def __init__(self, schedule_policy: _Optional[str] = ..., chunked_prefill_size: _Optional[int] = ..., max_batch_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ...) -> None: ...

class ConfigureResponse(_message.Message):
    __slots__ = ("schedule_policy", "chunked_prefill_size", "max_batch_tokens", "max_num_seqs")
    SCHEDULE_POLICY_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    schedule_policy: str
    chunked_prefill_size: int
    max_batch_tokens: int
    max_num_seqs: int
    def __init__(self, schedule_policy: _Optional[str] = ..., chunked_prefill_size: _Optional[int] = ..., max_batch_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ...) -> None: ...

class FlushCacheRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushCacheResponse(_message.Message):
    __slots__ = ("num_blocks_dropped",)
    NUM_BLOCKS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    num_blocks_dropped: int
    def __init__(self, num_blocks_dropped: _Optional[int] = ...) -> None: ...
