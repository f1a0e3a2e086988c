"""The responses API through the official SDK, over a fake router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from common.base.errors import Leg, Overloaded, PeerLost
from tests.support.api_cases import Target
from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread

RESPONSES = "/v1/responses"
ADD: Any = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": True,
}
ASK: dict[str, Any] = {"model": MODEL, "input": "Repeat exactly: alpha beta"}


@pytest.fixture(scope="module")
def shared() -> Iterator[GatewayThread]:
    with GatewayThread(max_stored_responses=8) as running:
        yield running


@pytest.fixture
def gateway(shared: GatewayThread) -> Iterator[GatewayThread]:
    shared.set_knobs(Knobs())
    shared.fake.requests.clear()
    yield shared
    shared.settle()


@pytest.fixture
def sdk(gateway: GatewayThread) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def target(gateway: GatewayThread) -> Target:
    return Target(gateway.url, MODEL)


def conversation(gateway: GatewayThread) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in gateway.fake.requests[-1].chat.messages]


def test_a_response_is_what_the_sdk_reads(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(**ASK, instructions="Be brief.", metadata={"k": "v"})
    assert answer.output_text == "alpha beta" and answer.status == "completed" and answer.error is None
    assert answer.instructions == "Be brief." and answer.metadata == {"k": "v"}
    assert answer.usage is not None and answer.usage.total_tokens == answer.usage.input_tokens + 11
    assert answer.usage.input_tokens_details.cached_tokens == 0
    assert answer.usage.input_tokens_details.cache_write_tokens == answer.usage.input_tokens
    assert sdk.responses.retrieve(answer.id) == answer


def test_the_event_set_is_complete_and_numbered(sdk: openai.OpenAI, target: Target) -> None:
    events = list(sdk.responses.create(**ASK, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert events[0].response.status == "in_progress" and events[0].response.output == []  # type: ignore[union-attr]
    assert events[2].item.content == []  # type: ignore[union-attr]
    raw = target.post(RESPONSES, {**ASK, "stream": True}).text
    assert "[DONE]" not in raw and raw.startswith("event: response.created\ndata: ")


def test_the_sdk_adds_the_stream_up_to_the_whole(sdk: openai.OpenAI) -> None:
    whole = sdk.responses.create(**ASK, top_logprobs=2)
    with sdk.responses.stream(**ASK, top_logprobs=2) as stream:
        final = stream.get_final_response()
    part, streamed = whole.output[0].content[0], final.output[0].content[0]  # type: ignore[union-attr]
    assert part.text == streamed.text == "alpha beta"  # type: ignore[union-attr]
    assert len(part.logprobs) == len(streamed.logprobs) > 5  # type: ignore[union-attr,arg-type]
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2] * len(part.logprobs)  # type: ignore[union-attr]
    assert sdk.responses.retrieve(final.id).output_text == "alpha beta"


def test_the_length_makes_a_response_incomplete(sdk: openai.OpenAI) -> None:
    cut = sdk.responses.create(**ASK, max_output_tokens=5)
    assert cut.status == "incomplete" and cut.output_text == "alpha"
    assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"
    assert list(sdk.responses.create(**ASK, max_output_tokens=5, stream=True))[-1].type == "response.incomplete"


def test_a_conversation_goes_on_from_any_response(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model=MODEL, input="Repeat exactly: one", instructions="System.")
    second = sdk.responses.create(model=MODEL, input="two", previous_response_id=first.id, max_output_tokens=3)
    assert conversation(gateway) == [("user", "Repeat exactly: one"), ("assistant", "one"), ("user", "two")]
    sdk.responses.delete(first.id)
    sdk.responses.create(model=MODEL, input="three", previous_response_id=second.id, instructions="Other.")
    assert [role for role, _ in conversation(gateway)] == ["system", "user", "assistant", "user", "assistant", "user"]
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"


def test_store_false_is_not_stored_and_the_store_is_bounded(sdk: openai.OpenAI) -> None:
    unseen = sdk.responses.create(**ASK, store=False)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(unseen.id)
    ids = [sdk.responses.create(**ASK).id for _ in range(9)]
    assert sdk.responses.retrieve(ids[-1]).id == ids[-1]
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.retrieve(ids[0])
    assert caught.value.code == "response_not_found"


def test_items_of_all_kinds_become_messages(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    items: Any = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "9"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "10"}]},
    ]
    answer = sdk.responses.create(model=MODEL, input=items, max_output_tokens=3)
    sent = gateway.fake.requests[-1].chat.messages
    assert [(message.role, message.content) for message in sent] == [
        ("developer", "d"), ("user", "u"), ("assistant", "a"), ("tool", "9"), ("tool", "10"),
    ]  # fmt: skip
    assert [call["id"] for call in json.loads(sent[2].tool_calls_json)] == ["c1", "c2"]
    listed = sdk.responses.input_items.list(answer.id, limit=3)
    assert [item.type for item in listed] == [item.get("type", "message") for item in reversed(items)], (
        "paged by the SDK"
    )
    assert len(listed.data) == 3 and listed.has_more
    oldest = sdk.responses.input_items.list(answer.id, order="asc").data
    assert oldest[0].type == "message" and len(oldest) == 8
    again: Any = [{"type": "item_reference", "id": oldest[0].id}, {"role": "user", "content": "x"}]
    sdk.responses.create(model=MODEL, input=again, max_output_tokens=1)
    assert conversation(gateway)[0] == ("developer", "d")


def test_calls_stream_and_their_outputs_go_back(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "input": "go", "tools": [ADD]}
    whole = sdk.responses.create(**ask, tool_choice={"type": "function", "name": "add"})
    (call,) = whole.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": 7} and call.status == "completed"
    with sdk.responses.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert kinds >= {"response.function_call_arguments.delta", "response.function_call_arguments.done"}
    assert [item.type for item in final.output] == ["message", "function_call"] and final.output_text == "Well."
    call = final.output[1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": 7}
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "49"}]
    sdk.responses.create(model=MODEL, input=output, previous_response_id=final.id, max_output_tokens=1)
    sent = gateway.fake.requests[-1].chat.messages
    assert [message.role for message in sent] == ["user", "assistant", "tool"] and sent[1].content == "Well."
    assert json.loads(sent[1].tool_calls_json)[0]["id"] == sent[2].tool_call_id == call.call_id


class Answer(BaseModel):
    """What a client of the SDK declares."""

    city: str
    size: int


def test_structured_answers_are_parsed(sdk: openai.OpenAI) -> None:
    parsed = sdk.responses.parse(model=MODEL, input="go", text_format=Answer).output_parsed
    assert parsed is not None and parsed.size == 7


def test_tokens_are_counted_without_running(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(**ASK)
    assert answer.usage is not None
    counted = sdk.responses.input_tokens.count(model=MODEL, input=ASK["input"])
    assert counted.input_tokens == answer.usage.input_tokens and len(gateway.fake.requests) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "messages"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
        ({"input": [{"id": "msg_1"}]}, "input[0].id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "middle"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{**ADD, "name": ""}]}, "tools[0].name"),
        ({"tools": [{**ADD, "parameters": {"x-refuse": 1}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"x-refuse": 1}}}}, "text.format"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_refusals_name_the_field(target: Target, fields: dict[str, Any], param: str) -> None:
    expected = "input" if param == "messages" else param
    assert target.refused(RESPONSES, {**ASK, **fields})["param"] == expected


def test_what_is_not_there_cannot_be_listed_cancelled_or_paged(sdk: openai.OpenAI, target: Target) -> None:
    answer = sdk.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="background"):
        sdk.responses.cancel(answer.id)
    for act in (sdk.responses.cancel, sdk.responses.delete, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            act("resp_none")
    for query in ("limit=0", "limit=101", "limit=x", "after=no", "order=up", "order="):
        response = target.get(f"{RESPONSES}/{answer.id}/input_items?{query}")
        assert response.status_code == 400 and response.json()["error"]["param"] == query.split("=")[0]
    for query in ("stream=true", "stream=1", "stream="):
        assert target.get(f"{RESPONSES}/{answer.id}?{query}").json()["error"]["param"] == "stream"
    assert target.get(f"{RESPONSES}/{answer.id}?stream=false").json()["id"] == answer.id


def test_failures_before_and_in_midstream(gateway: GatewayThread, sdk: openai.OpenAI) -> None:
    gateway.set_knobs(Knobs(fail_at=0, error=Overloaded("full")))
    with pytest.raises(openai.RateLimitError):
        sdk.responses.create(**ASK, stream=True)
    gateway.set_knobs(Knobs(fail_at=5, error=PeerLost("decode worker gone", leg=Leg.DECODE)))
    last = list(sdk.responses.create(**ASK, stream=True))[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error is not None and last.response.error.message == "decode worker gone"
