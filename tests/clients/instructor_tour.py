"""instructor: classes out of a model, in each of its modes, whole, partial and as a list."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, Field

from tests.clients.tour import ASK_WEATHER, Tour, begin

TALK: list[Any] = [{"role": "user", "content": ASK_WEATHER}]
MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT)


class Weather(BaseModel):
    """The weather that was asked for."""

    city: Literal["Berlin", "Paris"]
    days: int = Field(ge=1, le=9)


class Plan(BaseModel):
    """A trip."""

    title: str = Field(max_length=20)
    stops: list[Weather] = Field(min_length=1, max_length=2)


def modes(tour: Tour, plain: openai.OpenAI) -> None:
    """One object, the same in every mode's own way."""
    for mode in MODES:
        client = instructor.from_openai(plain, mode=mode)
        ask: dict[str, Any] = {"model": tour.model, "messages": TALK, "max_tokens": 60, "temperature": 0}
        found, raw = client.chat.completions.create_with_completion(**ask, response_model=Weather, max_retries=0)
        tour.check(f"an object by {mode.name}", isinstance(found, Weather), found)
        tour.check(f"usage by {mode.name}", raw.usage.completion_tokens > 0, raw.usage)


def nested_and_partial(tour: Tour, plain: openai.OpenAI) -> None:
    """A class of classes, also as it grows, and a list of objects as they come."""
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    ask: dict[str, Any] = {"model": tour.model, "messages": TALK, "max_tokens": 100, "temperature": 0}
    whole = client.chat.completions.create(**ask, response_model=Plan, max_retries=0)
    tour.check("a nested object", whole.stops, whole)
    partial: list[Any] = list(client.chat.completions.create_partial(**ask, response_model=Plan))
    tour.check("partial objects end as the whole", partial[-1].model_dump() == whole.model_dump(), partial[-1])
    tour.check("partial objects grow", len(partial) > 2, partial)
    tools = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    streamed: list[Any] = list(tools.chat.completions.create_partial(**ask, response_model=Plan))
    tour.check("partial objects by TOOLS", Plan.model_validate(streamed[-1].model_dump()), streamed[-1])


def main() -> None:
    """Go."""
    tour = begin(f"instructor {version('instructor')}")
    with openai.OpenAI(base_url=tour.base_url, api_key="none", max_retries=0) as plain:
        modes(tour, plain)
        nested_and_partial(tour, plain)
    tour.done()


if __name__ == "__main__":
    main()
