"""The HTTP routes that generate or look into the model: parse, build, hand over. One short handler each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from common.base.clock import Clock
from common.base.errors import InvalidRequest
from common.base.limits import LimitsConfig
from pando.v1.inference_pb2 import GetModelResponse, TokenizeRequest
from services.gateway import chat, completions, native
from services.gateway.body import Body, UnknownFields, parse, read_body
from services.gateway.client import RouterClient
from services.gateway.config import GatewayConfig
from services.gateway.context import context_of
from services.gateway.errors import JsonResponse
from services.gateway.exchange import Exchange, Running
from services.gateway.generation import Generation, Head, check_choices
from services.gateway.logprobs import token_string
from services.gateway.metrics import GatewayMetrics
from services.gateway.native_types import GenerateBody
from services.gateway.openai_types import ChatMessage, ChatRequest, CompletionRequest, DetokenizeBody, TokenizeBody
from services.gateway.prompts import chat_prompt, split
from services.gateway.rewrites import Rewriter

B = TypeVar("B", bound=Body)
REWRITES_HEADER = "x-pando-rewrites"


@dataclass(slots=True)
class Doors:
    """Handlers, with what they share."""

    config: GatewayConfig
    limits: LimitsConfig
    client: RouterClient
    running: Running
    metrics: GatewayMetrics
    clock: Clock
    unknown: UnknownFields
    rewriter: Rewriter

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await self.read(request, ChatRequest)
        body.check()
        check_choices(1, body.num_choices, self.limits.max_choices)
        messages, notes = self.rewritten(request, body.messages)
        head = await self.head(request, body.model)
        return self.exchange(chat.to_generation(body, messages, head, self.limits, notes))

    async def completions(self, request: Request) -> Response:
        """Continue one or more prompts."""
        body = await self.read(request, CompletionRequest)
        body.check()
        prompts = split(body.prompt, "prompt", self.limits.max_prompts)
        param = "n" if body.num_drawn == body.num_choices else "best_of"
        check_choices(len(prompts), body.num_drawn, self.limits.max_choices, param)
        echoes = await completions.fetch_echoes(self.client, body, prompts)
        return self.exchange(completions.to_generation(body, prompts, echoes, await self.head(request, body.model)))

    async def generate(self, request: Request) -> Response:
        """Continue one or more prompts, in the native format."""
        body = await self.read(request, GenerateBody)
        body.check()
        prompts = body.prompts(self.limits.max_prompts)
        check_choices(len(prompts), body.num_choices, self.limits.max_choices, "sampling_params.n")
        context = context_of(request.scope)
        return self.exchange(
            native.to_generation(body, prompts, context.request_id, clock=self.clock, started_s=context.started_s)
        )

    async def list_models(self, request: Request) -> Response:
        """The one model that is served."""
        model = await self.client.get_model()
        return JsonResponse({"object": "list", "data": [_model_card(model)]})

    async def get_model(self, request: Request) -> Response:
        """One model by name."""
        return JsonResponse(_model_card(await self.client.get_model(request.path_params["model"])))

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt, or of messages through the chat template."""
        body = await self.read(request, TokenizeBody)
        answer = await self.client.tokenize(_tokenize_request(body))
        document = {
            "count": len(answer.token_ids),
            "max_model_len": answer.max_model_len,
            "tokens": list(answer.token_ids),
        }
        if body.return_token_strs:
            document["token_strs"] = [token_string(token) for token in answer.tokens]
        return JsonResponse(document)

    async def detokenize(self, request: Request) -> Response:
        """Text of token ids."""
        body = await self.read(request, DetokenizeBody)
        skip = bool(body.skip_special_tokens)
        text = await self.client.detokenize(body.model or "", body.tokens, skip_special_tokens=skip)
        return JsonResponse({"prompt": text})

    async def read(self, request: Request, model: type[B]) -> B:
        """A body of this shape. Raises InvalidRequest and its kin."""
        body = parse(model, await read_body(request, self.limits.max_body_bytes, self.config.body_timeout_s))
        self.unknown.note(request.url.path, body.unknown_names())
        return body

    async def head(self, request: Request, model: str | None) -> Head:
        """What an answer repeats; a model that is not named is the served one."""
        name = model or (await self.client.get_model()).name
        return Head(context_of(request.scope).request_id, name, int(time.time()))

    def rewritten(
        self, request: Request, messages: Sequence[ChatMessage]
    ) -> tuple[Sequence[ChatMessage], dict[str, Any]]:
        """A conversation by the rules of prompt normalisation, and what to tell of it with the usage."""
        messages, rewrites = self.rewriter.apply(messages)
        if not rewrites:
            return messages, {}
        for rewrite in rewrites:
            self.metrics.rewrites.labels(rewrite.rule).inc()
        context_of(request.scope).headers[REWRITES_HEADER] = ",".join(rewrite.rule for rewrite in rewrites)
        return messages, {"rewrites": [asdict(rewrite) for rewrite in rewrites]}

    def exchange(self, generation: Generation) -> Exchange:
        """The response that runs it."""
        return Exchange(
            generation,
            client=self.client,
            running=self.running,
            metrics=self.metrics,
            clock=self.clock,
            max_parallel=self.config.max_parallel_prompts,
        )


def _tokenize_request(body: TokenizeBody) -> TokenizeRequest:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt: exactly one of prompt and messages is required", param="prompt")
    if body.messages is None:
        special = body.add_special_tokens is not False
        return TokenizeRequest(model=body.model or "", text=body.prompt, add_special_tokens=special)
    rendered = chat_prompt(
        body.messages,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs,
    )
    return TokenizeRequest(model=body.model or "", chat=rendered)


def _model_card(model: GetModelResponse) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_unix_s,
        "owned_by": "pando",
        "max_model_len": model.max_model_len,
    }
