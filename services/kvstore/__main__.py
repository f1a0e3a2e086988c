"""Starts a store process: the only place that constructs its parts. SIGTERM or Ctrl-C flushes and ends it."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import uvloop

from common.base.config import load_or_exit
from common.base.errors import PandoError
from common.base.failpoints import make_failpoints
from common.base.ids import new_worker_id
from common.base.logging import Logger, configure_logging, log_ready
from common.base.metrics import MetricsServer
from common.rpc.registry import STORE, Heartbeat
from common.rpc.server import RpcServer
from services.kvstore.config import KvStoreSettings
from services.kvstore.process import StoreProcess
from services.kvstore.service import SERVICE_NAME

STOP_GRACE_S = 1.0


async def serve(settings: KvStoreSettings, node_id: str, log: Logger) -> None:
    """Run a store process until SIGTERM or SIGINT.

    Raises:
        PandoError, OSError: it cannot start.
        RuntimeError: a part of it died; the process must not go on.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    config = settings.kvstore
    async with AsyncExitStack() as closing:
        process = StoreProcess(settings, node_id, log, stopping.set)
        closing.push_async_callback(process.close)
        failpoints = make_failpoints(enabled=False, folder=config.failpoints_dir)
        server = RpcServer(process.timeouts, [SERVICE_NAME], failpoints)
        address = f"{config.host}:{server.bind(config.host, config.port)}"
        exporter = MetricsServer(process.registry, config.host, config.metrics_port)
        closing.callback(exporter.close)
        await process.start(server, address)
        closing.push_async_callback(process.flush)
        closing.push_async_callback(server.stop, STOP_GRACE_S)
        await server.start()
        await server.set_serving(True)
        heartbeat = Heartbeat(
            settings.registry.url,
            settings.registry.cluster,
            lambda: process.record(address, exporter.address),
            interval_s=process.timeouts.heartbeat_s,
            ttl_s=process.timeouts.registration_ttl_s,
            kind=STORE,
        )
        heartbeat.start()
        closing.push_async_callback(asyncio.to_thread, heartbeat.close)
        gc.collect()
        gc.freeze()
        log_ready(address=address, metrics=exporter.address, **process.facts())
        await stopping.wait()
        log.info("draining")
    if process.failed:
        raise RuntimeError("a background task died")
    log.info("stopped")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    settings = load_or_exit(KvStoreSettings, argv, "services.kvstore")
    node_id = settings.kvstore.node_id or new_worker_id("kvstore")
    log = configure_logging(settings.log, service="kvstore", worker=node_id)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, node_id, log))
    except PandoError as error:
        print(f"services.kvstore: {error.message}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"services.kvstore: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
