"""The gateway as a process: start, port taken, bad flags, drain by signal, connections without delay."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from common.base.config import TimeoutsConfig
from services.gateway.server import listen
from tests.support.api_cases import Target, check_broken_stream, events_of
from tests.support.fake_inference import MODEL, Knobs
from tests.support.gateway_thread import GatewayThread

BODY = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "stream": True}


@contextmanager
def process(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway process and its URL."""
    argv = [sys.executable, "-m", "services.gateway", "--port", "0", "--log.format", "json", *flags]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env={**os.environ}) as gateway:
        try:
            assert gateway.stderr is not None
            found = None
            while found is None:
                line = gateway.stderr.readline()
                assert line, "it ended before it said where it listens"
                found = re.search(r'"url":\s*"(http://[0-9.:]+)"', line)
            yield gateway, found[1]
        finally:
            gateway.kill()


def test_sigterm_lets_a_stream_finish_and_exits_clean() -> None:
    with GatewayThread() as backend:
        backend.set_knobs(Knobs(pause_at=3))
        with process("--router-address", backend.router_address) as (gateway, url):
            target = Target(url, MODEL)
            assert target.get("/ready").status_code == 200
            with target.client() as client, client.stream("POST", "/v1/chat/completions", json=BODY) as response:
                lines = response.iter_lines()
                next(lines)
                gateway.send_signal(signal.SIGTERM)
                backend.resume()
                assert "data: [DONE]" in list(lines)
            assert gateway.wait(timeout=60) == 0


def test_drain_that_takes_too_long_ends_with_an_error_the_client_sees() -> None:
    with GatewayThread(TimeoutsConfig(drain_s=0.2)) as backend:
        backend.set_knobs(Knobs(pause_at=3))
        bodies: list[bytes] = []
        target = Target(backend.url, MODEL)

        def read() -> None:
            with target.client() as client:
                bodies.append(client.post("/v1/chat/completions", json=BODY).content)
                bodies.append(b"")

        reader = threading.Thread(target=read)
        reader.start()
        assert backend.fake.wait_for(lambda: backend.fake.num_paused == 1)
        backend.drain()
        reader.join(timeout=60)
        events = events_of(bodies[0])
        check_broken_stream(events)
        assert events[-1]["error"]["code"] == "draining"


def test_port_taken_is_one_line_and_status_2() -> None:
    with listen("127.0.0.1", 0) as holder:
        port = str(holder.getsockname()[1])
        argv = [sys.executable, "-m", "services.gateway", "--port", port]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and port in ended.stderr and "--port" in ended.stderr


@pytest.mark.parametrize("flags", [["--port", "none"], ["--no-such-flag", "1"]])
def test_bad_flags_are_one_line_and_status_2(flags: list[str]) -> None:
    argv = [sys.executable, "-m", "services.gateway", *flags]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert flags[0].strip("-") in ended.stderr


def test_no_router_is_503_at_once() -> None:
    with process("--router-address", "127.0.0.1:1") as (_, url):
        target = Target(url, MODEL)
        assert target.get("/health").status_code == 200
        ready = target.get("/ready")
        assert ready.status_code == 503 and "127.0.0.1:1" in ready.json()["reason"]
        assert target.refused("/v1/chat/completions", BODY, status=503)["type"] == "server_error"
        assert httpx.get(f"{url}/metrics", verify=False).status_code == 200


def test_connections_send_small_writes_at_once() -> None:
    with listen("127.0.0.1", 0) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
