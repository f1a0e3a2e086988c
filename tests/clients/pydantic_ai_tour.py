"""pydantic-ai: agents with typed output in all three of its modes, a tool, streams, over chat and responses."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.tour import ASK_WEATHER, QUESTION, Tour, begin


class Weather(BaseModel):
    """The weather that was asked for."""

    city: Literal["Berlin", "Paris"]
    days: int = Field(ge=1, le=9)


def short(max_tokens: int) -> ModelSettings:
    """Greedy, and no longer than that."""
    return ModelSettings(temperature=0, max_tokens=max_tokens)


async def text(tour: Tour, name: str, model: Any) -> None:
    """An answer in one piece and in chunks."""
    agent = Agent(model, model_settings=short(12), instructions="You are brief.")
    whole = await agent.run(QUESTION)
    tour.check(f"{name}: run answers", whole.output.strip(), whole)
    async with agent.run_stream(QUESTION) as stream:
        joined = "".join([delta async for delta in stream.stream_text(delta=True)])
        tour.check(f"{name}: run_stream equals run", joined == whole.output, (joined, whole.output))


async def typed(tour: Tour, name: str, model: Any) -> None:
    """A class by a tool and by a schema."""
    for kind in (ToolOutput, NativeOutput):
        agent: Any = Agent(model, output_type=kind(Weather), model_settings=short(60), retries=0)
        found = (await agent.run(ASK_WEATHER)).output
        tour.check(f"{name}: {kind.__name__}", isinstance(found, Weather), found)
        async with agent.run_stream(ASK_WEATHER) as stream:
            streamed = await stream.get_output()
            tour.check(f"{name}: {kind.__name__} streamed equals", streamed == found, (streamed, found))


async def with_tool(tour: Tour, name: str, model: Any) -> None:
    """A tool beside the typed output: this small model may call it for ever, but every call has arguments that fit."""
    asked: list[tuple[str, int]] = []
    agent: Any = Agent(model, output_type=Weather, model_settings=short(80), retries=0)

    @agent.tool_plain
    def forecast(city: Literal["Berlin", "Paris"], days: int) -> str:
        """The weather of a city."""
        asked.append((city, days))
        return "sunny"

    outcome = "a result"
    try:
        found = (await agent.run(ASK_WEATHER, usage_limits=UsageLimits(request_limit=3))).output
        assert isinstance(found, Weather), found
    except UsageLimitExceeded:
        outcome = "no end"
    fits = all(city in ("Berlin", "Paris") and isinstance(days, int) for city, days in asked)
    tour.check(
        f"{name}: calls of a tool fit ({len(asked)} calls, {outcome})", fits and (asked or outcome == "a result")
    )


async def main() -> None:
    """Go."""
    tour = begin(f"pydantic-ai {version('pydantic-ai-slim')}")
    provider = OpenAIProvider(base_url=tour.base_url, api_key="none")
    for name, kind in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
        model = kind(tour.model, provider=provider)
        await text(tour, name, model)
        await typed(tour, name, model)
        await with_tool(tour, name, model)
    tour.done()


if __name__ == "__main__":
    asyncio.run(main())
