"""Shapes of the OpenAI request bodies. Types and wire bounds only: what a value may mean is the router's to judge.

Fields that are declared but never read are accepted for compatibility and have no effect (docs/openai.md lists them).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from common.base.errors import InvalidRequest
from services.gateway.body import Body
from services.gateway.object_fields import Functions, Prompts, ResponseFormat, Tools
from services.gateway.token_fields import I32, U32, U32_MAX, AtLeastOne, TokenFields


class StreamOptions(Body):
    """What a stream says beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CommonFields(TokenFields):
    """What chat, completions and responses have in common."""

    model: str | None = None
    stream: bool | None = None
    prompt_cache_key: str | None = None

    min_tokens: U32 | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None
    priority: I32 | None = None
    session_id: str | None = None
    timeout_s: Annotated[float, Field(gt=0)] | None = None

    user: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    moderation: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None


class SamplingFields(CommonFields):
    """What chat and completions have in common."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=U32_MAX)] | None = None
    max_tokens: U32 | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: U32 | None = None

    metadata: Any = None
    store: Any = None

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """The stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Every chunk carries usage."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check(self) -> None:
        """Refuse what fits no shape alone.

        Raises:
            InvalidRequest, Unsupported: with `param`.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options: only allowed when stream is true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs: only when stream is false", param="prompt_logprobs")


class ChatMessage(Body):
    """One message; content is a string or a list of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None

    @property
    def calls(self) -> list[dict[str, Any]] | None:
        """The assistant's tool calls, also where they have the shape that came before tools."""
        if self.tool_calls is None and self.function_call is not None:
            return [{"type": "function", "function": self.function_call}]
        return self.tool_calls


class ChatRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: U32 | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Any = None
    functions: Functions | None = None
    modalities: list[str] | None = None
    audio: Any = None

    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    function_call: Any = None
    parallel_tool_calls: bool | None = None
    web_search_options: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None

    def check(self) -> None:
        """As `SamplingFields.check`, and what this build lacks."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise InvalidRequest("add_generation_prompt: false is not supported", param="add_generation_prompt")
        if self.web_search_options is not None:
            raise InvalidRequest("web_search_options: there is no web search", param="web_search_options")
        self._check_functions()
        self._check_media()

    @property
    def wants_functions(self) -> bool:
        """The request speaks of functions, as clients did before there were tools: so does the answer."""
        return bool(self.functions)

    def tool_fields(self) -> tuple[list[dict[str, Any]] | None, Any, bool | None]:
        """tools, tool_choice and parallel_tool_calls, from whichever fields have them."""
        if not self.functions:
            return self.tools, self.tool_choice, self.parallel_tool_calls
        choice = self.function_call
        if isinstance(choice, dict):
            choice = {"type": "function", "function": choice}
        return [{"type": "function", "function": function} for function in self.functions], choice, False

    def _check_functions(self) -> None:
        if self.functions and self.tools:
            raise InvalidRequest("functions: not together with tools, which replace them", param="functions")
        if self.function_call not in (None, "none", "auto") and not self.functions:
            raise InvalidRequest("function_call: only allowed when functions are given", param="function_call")

    def _check_media(self) -> None:
        if self.audio is not None or "audio" in (self.modalities or []):
            param = "audio" if self.audio is not None else "modalities"
            raise InvalidRequest(f"{param}: audio output is not supported; this model writes text", param=param)


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions; the prompt's four shapes are told apart in `prompts`."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: U32 | None = None
    best_of: Annotated[int, Field(ge=1, le=U32_MAX)] | None = None
    suffix: str | None = None
    response_format: Any = None

    def check(self) -> None:
        """As `SamplingFields.check`, and what this build lacks."""
        super().check()
        if self.response_format not in (None, {"type": "text"}):
            raise InvalidRequest("response_format: not here; use json_schema", param="response_format")
        if self.suffix:
            raise InvalidRequest("suffix: this model cannot fill in the middle", param="suffix")
        if self.num_drawn < self.num_choices:
            raise InvalidRequest("best_of: must be at least n", param="best_of")
        if self.num_drawn > self.num_choices and self.stream:
            raise InvalidRequest("best_of: more than n only when stream is false", param="best_of")

    @property
    def num_drawn(self) -> int:
        """Choices per prompt that are generated; the best `n` of them are told."""
        return self.num_choices if self.best_of is None else self.best_of


class TokenizeBody(Body):
    """Body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[U32]
    skip_special_tokens: bool | None = None
