"""Between protobuf messages and the dataclasses of the pure code: where protobuf types stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common.grammar.spec import GrammarKind, GrammarSpec, choices_spec
from common.kv.hashing import HASH_BYTES
from common.sched.params import SamplingParams
from common.sched.plan import TokenLogprobs
from pando.v1 import types_pb2

TokenBytes = Callable[[int], bytes]


def sampling_from_pb(message: types_pb2.SamplingParams) -> SamplingParams:
    """What the message has, which are few fields of many, and the defaults of `SamplingParams` for the rest.

    Does not validate, but for choices, which must be strings that are not empty (InvalidRequest).
    """
    given: dict[str, Any] = {field.name: value for field, value in message.ListFields()}
    for name in _TO_PLAIN.keys() & given:
        given[name] = _TO_PLAIN[name](given[name])
    given.pop("seed", None)
    given.setdefault("max_tokens", 0)
    return SamplingParams(**given)


def grammar_from_pb(message: types_pb2.Grammar) -> GrammarSpec | None:
    """The grammar as plain data; None when none is asked for."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "choices":
        return choices_spec(list(message.choices.values))
    return GrammarSpec(GrammarKind(kind), getattr(message, kind))


_TO_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "logit_bias": dict,
    "stop": tuple,
    "stop_token_ids": tuple,
    "grammar": grammar_from_pb,
}
"""What is no number in `types_pb2.SamplingParams`."""


def logprob_to_pb(logprobs: TokenLogprobs, token_bytes: TokenBytes) -> types_pb2.TokenLogprob:
    """One token's logprobs with the exact bytes of every token named."""
    return types_pb2.TokenLogprob(
        token_id=logprobs.token_id,
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        token=token_bytes(logprobs.token_id),
        top=[types_pb2.TopLogprob(token_id=t, logprob=lp, token=token_bytes(t)) for t, lp in logprobs.top],
    )


def logprob_from_pb(message: types_pb2.TokenLogprob) -> TokenLogprobs:
    """The inverse of `logprob_to_pb`; bytes are dropped."""
    top = tuple((entry.token_id, entry.logprob) for entry in message.top)
    return TokenLogprobs(message.token_id, message.logprob, message.rank, top)


def join_hashes(hashes: Sequence[bytes]) -> bytes:
    """Prefix hashes as one byte string."""
    return b"".join(hashes)


def split_hashes(joined: bytes) -> list[bytes]:
    """The inverse of `join_hashes`; a torn last hash is dropped."""
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined) - HASH_BYTES + 1, HASH_BYTES)]
