"""litellm, provider openai: completion, streaming, tools, response_format, text completions, errors."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Its price list would come over the network.

import litellm
from pydantic import BaseModel

from tests.clients.tour import ASK_WEATHER, QUESTION, WEATHER, WEATHER_TOOL, Tour, begin, is_weather

TALK = [{"role": "user", "content": QUESTION}]
ASK = [{"role": "user", "content": ASK_WEATHER}]


class Answer(BaseModel):
    """A structured answer."""

    yes: bool
    number: int


def chat(tour: Tour, options: dict[str, Any]) -> None:
    """In one piece, in chunks, asynchronously."""
    whole = litellm.completion(**options, messages=TALK, max_tokens=12)
    text = whole.choices[0].message.content
    tour.check("completion answers", text.strip() and whole.choices[0].finish_reason in ("stop", "length"), whole)
    tour.check("usage is there", whole.usage.prompt_tokens > 0 and whole.usage.completion_tokens > 0, whole.usage)
    chunks = list(
        litellm.completion(**options, messages=TALK, max_tokens=12, stream=True, stream_options={"include_usage": True})
    )
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    tour.check("stream equals completion", joined == text and len(chunks) > 2, (joined, text))
    usage = chunks[-1].usage
    tour.check("a stream tells its usage", usage.completion_tokens == whole.usage.completion_tokens, usage)
    several = litellm.completion(**{**options, "temperature": 1}, messages=TALK, max_tokens=6, n=2, seed=3)
    tour.check("two choices", [choice.index for choice in several.choices] == [0, 1], several)
    same = asyncio.run(litellm.acompletion(**options, messages=TALK, max_tokens=12))
    tour.check("acompletion answers alike", same.choices[0].message.content == text, same)


def tools(tour: Tour, options: dict[str, Any]) -> None:
    """A forced call, whole and streamed, and its result."""
    ask: dict[str, Any] = {**options, "messages": ASK, "max_tokens": 60, "tools": [WEATHER_TOOL]}
    forced = {"type": "function", "function": {"name": "weather"}}
    message = litellm.completion(**ask, tool_choice=forced).choices[0].message
    arguments = message.tool_calls[0].function.arguments
    tour.check("a named tool is called", is_weather(arguments), message)
    chunks = list(litellm.completion(**ask, tool_choice="required", stream=True))
    built = litellm.stream_chunk_builder(chunks, messages=ASK).choices[0]
    tour.check(
        "a required call, rebuilt from chunks", is_weather(built.message.tool_calls[0].function.arguments), built
    )
    tour.check("its finish reason", built.finish_reason == "tool_calls", built)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    history = [*ASK, message.model_dump(exclude_none=True), result]
    final = litellm.completion(**{**ask, "messages": history}, tool_choice="none").choices[0].message
    tour.check("a tool's result is answered", final.content, final)


def structured(tour: Tour, options: dict[str, Any]) -> None:
    """A class, a schema, any object."""
    ask: dict[str, Any] = {**options, "messages": ASK, "max_tokens": 60}
    parsed = litellm.completion(**ask, response_format=Answer).choices[0].message.content
    tour.check("response_format of a class", isinstance(Answer.model_validate_json(parsed), Answer), parsed)
    schema = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}
    tour.check("response_format json_schema", is_weather(_text(litellm.completion(**ask, response_format=schema))))
    loose = _text(litellm.completion(**ask, response_format={"type": "json_object"}))
    tour.check("response_format json_object", loose.startswith("{"), loose)


def _text(answer: Any) -> str:
    text: str = answer.choices[0].message.content
    return text


def completions_and_errors(tour: Tour, options: dict[str, Any]) -> None:
    """The other door, and a refusal as the client's own exception."""
    ask = {**options, "model": f"text-completion-openai/{tour.model}", "prompt": "The capital of France is"}
    whole = litellm.text_completion(**ask, max_tokens=8).choices[0].text
    streamed = litellm.text_completion(**ask, max_tokens=8, stream=True)
    joined = "".join(chunk.choices[0].text or "" for chunk in streamed)
    tour.check("text_completion streams as it answers", whole and joined == whole, (joined, whole))
    try:
        litellm.completion(**{**options, "temperature": 9}, messages=TALK, max_tokens=4)
    except litellm.BadRequestError as error:
        tour.check("a refusal is a BadRequestError", "temperature" in str(error), error)
    else:
        tour.check("a refusal is a BadRequestError", False)


def main() -> None:
    """Go."""
    litellm.suppress_debug_info = True
    tour = begin(f"litellm {version('litellm')}")
    options: dict[str, Any] = {
        "model": f"openai/{tour.model}", "api_base": tour.base_url, "api_key": "none", "temperature": 0,
        "num_retries": 0,
    }  # fmt: skip
    chat(tour, options)
    tools(tour, options)
    structured(tour, options)
    completions_and_errors(tour, options)
    tour.done()


if __name__ == "__main__":
    main()
