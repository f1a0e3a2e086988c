"""A request as a worker receives it, checked and converted, and the identity that both sides must share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite

from common.base.errors import InvalidRequest, LayoutMismatch
from common.base.model_config import ModelConfig
from common.grammar.store import GrammarStore
from common.kv.hashing import block_hashes, prefix_root
from common.rpc.convert import join_hashes, sampling_from_pb
from common.sched.params import SamplingParams
from common.sched.request import Request
from pando.v1 import types_pb2, worker_pb2

MAX_REQUEST_ID_CHARS = 256
_FLOAT_MAX = 3e38
_RANGES = (
    ("temperature", 0.0, _FLOAT_MAX),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -_FLOAT_MAX, _FLOAT_MAX),
    ("frequency_penalty", -_FLOAT_MAX, _FLOAT_MAX),
    ("repetition_penalty", 1e-6, _FLOAT_MAX),
)


@dataclass(slots=True, frozen=True)
class Identity:
    """What two workers must agree on to exchange KV, byte for byte.

    Attributes:
        namespace: 32 bytes over model content and config, weight version, numerics id, KV dtype, layout.
        numerics_id: readable: backend, kernel build, compute dtype, weight format, ISA class.
        block_bytes, block_size: size of a block in bytes and in tokens.
    """

    namespace: bytes
    numerics_id: str
    block_bytes: int
    block_size: int

    def to_pb(self) -> types_pb2.KvIdentity:
        """The message for handshakes."""
        return types_pb2.KvIdentity(
            namespace=self.namespace,
            numerics_id=self.numerics_id,
            block_bytes=self.block_bytes,
            block_size=self.block_size,
        )

    def check(self, other: types_pb2.KvIdentity) -> None:
        """Raise LayoutMismatch, naming the difference, unless `other` is equal."""
        mine = self.to_pb()
        for name in ("numerics_id", "block_size", "block_bytes", "namespace"):
            ours, theirs = getattr(mine, name), getattr(other, name)
            if ours != theirs:
                shown = (ours.hex(), theirs.hex()) if isinstance(ours, bytes) else (ours, theirs)
                raise LayoutMismatch(f"KV {name} differs: {shown[0]} here, {shown[1]} there")

    def check_namespace(self, namespace: bytes) -> None:
        """Raise LayoutMismatch unless a request was hashed for this namespace."""
        if namespace != self.namespace:
            raise LayoutMismatch(f"KV namespace differs: {self.namespace.hex()} here, {namespace.hex()} asked for")


@dataclass(slots=True, frozen=True)
class Limits:
    """What a request is checked against on a worker; the router has checked it for people before."""

    max_model_len: int
    vocab_size: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    debug_logits_digest: bool

    @classmethod
    def of(cls, model: ModelConfig, context_length: int, block_size: int, debug_logits_digest: bool) -> Limits:
        """Limits for a model; `context_length` 0 takes the model's own."""
        longest = min(context_length or model.max_position, model.max_position)
        return cls(longest, model.vocab_size, block_size, model.eos_token_ids, debug_logits_digest)


def request_from_pb(message: worker_pb2.WorkerRequest, limits: Limits, arrival_s: float) -> Request:
    """Check and convert. The end-of-sequence tokens become stop tokens here, unless the request ignores them.

    Raises:
        InvalidRequest: the request cannot be run on this worker at all.
    """
    prompt, outputs = list(message.prompt_token_ids), list(message.output_token_ids)
    _check_tokens(prompt, outputs, limits)
    if not 0 < len(message.request_id) <= MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(f"request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters", param="request_id")
    params = sampling_from_pb(message.sampling)
    _check_sampling(params, limits)
    if params.max_tokens <= len(outputs):
        raise InvalidRequest("max_tokens is reached already", param="max_tokens")
    root = prefix_root(limits.block_size, message.cache_salt)
    hashes = block_hashes(root, prompt, limits.block_size)
    # They choose the KV that is reused: a wrong one would be wrong tokens. Computing them again costs 0.1 us a token.
    if not join_hashes(hashes).startswith(message.prefix_hashes):
        raise InvalidRequest("the prefix hashes are not those of this prompt", param="prefix_hashes")
    return Request(
        request_id=message.request_id,
        prompt_ids=prompt,
        output_ids=outputs,
        params=params if params.ignore_eos else _with_stop_tokens(params, limits.eos_token_ids),
        root=root,
        block_size=limits.block_size,
        prompt_hashes=hashes,
        seed=message.sampling.seed,
        choice=message.choice,
        priority=message.priority,
        arrival_s=arrival_s,
        digest=limits.debug_logits_digest,
    )


async def constrain(request: Request, grammars: GrammarStore) -> None:
    """Give a request that asks for a grammar its constraint, brought to where its output stands.

    Raises:
        InvalidRequest: the grammar is none, costs too much, or forbids the output so far.
    """
    params = request.params
    if params.grammar is not None:
        request.constraint = await grammars.matcher(params.grammar, request.output_ids, ignore_eos=params.ignore_eos)


def _check_tokens(prompt: Sequence[int], outputs: Sequence[int], limits: Limits) -> None:
    if not prompt:
        raise InvalidRequest("the prompt is empty", param="prompt")
    if len(prompt) + len(outputs) >= limits.max_model_len:
        raise InvalidRequest(
            f"{len(prompt)} prompt and {len(outputs)} output tokens leave no room in a context of "
            f"{limits.max_model_len} tokens",
            reason="context_length_exceeded",
            param="prompt",
        )
    largest = max(chain(prompt, outputs))
    if largest >= limits.vocab_size:
        raise InvalidRequest(f"token id {largest} is not in a vocabulary of {limits.vocab_size}", param="prompt")


def _check_sampling(params: SamplingParams, limits: Limits) -> None:
    """Refuse what would make a whole step fail, other requests included."""
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        if max(ids, default=0) >= limits.vocab_size:
            raise InvalidRequest(f"{name} names a token outside a vocabulary of {limits.vocab_size}", param=name)
    for name, low, high in _RANGES:
        value = getattr(params, name)
        if not low <= value <= high:
            raise InvalidRequest(f"{name} must lie in {low} .. {high}, not {value}", param=name)
    if not all(map(isfinite, params.logit_bias.values())):
        raise InvalidRequest("logit_bias must be finite", param="logit_bias")
    if not all(params.stop):
        raise InvalidRequest("a stop string is empty", param="stop")


def _with_stop_tokens(params: SamplingParams, eos_token_ids: Sequence[int]) -> SamplingParams:
    return replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *eos_token_ids))))
