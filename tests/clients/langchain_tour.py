"""langchain-openai: invoke, stream, bind_tools, with_structured_output, asynchronously, and the responses API."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.clients.tour import ASK_WEATHER, QUESTION, WEATHER_TOOL, Tour, begin, is_weather

TALK: list[Any] = [SystemMessage("You are brief."), HumanMessage(QUESTION)]


class Weather(BaseModel):
    """The weather that was asked for."""

    city: Literal["Berlin", "Paris"]
    days: int = Field(ge=1, le=9)


def chat(tour: Tour, llm: Any) -> None:
    """One answer in one piece, in chunks, and in a batch."""
    whole = llm.invoke(TALK)
    tour.check("invoke answers", whole.content.strip() and whole.response_metadata["finish_reason"], whole)
    usage = whole.usage_metadata
    tour.check("usage is there", usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0, usage)
    chunks = list(llm.stream(TALK))
    joined = "".join(chunk.content for chunk in chunks)
    tour.check("stream equals invoke", joined == whole.content and len(chunks) > 2, (joined, whole.content))
    told = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    tour.check(
        "a stream tells its usage once", [one["output_tokens"] for one in told] == [usage["output_tokens"]], told
    )
    batch = llm.batch([TALK, TALK])
    tour.check("batch answers alike", [one.content for one in batch] == [whole.content] * 2, batch)
    scored = llm.bind(logprobs=True, top_logprobs=2).invoke(TALK).response_metadata["logprobs"]["content"]
    tour.check("logprobs of every token", len(scored) == usage["output_tokens"] and len(scored[0]["top_logprobs"]) == 2)
    same = asyncio.run(llm.ainvoke(TALK))
    tour.check("ainvoke answers alike", same.content == whole.content, same)


def tools(tour: Tour, llm: Any) -> None:
    """Forced calls, streamed calls, and a result that goes back."""
    forced = llm.bind_tools([WEATHER_TOOL], tool_choice="weather")
    answer = forced.invoke(ASK_WEATHER)
    calls = answer.tool_calls
    tour.check("a named tool is called", len(calls) == 1 and is_weather(calls[0]["args"]), answer)
    total: Any = None
    for chunk in forced.stream(ASK_WEATHER):
        total = chunk if total is None else total + chunk
    tour.check("streamed arguments equal", total.tool_calls[0]["args"] == calls[0]["args"], total)
    required = llm.bind_tools([WEATHER_TOOL], tool_choice="required", parallel_tool_calls=False).invoke(ASK_WEATHER)
    tour.check("a required tool is called", is_weather(required.tool_calls[0]["args"]), required)
    free = llm.bind_tools([WEATHER_TOOL]).invoke(ASK_WEATHER)
    tour.check("auto answers or calls", free.content or is_weather(free.tool_calls[0]["args"]), free)
    back = [HumanMessage(ASK_WEATHER), answer, ToolMessage("sunny", tool_call_id=calls[0]["id"])]
    final = llm.bind_tools([WEATHER_TOOL], tool_choice="none").invoke(back)
    tour.check("a tool's result is answered", isinstance(final, AIMessage) and final.content, final)


def structured(tour: Tour, llm: Any) -> None:
    """An object in all three ways that the client knows."""
    for method in ("json_schema", "function_calling"):
        found = llm.with_structured_output(Weather, method=method).invoke(ASK_WEATHER)
        tour.check(f"with_structured_output by {method}", isinstance(found, Weather), found)
    loose = llm.with_structured_output(None, method="json_mode").invoke("Answer in JSON: " + QUESTION)
    tour.check("with_structured_output by json_mode", isinstance(loose, dict), loose)


def other_doors(tour: Tour, options: dict[str, Any]) -> None:
    """Text completions and the responses API."""
    text = OpenAI(**options, max_tokens=8)
    whole = text.invoke("The capital of France is")
    tour.check("completions stream as they answer", whole and "".join(text.stream("The capital of France is")) == whole)
    responses = ChatOpenAI(**options, max_tokens=24, use_responses_api=True)
    answer = responses.invoke(TALK)
    tour.check("responses answer", answer.text and answer.usage_metadata["output_tokens"] > 0, answer)
    joined = "".join(chunk.text for chunk in responses.stream(TALK))
    tour.check("responses stream as they answer", joined == answer.text, (joined, answer.text))
    call = responses.bind_tools([WEATHER_TOOL], tool_choice="weather").invoke(ASK_WEATHER).tool_calls
    tour.check("responses call a tool", is_weather(call[0]["args"]), call)


def main() -> None:
    """Go."""
    tour = begin(f"langchain-openai {version('langchain-openai')}")
    options = {"model": tour.model, "base_url": tour.base_url, "api_key": "none", "temperature": 0, "max_retries": 0}
    chat(tour, ChatOpenAI(**options, max_completion_tokens=12, stream_usage=True))
    llm = ChatOpenAI(**options, max_completion_tokens=60)
    tools(tour, llm)
    structured(tour, llm)
    other_doors(tour, options)
    tour.done()


if __name__ == "__main__":
    main()
