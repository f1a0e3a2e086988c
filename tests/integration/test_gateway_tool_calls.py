"""Tool calls and structured answers through the official SDK, over a fake router that obeys grammars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.support.api_cases import Target
from tests.support.fake_inference import MODEL
from tests.support.gateway_thread import GatewayThread

CHAT = "/v1/chat/completions"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "go"}], "tools": [ADD, NOW]}
ARGUMENTS = {"a": 7, "b": 'a "b" {c} \\ 日'}


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayThread]:
    with GatewayThread() as running:
        yield running
        running.settle()


@pytest.fixture
def sdk(gateway: GatewayThread) -> Iterator[openai.OpenAI]:
    gateway.fake.requests.clear()
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def target(gateway: GatewayThread) -> Target:
    return Target(gateway.url, MODEL)


def test_calls_amid_text_come_whole_and_in_pieces(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(**ASK).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content == "Well."
    assert whole.message.tool_calls is not None
    calls = [call.function for call in whole.message.tool_calls if call.type == "function"]
    assert [call.name for call in calls] == ["add", "now"]
    assert [json.loads(call.arguments) for call in calls] == [ARGUMENTS, {}]
    with sdk.chat.completions.stream(**ASK) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls" and streamed.message.content == "Well."
    assert streamed.message.tool_calls is not None
    assert [call.function.arguments for call in streamed.message.tool_calls] == [call.arguments for call in calls]
    request = gateway.fake.requests[0]
    assert [tool["function"]["name"] for tool in json.loads(request.chat.tools_json)] == ["add", "now"]


def test_one_call_at_most_when_calls_may_not_be_parallel(gateway: GatewayThread, target: Target) -> None:
    choice = target.ok(CHAT, {**ASK, "parallel_tool_calls": False})["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["add"]
    assert choice["finish_reason"] == "tool_calls" and choice["stop_reason"] is None


def test_history_with_calls_and_results_reaches_the_template(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "9"}]},
    ]
    sdk.chat.completions.create(model=MODEL, messages=messages, tool_choice="none", tools=[ADD])  # type: ignore[list-item]
    sent = gateway.fake.requests[-1].chat
    assert json.loads(sent.messages[1].tool_calls_json) == [call] and sent.messages[2].content == "9"
    assert not sent.tools_json, "tool_choice none: the model is not told of tools"


def test_functions_as_before_there_were_tools(gateway: GatewayThread, target: Target) -> None:
    body = {key: value for key, value in ASK.items() if key != "tools"} | {"functions": [ADD["function"]]}
    choice = target.ok(CHAT, {**body, "function_call": {"name": "add"}})["choices"][0]
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    assert choice["message"]["function_call"]["name"] == "add"
    assert json.loads(choice["message"]["function_call"]["arguments"]) == ARGUMENTS
    events = target.stream(CHAT, body)
    deltas = [
        choice["delta"]["function_call"]
        for e in events
        for choice in e["choices"]
        if "function_call" in choice["delta"]
    ]
    assert deltas[0] == {"name": "add", "arguments": ""}
    assert json.loads("".join(delta["arguments"] for delta in deltas)) == ARGUMENTS
    history = [{"role": "assistant", "function_call": {"name": "add", "arguments": "{}"}},
               {"role": "function", "name": "add", "content": "9"}]  # fmt: skip
    target.ok(CHAT, {**body, "messages": [*body["messages"], *history]})
    sent = gateway.fake.requests[-1].chat.messages
    assert sent[1].tool_calls_json and sent[2].role == "tool"


class Answer(BaseModel):
    """What a client of the SDK declares."""

    city: str
    size: int


def test_sdk_parses_structured_answers(sdk: openai.OpenAI) -> None:
    parsed = sdk.chat.completions.parse(model=MODEL, messages=ASK["messages"], response_format=Answer)
    assert parsed.choices[0].message.parsed is not None and parsed.choices[0].message.parsed.size == 7


def test_tools_beside_a_schema_give_calls_or_the_answer(target: Target) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    fmt = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    choice = target.ok(CHAT, {**ASK, "response_format": fmt})["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None


@pytest.mark.parametrize("fault", ["tools", "response_format"])
def test_a_grammar_that_the_router_refuses_names_the_field(target: Target, fault: str) -> None:
    body = dict(ASK) if fault == "tools" else {key: value for key, value in ASK.items() if key != "tools"}
    if fault == "response_format":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"x-refuse": True}}}
    else:
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"x-refuse": True}}}]
    assert target.refused(CHAT, body)["param"] == fault
