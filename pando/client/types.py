"""What a client gives and gets: prompts, options, answers. Plain dataclasses, no protobuf, nothing heavy to import.

Counts are tokens, times are seconds. An option that is left out takes the server's default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

FinishReason = Literal["stop", "length"]
Message = Mapping[str, Any]
"""role and content, as OpenAI writes it; also name, tool_calls, tool_call_id."""


@dataclass(slots=True, frozen=True)
class Chat:
    """Messages for the model's chat template. A bare list of messages is the same as `Chat(messages)`.

    Attributes:
        continue_final_message: go on inside the last message, an assistant's, instead of opening a new one.
        template_kwargs: further template variables, of those that the router allows.
        tools: OpenAI tool objects, for templates that print them.
    """

    messages: Sequence[Message]
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()


Prompt = str | Chat | Sequence[Message] | Sequence[int]
"""Text, a conversation, or token ids."""


class Options(TypedDict, total=False):
    """Everything `generate` and `stream` take beside the prompt.

    `regex`, `json_schema`, `choices`, `ebnf` and `structural_tag` constrain the output; at most one of them. A schema
    or tag is JSON text or a mapping. `prompt_logprobs_start` is the position of the first prompt token whose logprob is
    wanted; what comes before may be found in the cache. `timeout_s` is the deadline of the whole call with its retries.
    Where requests wait, each `tenant` gets a share by its `tenant_weight` (1 to 100); over HTTP the API key tells both.
    """

    model: str
    n: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str: bool
    skip_special_tokens: bool
    seed: int
    logprobs: int
    prompt_logprobs: int
    prompt_logprobs_start: int
    regex: str
    json_schema: str | Mapping[str, Any]
    choices: Sequence[str]
    ebnf: str
    structural_tag: str | Mapping[str, Any]
    request_id: str
    cache_salt: str
    priority: int
    session_id: str
    tenant: str
    tenant_weight: int
    return_prompt_token_ids: bool
    timeout_s: float


@dataclass(slots=True, frozen=True)
class TopLogprob:
    """An alternative to a token."""

    token_id: int
    logprob: float
    token: bytes


@dataclass(slots=True, frozen=True)
class TokenLogprob:
    """A token and its logprob. `token` holds its exact bytes, which may be part of a character."""

    token_id: int
    logprob: float
    token: bytes
    rank: int = 0
    top: tuple[TopLogprob, ...] = ()


@dataclass(slots=True, frozen=True)
class CachedTokens:
    """Prompt tokens that nobody computed for this request, by the tier that held their KV."""

    l1: int = 0
    l2: int = 0
    l3: int = 0
    peer: int = 0

    @property
    def total(self) -> int:
        """All tiers."""
        return self.l1 + self.l2 + self.l3 + self.peer


@dataclass(slots=True, frozen=True)
class Usage:
    """What one choice cost, or all of them. Over HTTP only the counts and the first three times are known.

    Attributes:
        queue_s: from arrival at the worker that computed the prompt to its first step.
        prefill_s: from the first step to the first token.
        decode_s: from the first token to the last.
        transfer_s: time that decode waited for KV after the first token was known.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: CachedTokens = CachedTokens()
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    transfer_s: float = 0.0
    transfer_bytes: int = 0
    num_preemptions: int = 0
    prefill_worker: str = ""
    decode_worker: str = ""

    @property
    def cached_tokens(self) -> int:
        """Cached prompt tokens, all tiers."""
        return self.cached.total


@dataclass(slots=True, frozen=True)
class PromptInfo:
    """Facts about the prompt: its ids and logprobs where they were asked for (the first token has no logprob)."""

    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True, frozen=True)
class Chunk:
    """A piece of one choice as it comes.

    Attributes:
        choice: its number.
        text: text that became final; never part of a character, never part of a stop string.
        token_ids: the tokens of this piece; the text of the last ones may come later.
        finish_reason: set in the choice's last chunk, with `usage`.
        stop_reason: the stop string that ended it, or "".
        prompt: set in the choice's first chunk.
    """

    request_id: str
    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str = ""
    usage: Usage | None = None
    prompt: PromptInfo | None = None


@dataclass(slots=True, frozen=True)
class Choice:
    """One finished continuation."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str
    logprobs: tuple[TokenLogprob, ...]
    usage: Usage


@dataclass(slots=True, frozen=True)
class Generation:
    """A whole answer: all choices, and the prompt's facts."""

    request_id: str
    choices: tuple[Choice, ...]
    prompt: PromptInfo

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Output ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def usage(self) -> Usage:
        """The prompt once, the output of all choices; of cached tokens those that the least lucky choice found."""
        usages = [choice.usage for choice in self.choices]
        return Usage(
            prompt_tokens=max(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached=min((usage.cached for usage in usages), key=lambda cached: cached.total),
            queue_s=max(usage.queue_s for usage in usages),
            prefill_s=max(usage.prefill_s for usage in usages),
            decode_s=max(usage.decode_s for usage in usages),
            transfer_s=max(usage.transfer_s for usage in usages),
            transfer_bytes=sum(usage.transfer_bytes for usage in usages),
            num_preemptions=sum(usage.num_preemptions for usage in usages),
        )


@dataclass(slots=True, frozen=True)
class Tokenized:
    """Token ids of a prompt, the exact bytes of each token, and the text (rendered, for a conversation)."""

    token_ids: tuple[int, ...]
    tokens: tuple[bytes, ...]
    text: str
    max_model_len: int


@dataclass(slots=True, frozen=True)
class ModelInfo:
    """The served model. Over HTTP only name, max_model_len and created_unix_s are known."""

    name: str
    max_model_len: int
    created_unix_s: int
    architecture: str = ""
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    has_chat_template: bool = False
    block_size: int = 0


@dataclass(slots=True, frozen=True)
class WorkerInfo:
    """A worker as the router sees it; `state` is ready, draining or suspect."""

    worker_id: str
    incarnation: int
    address: str
    roles: tuple[str, ...]
    state: str
    num_running: int
    num_waiting: int
    waiting_tokens: int
    blocks_free: int
    blocks_cached: int
    blocks_held: int
    blocks_in_view: int
    transports: tuple[str, ...]
    pid: int
