"""Shapes of the bodies of /v1/responses. Input items are read in `responses_input`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from common.base.errors import InvalidRequest
from services.gateway.body import Body
from services.gateway.openai_types import CommonFields
from services.gateway.token_fields import U32, AtLeastOne

_REFUSED = {
    "conversation": "conversations are not kept; use previous_response_id",
    "prompt": "there are no stored prompt templates",
}
LOGPROBS = "message.output_text.logprobs"


class TextOptions(Body):
    """`text`: the form of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Any = None


class InputFields(Body):
    """What makes the prompt of a response."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    conversation: Any = None
    prompt: Any = None
    reasoning: Any = None
    truncation: Annotated[str, Field(pattern="^(auto|disabled)$")] | None = None

    def check(self) -> None:
        """Refuse what this server cannot do. Raises InvalidRequest with `param`."""
        for name in ("conversation", "prompt"):
            if getattr(self, name) is not None:
                raise InvalidRequest(f"{name}: {_REFUSED[name]}", param=name)
        if self.input in (None, []) and self.previous_response_id is None:
            raise InvalidRequest("input: this field is required", param="input", reason="missing_field")


class ResponsesRequest(InputFields, CommonFields):
    """Body of POST /v1/responses."""

    max_output_tokens: AtLeastOne | None = None
    top_logprobs: U32 | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None

    stream_options: dict[str, Any] | None = None
    background_options: Any = None
    context_management: Any = None
    max_tool_calls: Any = None
    access_programs: Any = None
    image: Any = None

    @property
    def logprobs(self) -> int | None:
        """Alternatives per token; None: no logprobs."""
        wanted = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        return (self.top_logprobs or 0) if wanted else None

    def check(self) -> None:
        """Refuse what this server cannot do. Raises InvalidRequest with `param`."""
        super().check()
        if self.background:
            raise InvalidRequest("background: responses run in the foreground only", param="background")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options: only allowed when stream is true", param="stream_options")
