"""Connections as no client library makes them: heads without end, requests sent ahead by clients that then leave."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import structlog

from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
PIECE = b"x" * 65536
MOST_PIECES = 512


@pytest.fixture
def gateway() -> Iterator[GatewayThread]:
    with GatewayThread() as running:
        yield running


def connect(gateway: GatewayThread) -> socket.socket:
    """A plain connection."""
    address = urlsplit(gateway.url)
    assert address.hostname is not None and address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=60)


def request(*, stream: bool) -> bytes:
    """One whole request."""
    body = json.dumps({"model": MODEL, "prompt": "hello", "stream": stream}).encode()
    return POST + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("closes", [socket.socket.close, lambda sock: sock.shutdown(socket.SHUT_WR)])
def test_leaving_ends_every_request_that_was_sent_ahead(gateway: GatewayThread, stream: bool, closes: object) -> None:
    assert callable(closes)
    gateway.set_knobs(Knobs(pause_at=1))
    with structlog.testing.capture_logs() as logs, connect(gateway) as sock:
        sock.sendall(request(stream=stream) * 3)
        assert gateway.fake.wait_for(lambda: gateway.fake.num_paused == 1)
        closes(sock)
        assert gateway.fake.wait_for(lambda: gateway.fake.num_cancelled == 1), "generates for nobody"
        gateway.settle()
    assert len(gateway.fake.requests) == 1
    assert not [entry for entry in logs if entry["log_level"] == "error"]


def test_answers_to_requests_sent_ahead_come_in_order(gateway: GatewayThread) -> None:
    with connect(gateway) as sock:
        get = b"GET /v1/models/%d HTTP/1.1\r\nhost: x\r\nconnection: %s\r\n\r\n"
        sock.sendall(b"".join(get % (n, b"close" if n == 3 else b"keep-alive") for n in range(4)))
        answers = b""
        while piece := sock.recv(65536):
            answers += piece
    assert answers.count(b"HTTP/1.1 404") == 4
    assert [answers.find(b"'%d'" % n) for n in range(4)] == sorted(answers.find(b"'%d'" % n) for n in range(4))


@pytest.mark.parametrize(
    "opening",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nname: ",
        POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\ntrailer: ",
    ],
)
def test_a_head_without_end_is_cut_off(gateway: GatewayThread, opening: bytes) -> None:
    with connect(gateway) as sock:
        sock.sendall(opening)
        with pytest.raises(ConnectionError):
            for _ in range(MOST_PIECES):
                sock.sendall(PIECE)


@pytest.mark.parametrize("opening", [b"", b"GET / HTTP/1.1\r\nname: "])
def test_a_head_that_does_not_come_ends_the_connection(opening: bytes) -> None:
    with GatewayThread(head_timeout_s=0.2) as gateway, connect(gateway) as sock:
        sock.sendall(opening)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_does_not_come_ends_the_request() -> None:
    with GatewayThread(body_timeout_s=0.2) as gateway, connect(gateway) as sock:
        sock.sendall(POST + b"content-length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ") and b'"code":"request_timeout"' in answer
