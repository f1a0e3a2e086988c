"""Errors, contexts, events, metrics, configuration, and what the gateway must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from common.base import errors
from common.base.config import ConfigError, load
from common.rpc.errors import _CLASSES
from services.gateway import openapi
from services.gateway.app import build
from services.gateway.client import RouterClient
from services.gateway.config import GatewayConfig, GatewaySettings
from services.gateway.context import Outcome, RequestContext, outcome_of, sane_id
from services.gateway.errors import BodyTooLarge, BodyTooSlow, error_body, error_headers, error_response, renamed
from services.gateway.metrics import GatewayMetrics, GenerationTimer
from services.gateway.sse import DONE, EventStream, event

KINDS = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "server_error"} | dict.fromkeys(
    (400, 403, 404, 408, 413, 499, 501), "invalid_request_error"
)


@pytest.mark.parametrize("cls", [*_CLASSES, BodyTooLarge, BodyTooSlow])
def test_every_error_has_a_body_and_advice(cls: type[errors.PandoError]) -> None:
    error = cls("words", param="p")
    assert error_body(error) == {
        "error": {"message": "words", "type": KINDS[cls.http_status], "param": "p", "code": cls.default_reason}
    }
    response = error_response(error)
    assert response.status_code == cls.http_status
    assert response.headers["x-should-retry"] == ("true" if cls.http_status in (429, 503) else "false")
    assert ("retry-after" in response.headers) == (cls.http_status in (429, 503))


def test_retry_after_is_whole_seconds_rounded_up() -> None:
    assert error_headers(429, 1.01)["retry-after"] == "2" and error_headers(503)["retry-after"] == "1"


def test_empty_param_is_null_and_names_are_translated() -> None:
    assert error_body(errors.Internal("x"))["error"]["param"] is None
    assert renamed(errors.InvalidRequest("x", param="a"), {"a": "b"}).param == "b"
    assert renamed(errors.InvalidRequest("x", param="c"), {"a": "b"}).param == "c"


def test_outcomes() -> None:
    assert [outcome_of(status).value for status in (200, 404, 429, 499, 500, 501, 503, 0)] == [
        "ok", "client_error", "client_error", "disconnect", "server_error", "client_error", "server_error",
        "server_error",
    ]  # fmt: skip
    context = RequestContext("r", "h", 0.0, status=200)
    assert context.final_outcome() is Outcome.OK
    context.outcome = Outcome.SERVER_ERROR
    assert context.final_outcome() is Outcome.SERVER_ERROR


@pytest.mark.parametrize(
    ("header", "kept"), [("a-1.b:C", True), ("", False), ("a b", False), ("a" * 129, False), ("é", False)]
)
def test_only_sane_ids_are_sent_back(header: str, kept: bool) -> None:
    assert sane_id(header) == (header if kept else "")
    assert sane_id(None) == ""


async def test_event_stream_starts_with_its_first_bytes() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    stream = EventStream(send)
    await stream.write(b"")
    assert sent == [] and not stream.started
    await stream.write(event({"a": "é\n"}))
    await stream.close(DONE)
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 2
    assert sent[1]["body"] == 'data: {"a":"é\\n"}\n\n'.encode()
    assert sent[2] == {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}


def test_timer_tells_first_token_gap_and_end() -> None:
    registry = CollectorRegistry()
    now = [10.0]
    timer = GenerationTimer(GatewayMetrics(registry), lambda: now[0], started_s=9.5)
    for at, choice, count in ((10.0, 0, 1), (10.5, 1, 1), (11.0, 0, 2), (12.0, 0, 0)):
        now[0] = at
        timer.on_tokens(choice, count)
    timer.on_end()

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"pando_gateway_{name}")

    assert (value("ttft_seconds_count"), value("ttft_seconds_sum")) == (1, 0.5)
    assert (value("itl_seconds_count"), value("itl_seconds_sum")) == (2, 1.0)
    assert (value("tpot_seconds_count"), value("tpot_seconds_sum")) == (1, 0.5), "3 tokens of choice 0 in 1 s"
    assert value("e2e_seconds_sum") == 2.5


def test_flags_of_its_own_section_need_no_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANDO_GATEWAY__KEEP_ALIVE_S", "9")
    settings = load(GatewaySettings, ["--port", "1234", "--router-address=h:1"], "gateway")
    assert (settings.gateway.port, settings.gateway.router_address, settings.gateway.keep_alive_s) == (1234, "h:1", 9)
    with pytest.raises(ConfigError, match="port"):
        load(GatewaySettings, ["--port", "99999"], "gateway")


async def test_openapi_describes_every_body() -> None:
    gateway_timeouts = GatewaySettings().timeouts
    client = RouterClient("127.0.0.1:1", gateway_timeouts, 1.0)
    document = openapi.document(build(GatewayConfig(), client, CollectorRegistry()).doors)
    for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/detokenize"):
        post = document["paths"][path]["post"]
        reference = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
        assert {"400", "404", "413", "429", "503"} <= set(post["responses"])
    assert "#/$defs/" not in str(document)
    await client.close()


def test_no_model_library_is_imported() -> None:
    probe = "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    code = f"import sys, services.gateway.__main__; {probe}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
