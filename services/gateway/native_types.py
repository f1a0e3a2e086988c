"""Shape of the native request body, POST /generate, with the names that SGLang's callers know."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from common.base.errors import InvalidRequest
from services.gateway.body import Body
from services.gateway.prompts import Prompt, split
from services.gateway.token_fields import I32, U32, AtLeastOne, Seed, TokenFields

_OTHER_MEDIA = ("image_data", "video_data", "audio_data", "input_embeds")


class NativeSampling(TokenFields):
    """`sampling_params`."""

    max_new_tokens: AtLeastOne | None = None
    min_new_tokens: U32 | None = None
    no_stop_trim: bool | None = None
    n: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    sampling_seed: Seed | None = None


class GenerateBody(Body):
    """Body of POST /generate."""

    text: Any = None
    input_ids: Any = None
    sampling_params: NativeSampling | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: U32 | None = None
    logprob_start_len: int | None = None
    rid: str | None = None
    model: str | None = None
    cache_salt: str | None = None
    priority: I32 | None = None
    session_id: str | None = None
    timeout_s: Annotated[float, Field(gt=0)] | None = None

    @property
    def sampling(self) -> NativeSampling:
        """Sampling parameters, given or not."""
        return self.sampling_params or NativeSampling()

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.sampling.n or 1

    def unknown_names(self) -> list[str]:
        """Also those of `sampling_params`."""
        return [*super().unknown_names(), *(f"sampling_params.{name}" for name in self.sampling.unknown_names())]

    def check(self) -> None:
        """Refuse what this build lacks.

        Raises:
            InvalidRequest, Unsupported: with `param`.
        """
        extra = self.model_extra or {}
        for name in _OTHER_MEDIA:
            if extra.get(name) is not None:
                raise InvalidRequest(f"{name}: only text and token ids are supported", param=name)
        if extra.get("lora_path") is not None:
            raise InvalidRequest("lora_path: adapters are not supported", param="lora_path")

    def prompts(self, limit: int) -> list[Prompt]:
        """The prompts, from whichever field has them. Raises InvalidRequest."""
        if (self.text is None) == (self.input_ids is None):
            raise InvalidRequest("text: exactly one of text and input_ids is required", param="text")
        if self.text is not None:
            return split(self.text, "text", limit)
        return split(self.input_ids, "input_ids", limit)
