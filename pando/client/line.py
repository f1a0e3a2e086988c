"""The socket under one HTTP call, so that the call can be ended while somebody waits on it.

httpx has no such thing: closing a response does not wake the thread that reads it, and before the headers there is no
response. A stream therefore gets a connection of its own, which its trace hook shows when it is opened.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from common.base.errors import Cancelled

_OPENED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


class Line:
    """One connection. `cut` may be called from any thread, at any time, more than once."""

    def __init__(self) -> None:
        self._is_cut = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpx's trace hook."""
        if event not in _OPENED:
            return
        with self._lock:
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_cut:
                self._shut()

    async def trace_async(self, event: str, info: Mapping[str, Any]) -> None:
        """httpx's trace hook on an event loop."""
        self.trace(event, info)

    def cut(self) -> None:
        """End the connection; whoever reads from it sees that it ended."""
        with self._lock:
            self._is_cut = True
            self._shut()

    def error(self) -> Cancelled | None:
        """What every failure means once it was cut; None before."""
        return Cancelled("the stream was closed") if self._is_cut else None

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_RDWR)
