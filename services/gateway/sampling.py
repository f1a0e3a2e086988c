"""From OpenAI's sampling fields to the cluster's. Unset stays unset: defaults are the router's."""

from __future__ import annotations

from common.base.errors import InvalidRequest
from pando.v1 import types_pb2
from services.gateway.grammar_fields import constrain
from services.gateway.openai_types import CommonFields
from services.gateway.token_fields import U32_MAX

_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)


def to_sampling(fields: CommonFields, max_tokens: int | None, logprobs: int | None) -> types_pb2.SamplingParams:
    """Sampling parameters of a request of OpenAI's API.

    Args:
        fields: the request.
        max_tokens: by whichever name the request calls it.
        logprobs: top alternatives per token; None: no logprobs.

    Raises:
        InvalidRequest: a logit_bias key that is no token id, or more than one constraint.
    """
    sampling = types_pb2.SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
    for name in _SAME_NAME:
        value = getattr(fields, name)
        if value is not None:
            setattr(sampling, name, value)
    sampling.top_k = max(fields.top_k or 0, 0)
    sampling.include_stop_str = bool(fields.include_stop_str_in_output)
    sampling.stop.extend([fields.stop] if isinstance(fields.stop, str) else fields.stop or [])
    sampling.stop_token_ids.extend(fields.stop_token_ids or [])
    if fields.seed is not None:
        sampling.seed = fields.seed % 2**64
    for token, bias in bias_of(fields.logit_bias, "logit_bias").items():
        sampling.logit_bias[token] = bias
    constrain(sampling, fields)
    return sampling


def affinity_name(fields: CommonFields) -> dict[str, str]:
    """The router's name for what keeps requests together -> the field that it came in."""
    return {"session_id": "prompt_cache_key"} if fields.session_id is None else {}


def bias_of(biases: dict[str, float] | None, param: str) -> dict[int, float]:
    """logit_bias with its keys as token ids. Raises InvalidRequest."""
    return {_token_id(key, param): bias for key, bias in (biases or {}).items()}


def _token_id(key: str, param: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= U32_MAX):
        raise InvalidRequest(f"{param}: {key[:40]!r} is no token id", param=param)
    return int(key)
