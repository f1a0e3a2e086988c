"""Whatever JSON comes, no front door answers with a server error, and the gateway serves afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway.native_types import GenerateBody, NativeSampling
from services.gateway.openai_types import ChatRequest, CompletionRequest, DetokenizeBody, TokenizeBody
from services.gateway.responses_types import InputFields, ResponsesRequest
from tests.support.fake_inference import MODEL
from tests.support.gateway_thread import GatewayThread

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 5)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"])}, optional={"text": JSON})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "robot"]) | JSON},
    optional={"content": st.text(max_size=20) | st.lists(PART, max_size=2) | JSON, "tool_calls": JSON, "x": JSON},
)
SCHEMA = st.fixed_dictionaries({"type": st.sampled_from(["object", "array"]) | JSON}, optional={"properties": JSON})
FUNCTION = st.fixed_dictionaries({"name": st.just("f")}, optional={"parameters": SCHEMA | JSON})
TOOL = st.fixed_dictionaries(
    {"type": st.just("function")}, optional={"name": st.just("f") | JSON, "function": FUNCTION}
)
FORMAT = st.fixed_dictionaries(
    {"type": st.sampled_from(["json_object", "json_schema"])},
    optional={"json_schema": st.fixed_dictionaries({}, optional={"schema": SCHEMA | JSON}) | JSON},
)
PROMPT = st.text(max_size=20) | st.lists(st.integers(-1, 300), max_size=4) | st.lists(st.text(max_size=4), max_size=3)
DOORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": st.lists(MESSAGE, max_size=3) | JSON}),
    "/v1/completions": (CompletionRequest, {"prompt": PROMPT | JSON}),
    "/v1/responses": (ResponsesRequest, {"input": st.text(max_size=20) | st.lists(MESSAGE, max_size=3) | JSON}),
    "/v1/responses/input_tokens": (InputFields, {"input": st.lists(MESSAGE, max_size=3)}),
    "/generate": (GenerateBody, {"text": PROMPT | JSON}),
    "/tokenize": (TokenizeBody, {"prompt": st.text(max_size=20) | JSON}),
    "/detokenize": (DetokenizeBody, {"tokens": st.lists(st.integers(-1, 300), max_size=4) | JSON}),
}


def bodies(door: str) -> st.SearchStrategy[dict[str, Any]]:
    model, required = DOORS[door]
    names = set(model.model_fields) - set(required) - {"max_tokens", "timeout_s", "max_output_tokens"}
    optional = {name: JSON for name in names} | {"model": st.just(MODEL) | JSON, "max_tokens": st.integers(-1, 4)}
    optional |= {"tools": st.lists(TOOL, max_size=2) | JSON, "response_format": FORMAT | JSON}
    if door == "/v1/responses":
        optional["max_output_tokens"] = st.integers(-1, 4)
    if door == "/generate":
        fields = {name: JSON for name in set(NativeSampling.model_fields) - {"max_new_tokens"}}
        optional["sampling_params"] = st.fixed_dictionaries({"max_new_tokens": st.just(3)}, optional=fields)
    return st.fixed_dictionaries(required, optional=optional)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with GatewayThread() as gateway, httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client
        gateway.settle()


@pytest.mark.parametrize("door", DOORS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_body_is_a_server_error(client: httpx.Client, door: str, data: st.DataObject) -> None:
    body = data.draw(bodies(door))
    response = client.post(door, json=body)
    assert response.status_code in (200, 400, 404, 501), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "a"},
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 1}},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}
INSIDE: dict[str, str] = {
    "messages": '[{"role": "user", "content": "a", "x": %s}]',
    "input": '[{"role": "user", "content": "a"}, {"type": "reasoning", "summary": %s}]',
    "tools": '[{"type": "function", "name": "f", "x": %s}]',
    "text": '{"verbosity": %s}',
}
"""Fields of which a part is deep; of the others all is."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("depth", [126, 300])
def test_no_depth_is_a_server_error(client: httpx.Client, door: str, depth: int) -> None:
    for name in DOORS[door][0].model_fields:
        fields = {key: orjson.dumps(value).decode() for key, value in PLAIN[door].items()}
        fields[name] = INSIDE.get(name, "%s") % ("[" * depth + "]" * depth)
        response = client.post(door, content="{" + ",".join(f'"{key}":{text}' for key, text in fields.items()) + "}")
        assert response.status_code in (200, 400), f"{name}: {response.text}"
        if response.status_code != 200:
            assert response.json()["error"]["param"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=64))
def test_no_bytes_are_a_server_error(client: httpx.Client, raw: bytes) -> None:
    assert client.post("/v1/chat/completions", content=raw).status_code == 400
