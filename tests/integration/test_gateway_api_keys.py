"""Tenants over HTTP: who is let in, what the router hears, and that a client's time runs from its request on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from services.gateway.tenants import Tenants
from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread

KEY = "sk-0123456789"
HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"acme {KEY} 3\nlab sk-of-the-laboratory\n")
    with GatewayThread(api_keys_file=path) as gateway:
        yield gateway


def test_the_router_hears_whose_request_it_is(keyed: GatewayThread) -> None:
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=KEY, max_retries=0)
    client.chat.completions.create(**HELLO)  # type: ignore[call-overload]
    last = keyed.fake.requests[-1]
    assert (last.tenant, last.tenant_weight) == ("acme", 3)
    httpx.post(f"{keyed.url}/generate", json={"text": "x"}, headers={"Authorization": "Bearer sk-of-the-laboratory"})
    assert keyed.fake.requests[-1].tenant == "lab"


def test_without_a_key_every_route_but_the_probes_is_closed(keyed: GatewayThread) -> None:
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-somebody-else", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(**HELLO)  # type: ignore[call-overload]
    assert (caught.value.code, caught.value.type) == ("invalid_api_key", "invalid_request_error")
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    assert caught.value.response.headers["x-should-retry"] == "false"
    before = len(keyed.fake.requests)
    with httpx.Client(base_url=keyed.url) as http:
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/responses"),
            ("GET", "/v1/responses/resp_1"),
            ("POST", "/generate"),
            ("POST", "/tokenize"),
        ):
            assert http.request(method, path).status_code == 401, path
        for path in ("/", "/health", "/ready", "/metrics", "/openapi.json"):
            assert http.get(path).status_code == 200, path
    assert len(keyed.fake.requests) == before


def test_without_a_file_nobody_needs_a_key() -> None:
    with GatewayThread() as gateway:
        httpx.post(f"{gateway.url}/v1/chat/completions", json=HELLO)
        assert (gateway.fake.requests[-1].tenant, gateway.fake.requests[-1].tenant_weight) == ("", 0)
        header = "Bearer sk-anything"
        httpx.post(f"{gateway.url}/v1/chat/completions", json=HELLO, headers={"Authorization": header})
        assert gateway.fake.requests[-1].tenant == Tenants().identify(header).name != ""


def test_prompts_that_wait_for_their_turn_have_what_is_left_of_the_clients_time() -> None:
    with GatewayThread(max_parallel_prompts=1) as gateway:
        gateway.set_knobs(Knobs(pause_at=0))
        body = {"model": MODEL, "prompt": ["one", "two", "three"], "max_tokens": 2, "timeout_s": 1.0}
        answer = httpx.post(f"{gateway.url}/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert len(gateway.fake.requests) == 1
        gateway.settle()


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("acme short\n")
    command = [sys.executable, "-m", "services.gateway", "--port", "0", "--api-keys-file", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2 and "line 1" in ended.stderr and ended.stderr.count("\n") == 1
