"""uvicorn as the gateway runs it: its own socket, no signal handlers or logs of its own, a drain with a limit."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn

from common.base.errors import Draining, Leg
from common.base.limits import LimitsConfig
from services.gateway.app import Gateway
from services.gateway.config import GatewayConfig
from services.gateway.http_protocol import protocol_factory

_LAST_BYTES_S = 2
"""Seconds for the error events of a drain to leave; then connections are cut."""

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections send small writes at once (TCP_NODELAY is inherited).

    Connections that come before `HttpServer.serve` wait for it.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class HttpServer:
    """Serves one gateway on one socket until told to drain.

    Args:
        gateway: what to serve.
        config: of the gateway.
        limits: on requests; the one on heads is enforced here.
        drain_s: seconds that running requests get after `drain`; then they end with an error.
    """

    def __init__(self, gateway: Gateway, config: GatewayConfig, limits: LimitsConfig, drain_s: float) -> None:
        self._gateway = gateway
        self._drain_s = drain_s
        self._server = _Server(
            uvicorn.Config(
                gateway.app,
                http=cast(Any, protocol_factory(limits.max_header_bytes, config.head_timeout_s)),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=config.keep_alive_s,
                timeout_graceful_shutdown=math.ceil(drain_s) + _LAST_BYTES_S,
            )
        )

    async def serve(self, sock: socket.socket) -> None:
        """Run until a drain has ended."""
        await self._server.serve(sockets=[sock])

    def drain(self) -> None:
        """Accept nothing new, let what runs finish; a second call does not wait for it."""
        if self._server.should_exit:
            self._server.force_exit = True
            self._abort()
            return
        self._gateway.health.draining = True
        self._server.should_exit = True
        asyncio.get_running_loop().call_later(self._drain_s, self._abort)

    def _abort(self) -> None:
        self._gateway.running.abort_all(Draining("the gateway is going down", leg=Leg.GATEWAY))


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
