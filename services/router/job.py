"""One request on its way through the router: what the client wished, and the job that came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.sched.params import SamplingParams
from pando.v1 import inference_pb2
from services.router.member import Identity


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
        session_id: requests with the same one belong together; empty: none.
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
    """A wish that was checked, tokenised and hashed; ready to plan.

    Attributes:
        max_tokens: most output tokens, those of the wish included.
        eos_ids: tokens that end the output unless the wish ignores them.
        kv: of the cluster's workers.
        hashes: prefix hashes of the prompt's full blocks.
        text_offset: characters of text that the wish's output already gave.
        deadline_s: on the monotonic clock.
    """

    wish: Wish
    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    seed: int
    eos_ids: frozenset[int]
    kv: Identity
    hashes: Sequence[bytes]
    text_offset: int
    deadline_s: float
