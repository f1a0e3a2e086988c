"""The bound on heads, byte by byte: what is refused, how, and what is not a head."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from services.gateway.http_protocol import MAX_HEAD_BYTES, GatewayProtocol

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


async def connection() -> tuple[GatewayProtocol, FakeTransport]:
    """A new connection to an application that never answers."""
    protocol, transport = GatewayProtocol(uvicorn.Config(_never), ServerState(), {}), FakeTransport()
    protocol.connection_made(transport)
    return protocol, transport


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
