"""What an application does with the official OpenAI client, against any base URL; a script that needs only `openai`.

    python -m tests.support.openai_tour URL MODEL [--structured] [--fake]

Runs with every version of the client that is in use. `--structured` also takes the steps that need grammars, `--fake`
those that need the fake router. Prints a line for each step; the first thing that is wrong ends it with a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import openai
from pydantic import BaseModel

Client = Any
"""Its types differ between versions; the tour looks at what it gets."""

QUESTION: list[Any] = [{"role": "user", "content": "Say something."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Berlin", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
FLAT_WEATHER: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


class Answer(BaseModel):
    """A structured answer."""

    yes: bool


def models(client: Client, model: str) -> None:
    """List, find, miss."""
    assert model in [entry.id for entry in client.models.list()]
    assert client.models.retrieve(model).object == "model"
    error = _refused(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
    assert error.code == "model_not_found"


def chat(client: Client, model: str) -> None:
    """One answer with everything that may be asked of it."""
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_completion_tokens=6, n=2, logprobs=True, top_logprobs=2, seed=3,
        temperature=0.7, presence_penalty=0.1, logit_bias={"1": -5}, user="u", metadata={"a": "b"}, store=False,
        service_tier="auto", extra_body={"top_k": 20, "ignore_eos": True, "no_such_field": 1},
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1] and answer.object == "chat.completion"
    assert all(choice.finish_reason == "length" for choice in answer.choices)
    assert all(len(choice.logprobs.content) == 6 for choice in answer.choices)
    assert answer.usage.completion_tokens == 12 and answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer._request_id


def chat_stream(client: Client, model: str) -> None:
    """Chunks, their order, and the same text as in one piece."""
    ask: dict[str, Any] = {"model": model, "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**ask).choices[0].message.content
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    with client.chat.completions.stream(**ask) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == whole
    with client.chat.completions.create(**{**ask, "max_tokens": 200}, stream=True) as stream:
        next(iter(stream))


def tools(client: Client, model: str) -> None:
    """A forced call, streamed and not, and its result sent back."""
    ask: dict[str, Any] = {"model": model, "messages": QUESTION, "max_tokens": 60, "tools": [WEATHER], "temperature": 0}
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    message = client.chat.completions.create(**ask, tool_choice=choice).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Berlin", "Paris")
    with client.chat.completions.stream(**ask, tool_choice="required", parallel_tool_calls=False) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.tool_calls[0].function.parsed_arguments["city"]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    history = [*QUESTION, message.model_dump(exclude_none=True), result]
    assert client.chat.completions.create(**{**ask, "messages": history}, tool_choice="none").choices[0].message.content


def structured(client: Client, model: str) -> None:
    """An answer that the client parses into a class."""
    ask: dict[str, Any] = {"model": model, "max_tokens": 40, "temperature": 0}
    parsed = client.chat.completions.parse(**ask, messages=QUESTION, response_format=Answer)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    answer = client.responses.parse(model=model, input="Yes?", text_format=Answer, max_output_tokens=40, temperature=0)
    assert isinstance(answer.output_parsed, Answer)


def completions(client: Client, model: str) -> None:
    """Prompts of all shapes, scored and streamed."""
    ask: dict[str, Any] = {"model": model, "max_tokens": 4, "temperature": 0}
    scored = client.completions.create(**ask, prompt="one two", echo=True, logprobs=1).choices[0]
    assert scored.text.startswith("one two") and scored.logprobs.token_logprobs[0] is None
    assert len(scored.logprobs.tokens) == len(scored.logprobs.text_offset)
    several = client.completions.create(**ask, prompt=["one", "two"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    ids = client.completions.create(**ask, prompt=[[11, 12, 13]])
    assert ids.usage.prompt_tokens == 3
    chunks = list(client.completions.create(**ask, prompt="one", stream=True, stop=["zzz"]))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def responses(client: Client, model: str) -> None:
    """Create, stream, go on, list, forget."""
    ask: dict[str, Any] = {"model": model, "max_output_tokens": 8, "temperature": 0}
    first = client.responses.create(**ask, input="Say something.", instructions="Be brief.")
    assert first.usage.output_tokens <= 8 and client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(**ask, input="More.", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.output_tokens
    kinds = [event.type for event in client.responses.create(**ask, input="Say something.", stream=True)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert "response.output_text.delta" in kinds and kinds[-1] in ("response.completed", "response.incomplete")
    (item,) = client.responses.input_items.list(first.id).data
    assert item.role == "user" and item.content[0].text == "Say something."
    client.responses.delete(first.id)
    assert _refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id)).code == "response_not_found"
    _refused(openai.BadRequestError, lambda: client.responses.cancel(second.id))


def response_tools(client: Client, model: str) -> None:
    """A call in a response, and its output sent back by the response's id."""
    ask: dict[str, Any] = {"model": model, "max_output_tokens": 60, "temperature": 0}
    one: dict[str, Any] = {"tools": [FLAT_WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    with client.responses.stream(**ask, **one, input="Go.") as stream:
        final = stream.get_final_response()
    call = final.output[0]
    assert call.type == "function_call" and json.loads(call.arguments)["city"]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert client.responses.create(**ask, input=output, previous_response_id=final.id).output_text


def errors(client: Client, model: str) -> None:
    """Refusals that the client turns into its own exceptions."""
    nameless: Any = {"type": "function", "function": {"name": "a b"}}
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"messages": QUESTION, "temperature": 9}, "temperature"),
        ({"messages": QUESTION, "max_tokens": 0}, "max_tokens"),
        ({"messages": image}, "messages[0].content[0]"),
        ({"messages": QUESTION, "stop": ["a"] * 9}, "stop"),
        ({"messages": QUESTION, "tools": [nameless]}, "tools[0].function.name"),
    ]
    for fields, param in cases:
        error = _refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, **fields))  # noqa: B023
        assert error.param == param and error.request_id and error.code, (error.param, param)


def retries(client: Client, model: str) -> None:
    """A server that is full twice is asked a third time, after as long as it said."""
    nonce = str(time.monotonic_ns())
    ask: dict[str, Any] = {"model": model, "max_tokens": 2}
    patient = client.with_options(max_retries=2)
    assert patient.completions.create(**ask, prompt=f"Fail first: 2 {nonce}").choices
    hasty = client.with_options(max_retries=0)
    error = _refused(openai.RateLimitError, lambda: hasty.completions.create(**ask, prompt=f"Fail first: 1 {nonce}b"))
    assert error.response.headers["x-should-retry"] == "true" and int(error.response.headers["retry-after"]) >= 1


async def concurrent(base_url: str, model: str) -> None:
    """Many requests at a time through the asynchronous client, one of them left early."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:

        async def one(number: int) -> str:
            stream: Any = await client.chat.completions.create(
                model=model, messages=QUESTION, max_tokens=6, stream=True, seed=number
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert all(await asyncio.gather(*(one(number) for number in range(8))))
        stream: Any = await client.chat.completions.create(model=model, messages=QUESTION, max_tokens=200, stream=True)
        async for _ in stream:
            break
        await stream.close()


def _refused(kind: type[Exception], call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


ALWAYS = (models, chat, chat_stream, completions, responses, errors)
STRUCTURED = (tools, structured, response_tools)


def tour(url: str, model: str, *, with_structured: bool, fake: bool) -> None:
    """All steps. Raises AssertionError, or whatever the client raises."""
    steps = [*ALWAYS, *(STRUCTURED if with_structured else ()), *((retries,) if fake else ())]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for step in steps:
            step(client, model)
            print(f"{step.__name__}: ok", flush=True)
    asyncio.run(concurrent(f"{url}/v1", model))
    print(f"concurrent: ok\nopenai {openai.__version__}: done", flush=True)


def main() -> None:
    """Read the command line and go."""
    parser = argparse.ArgumentParser(description="A tour through the OpenAI API.")
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--structured", action="store_true", help="also what needs grammars")
    parser.add_argument("--fake", action="store_true", help="also what needs the fake router")
    args = parser.parse_args()
    tour(args.url, args.model, with_structured=args.structured, fake=args.fake)


if __name__ == "__main__":
    main()
