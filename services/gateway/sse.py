"""Server-sent events, written straight to ASGI.

Headers go out with the first event, so that a failure before it still has a status of its own.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Send

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


class EventStream:
    """The answer of one streaming request. Not safe for concurrent writers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def write(self, events: bytes) -> None:
        """Send bytes of whole events; waits while the client does not read. Empty bytes are not sent."""
        if not events:
            return
        await self._start()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def close(self, last: bytes) -> None:
        """Send the last events and end the response."""
        await self._start()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
