"""The bound on heads, byte by byte: what is refused, how, and what is not a head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from services.gateway.http_protocol import GatewayProtocol

MAX_HEAD_BYTES = 50_000
GET = b"GET / HTTP/1.1\r\nname: "


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Nothing reads."""

    def resume_reading(self) -> None:
        """Nothing reads."""


async def _never(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


async def connection(head_timeout_s: float = 60.0) -> tuple[GatewayProtocol, FakeTransport]:
    """A new connection to an application that never answers."""
    limits = {"max_head_bytes": MAX_HEAD_BYTES, "head_timeout_s": head_timeout_s}
    protocol, transport = GatewayProtocol(uvicorn.Config(_never), ServerState(), {}, **limits), FakeTransport()
    protocol.connection_made(transport)
    return protocol, transport


class FakeTimers:
    """Stands for the loop's clock: `fire` runs what was asked for and not cancelled."""

    def __init__(self, protocol: GatewayProtocol) -> None:
        self._handles: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()
        protocol.loop = self  # type: ignore[assignment]

    def call_later(self, delay_s: float, work: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(delay_s, work, args, self._loop)
        self._handles.append(handle)
        return handle

    def create_task(self, work: Any) -> asyncio.Task[Any]:
        return self._loop.create_task(work)

    @property
    def delays_s(self) -> list[float]:
        """Of the timers that wait."""
        return [handle.when() for handle in self._handles if not handle.cancelled()]

    def fire(self) -> None:
        """Time passes for all timers at once."""
        due, self._handles = self._handles, []
        for handle in due:
            if not handle.cancelled():
                handle._run()


async def test_a_head_of_the_limit_is_read_and_one_more_byte_refused() -> None:
    protocol, transport = await connection()
    protocol.data_received(GET)
    protocol.data_received(b"x" * MAX_HEAD_BYTES)
    assert not transport.closed
    protocol.data_received(b"x")
    assert transport.closed and transport.written.startswith(b"HTTP/1.1 431 ")


async def test_bodies_are_no_heads() -> None:
    protocol, transport = await connection()
    protocol.data_received(b"POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n")
    for _ in range(100):
        protocol.data_received(b"x" * 10_000)
    assert not transport.closed


async def test_many_requests_are_many_heads() -> None:
    protocol, transport = await connection()
    for _ in range(20):
        protocol.data_received(GET + b"x" * 10_000 + b"\r\n\r\n")
    assert not transport.closed


async def test_nothing_is_written_into_another_answer() -> None:
    protocol, transport = await connection()
    protocol.data_received(GET + b"x\r\n\r\n" + GET)
    protocol.data_received(b"x" * (MAX_HEAD_BYTES + 1))
    assert transport.closed and not transport.written


async def test_a_silent_connection_and_a_dripped_head_end_in_time() -> None:
    for opening in (b"", GET, GET + b"x\r\n"):
        protocol, transport = (
            GatewayProtocol(
                uvicorn.Config(_never), ServerState(), {}, max_head_bytes=MAX_HEAD_BYTES, head_timeout_s=5.0
            ),
            FakeTransport(),
        )
        timers = FakeTimers(protocol)
        protocol.connection_made(transport)
        for byte in opening:
            protocol.data_received(bytes([byte]))
        assert timers.delays_s == [5.0], "the first byte does not start it anew"
        timers.fire()
        assert transport.closed and transport.written.startswith(b"HTTP/1.1 408 ")


async def test_a_head_that_is_complete_has_no_timer_and_the_next_one_has() -> None:
    protocol, transport = await connection(5.0)
    timers = FakeTimers(protocol)
    protocol.data_received(GET + b"x\r\n\r\n")
    assert timers.delays_s == [] and not transport.closed
    protocol.data_received(GET)
    assert timers.delays_s == [5.0]
    timers.fire()
    assert not transport.closed and timers.delays_s == [5.0], "an answer is under way on this connection"
    protocol.connection_lost(None)
    assert timers.delays_s == []
