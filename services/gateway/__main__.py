"""Entry point of the gateway: the only place that constructs. SIGTERM and SIGINT drain, a second one ends at once."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Sequence

import uvloop

from common.base.config import load_or_exit
from common.base.errors import InvalidRequest
from common.base.logging import configure_logging
from common.base.metrics import new_registry
from services.gateway.app import build
from services.gateway.client import RouterClient
from services.gateway.config import GatewayConfig, GatewaySettings
from services.gateway.server import HttpServer, listen


async def run(settings: GatewaySettings, sock: socket.socket) -> None:
    """Serve until a signal's drain has ended."""
    log = configure_logging(settings.log, service="gateway")
    timeouts = settings.timeouts.scaled()
    config = settings.gateway
    client = RouterClient(config.router_address, timeouts, config.probe_s, config.router_wait_s)
    gateway = build(settings.gateway, client, new_registry(), settings.limits)
    server = HttpServer(gateway, settings.gateway, settings.limits, timeouts.drain_s)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.drain)
    host, port = sock.getsockname()[:2]
    settle_memory()
    log.info("listening", url=f"http://{host}:{port}", router=client.address)
    try:
        await server.serve(sock)
    finally:
        await client.close()
    log.info("drained")


def settle_memory() -> None:
    """Keep the garbage collector off what lives as long as the process: a full pass over it would stop all streams."""
    gc.collect()
    gc.freeze()


def bind(config: GatewayConfig) -> socket.socket:
    """The listening socket; an address that cannot be had is one line on stderr and exit status 2."""
    try:
        return listen(config.host, config.port)
    except OSError as error:
        reason = error.strerror or str(error)
        print(f"gateway: {config.host}:{config.port}: {reason}; stop what holds it or choose --port", file=sys.stderr)
        raise SystemExit(2) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway; returns the exit status."""
    settings = load_or_exit(GatewaySettings, sys.argv[1:] if argv is None else argv, "gateway")
    sock = bind(settings.gateway)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings, sock))
    except InvalidRequest as error:
        print(f"gateway: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
