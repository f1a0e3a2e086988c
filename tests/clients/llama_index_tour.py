"""llama-index, OpenAILike: chat, complete, their streams, tools, structured prediction."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

from tests.clients.tour import ASK_WEATHER, QUESTION, Tour, begin, is_weather

TALK = [ChatMessage(role="system", content="You are brief."), ChatMessage(role="user", content=QUESTION)]


class Weather(BaseModel):
    """The weather that was asked for."""

    city: Literal["Berlin", "Paris"]
    days: int = Field(ge=1, le=9)


def weather(city: Literal["Berlin", "Paris"], days: int = Field(ge=1, le=9)) -> str:
    """The weather of a city."""
    return f"sunny in {city} for {days} days"


def chat(tour: Tour, llm: Any) -> None:
    """In one piece, in chunks, asynchronously."""
    whole = llm.chat(TALK)
    tour.check("chat answers", whole.message.content.strip(), whole)
    tour.check("usage is there", whole.raw.usage.completion_tokens > 0 and whole.raw.usage.prompt_tokens > 0, whole.raw)
    chunks = list(llm.stream_chat(TALK))
    joined = "".join(chunk.delta or "" for chunk in chunks)
    tour.check("stream_chat equals chat", joined == whole.message.content == chunks[-1].message.content, joined)
    same = asyncio.run(llm.achat(TALK))
    tour.check("achat answers alike", same.message.content == whole.message.content, same)


def complete(tour: Tour, llm: Any) -> None:
    """The completions door."""
    whole = llm.complete("The capital of France is")
    joined = "".join(chunk.delta or "" for chunk in llm.stream_complete("The capital of France is"))
    tour.check("stream_complete equals complete", whole.text and joined == whole.text, (joined, whole.text))


def tools(tour: Tour, llm: Any) -> None:
    """A forced call through the client's own tool machinery."""
    tool = FunctionTool.from_defaults(weather, fn_schema=Weather)
    answer = llm.chat_with_tools([tool], user_msg=ASK_WEATHER, tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    tour.check("a required tool is called", is_weather(calls[0].tool_kwargs), answer)
    tour.check("the tool runs on it", "sunny in" in str(tool(**calls[0].tool_kwargs)), calls)
    last: Any = None
    for chunk in llm.stream_chat_with_tools([tool], user_msg=ASK_WEATHER, tool_required=True):
        last = chunk
    streamed = llm.get_tool_calls_from_response(last)
    tour.check("streamed arguments equal", streamed[0].tool_kwargs == calls[0].tool_kwargs, (streamed, calls))
    done = llm.predict_and_call([tool], user_msg=ASK_WEATHER, tool_required=True)
    tour.check("predict_and_call", "sunny in" in str(done), done)


def structured(tour: Tour, llm: Any, way: str) -> None:
    """A class out of a prompt."""
    found = llm.structured_predict(Weather, PromptTemplate("{ask}"), ask=ASK_WEATHER)
    tour.check(f"structured_predict by {way}", isinstance(found, Weather), found)
    answer = llm.as_structured_llm(Weather).chat([ChatMessage(role="user", content=ASK_WEATHER)])
    tour.check(f"as_structured_llm by {way}", isinstance(answer.raw, Weather), answer)


def main() -> None:
    """Go."""
    tour = begin(f"llama-index openai-like {version('llama-index-llms-openai-like')}")
    options: dict[str, Any] = {
        "model": tour.model, "api_base": tour.base_url, "api_key": "none", "temperature": 0.0, "max_retries": 0,
        "context_window": 2048, "is_function_calling_model": True,
    }  # fmt: skip
    chat(tour, OpenAILike(**options, max_tokens=12, is_chat_model=True))
    complete(tour, OpenAILike(**options, max_tokens=8, is_chat_model=False))
    tools(tour, OpenAILike(**options, max_tokens=60, is_chat_model=True))
    typed = {**options, "max_tokens": 60, "is_chat_model": True}
    structured(tour, OpenAILike(**typed), "tool")
    structured(tour, OpenAILike(**typed, should_use_structured_outputs=True), "schema")
    tour.done()


if __name__ == "__main__":
    main()
