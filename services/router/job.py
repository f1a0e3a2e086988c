"""One request on its way through the router: what the client wished, and the job that came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.sched.params import SamplingParams
from pando.v1 import inference_pb2


@dataclass(slots=True, frozen=True)
class Chat:
    """Messages for the chat template, as the template sees them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


Prompt = str | Chat | list[int]
"""Text, messages, or token ids."""


@dataclass(slots=True)
class Wish:
    """A generation request as it came in, nothing checked.

    Attributes:
        message: the request itself; only `convert` looks into it.
        prompt: None when the client sent none.
        output_ids: output that the client already has; generation goes on after it.
        first_choice: number of the first of `n` choices.
        tenant, tenant_weight: whose request it is, and its share of waiting; 0 is the usual one.
        params: `max_tokens` in it means nothing; see below.
        max_tokens: None when unset.
        seed: None when unset.
    """

    message: inference_pb2.GenerateRequest
    request_id: str
    model: str
    prompt: Prompt | None
    output_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int | None
    seed: int | None
    n: int
    cache_salt: str
    priority: int
    session_id: str
    return_prompt_ids: bool
    tenant: str = ""
    tenant_weight: int = 0
    first_choice: int = 0


@dataclass(slots=True)
class Job:
    """A request that was checked, tokenised and hashed; ready to plan.

    Attributes:
        message: the request itself; only `convert` looks into it.
        params: `max_tokens` in it means nothing; see below.
        max_tokens: most output tokens, `output_ids` included.
        eos_ids: tokens that end the output unless `params.ignore_eos`.
        hashes: prefix hashes of the prompt's full blocks.
        namespace: of the KV that the cluster's workers share.
        text_offset: characters of text that `output_ids` already gave.
        deadline_s: on the monotonic clock.
        first_choice: number of the first of `n` choices.
        session_id: requests with the same one belong together; empty: none.
        block_bytes: KV bytes of a block.
    """

    message: inference_pb2.GenerateRequest
    request_id: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    params: SamplingParams
    max_tokens: int
    eos_ids: frozenset[int]
    seed: int
    n: int
    cache_salt: str
    priority: int
    return_prompt_ids: bool
    hashes: Sequence[bytes]
    block_size: int
    namespace: bytes
    text_offset: int
    deadline_s: float
    first_choice: int = 0
    tenant: str = ""
    tenant_weight: int = 0
    session_id: str = ""
    block_bytes: int = 0
