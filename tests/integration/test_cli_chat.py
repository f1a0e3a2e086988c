"""`pando chat` and `pando generate` against a gateway that plays back events and remembers what it was asked."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pando.cli.chat import ChatOptions, chat, generate
from pando.cli.errors import CliError
from pando.cli.gateway_client import DEFAULT_URL, find_url
from pando.cli.ports import free_port


class FakeGateway(http.server.ThreadingHTTPServer):
    """Answers every POST with `status` and `events`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.events: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def say(self, *pieces: str) -> None:
        """Answer with chat pieces."""
        self.events = [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in pieces] + ["[DONE]"]


class Handler(http.server.BaseHTTPRequestHandler):
    """One request of a `FakeGateway`."""

    server: FakeGateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body)))
        self.send_response(self.server.status)
        self.end_headers()
        if self.server.status == 200:
            self.wfile.write(
                b"".join(b": comment\n\ndata: " + event.encode() + b"\n\n" for event in self.server.events)
            )
        else:
            self.wfile.write(self.server.events[0].encode())

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def options(gateway: FakeGateway) -> ChatOptions:
    return ChatOptions(gateway.url, Path("nowhere"), max_tokens=7, temperature=0.5)


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))


def test_generate_prints_the_pieces(gateway: FakeGateway, capsys: pytest.CaptureFixture[str]):
    gateway.say("Par", "is")
    assert generate(options(gateway), "Where?", raw=False) == 0
    assert capsys.readouterr().out == "Paris\n"
    path, body = gateway.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {
        "messages": [{"role": "user", "content": "Where?"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "stream": True,
    }


def test_generate_raw_uses_completions(gateway: FakeGateway, capsys: pytest.CaptureFixture[str]):
    gateway.events = [json.dumps({"choices": [{"text": " 5"}]}), json.dumps({"choices": []}), "[DONE]"]
    assert generate(options(gateway), "1 2 3 4", raw=True) == 0
    assert capsys.readouterr().out == " 5\n"
    assert gateway.asked[0][0] == "/v1/completions"
    assert gateway.asked[0][1]["prompt"] == "1 2 3 4"


def test_chat_sends_the_whole_conversation_and_new_forgets_it(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch):
    gateway.say("Hello ", "Ada")
    type_lines(monkeypatch, "I am Ada", "", "Who am I?", "/new", "Who?")
    assert chat(options(gateway), system="Be brief.") == 0
    system = {"role": "system", "content": "Be brief."}
    first = {"role": "user", "content": "I am Ada"}
    answer = {"role": "assistant", "content": "Hello Ada"}
    assert [body["messages"] for _, body in gateway.asked] == [
        [system, first],
        [system, first, answer, {"role": "user", "content": "Who am I?"}],
        [system, {"role": "user", "content": "Who?"}],
    ]


def test_a_refusal_shows_the_gateways_message(gateway: FakeGateway):
    gateway.status, gateway.events = 400, [json.dumps({"error": {"message": "max_tokens must be positive"}})]
    with pytest.raises(CliError, match=r"refused the request \(400\): max_tokens must be positive"):
        generate(options(gateway), "x", raw=False)


def test_a_refusal_that_is_no_json(gateway: FakeGateway):
    gateway.status, gateway.events = 502, ["bad gateway"]
    with pytest.raises(CliError, match=r"\(502\): bad gateway"):
        generate(options(gateway), "x", raw=False)


def test_an_error_in_the_stream_ends_the_command(gateway: FakeGateway):
    gateway.events = [json.dumps({"error": {"message": "the worker was lost"}})]
    with pytest.raises(CliError, match="the request failed: the worker was lost"):
        generate(options(gateway), "x", raw=False)


def test_nobody_there_says_what_to_do(tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(CliError, match=f"no gateway at {url}: start one with pando up"):
        generate(ChatOptions(url, tmp_path, 1, 0.0), "x", raw=False)


def test_without_url_or_cluster_the_default_address_is_asked(tmp_path: Path):
    assert find_url("", tmp_path) == DEFAULT_URL
    assert find_url("http://h:1/", tmp_path) == "http://h:1"
