"""A worker process from its settings to its end: what both role services start.

Order up: model -> pool -> transports -> RPC server -> registration. Order down: registration -> drain -> the reverse.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from common.base.comma_list import split_list
from common.base.config import load_or_exit
from common.base.errors import Draining, PandoError
from common.base.ids import new_worker_id
from common.base.logging import Logger, configure_logging, log_ready
from common.base.metrics import MetricsServer
from common.rpc.registry import Heartbeat, WorkerRecord
from common.rpc.server import RpcServer
from common.worker.config import WorkerSettings
from common.worker.report import report_forever
from common.worker.state import WorkerState
from common.worker.worker import Engine, Worker, load_engine

STOP_GRACE_S = 1.0
SERVICES = {
    "worker": "pando.v1.WorkerService",
    "admin": "pando.v1.AdminService",
    "prefill": "pando.v1.PrefillService",
    "decode": "pando.v1.DecodeService",
}


async def serve(settings: WorkerSettings, roles: Sequence[str], engine: Engine, log: Logger) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain it. However it ends, all threads and sockets end with it.

    Raises:
        PandoError, OSError: it cannot start.
        RuntimeError: its engine loop died; the process must not go on.
    """
    async with AsyncExitStack() as closing:
        stopping = _stop_event()
        worker = Worker(settings, roles, engine)
        closing.push_async_callback(worker.close)
        server = RpcServer(worker.timeouts, list(SERVICES.values()), worker.failpoints)
        closing.push_async_callback(server.stop, STOP_GRACE_S)
        address = f"{worker.config.host}:{server.bind(worker.config.host, worker.config.port)}"
        metrics_server = MetricsServer(worker.registry, worker.config.host, worker.config.metrics_port)
        closing.callback(metrics_server.close)
        state = await worker.add_services(server, address, log)
        await worker.attach_storage()
        stepping = asyncio.create_task(worker.core.run())
        stepping.add_done_callback(lambda _: stopping.set())
        closing.push_async_callback(_end, stepping)
        await server.start()
        await server.set_serving(True)
        heartbeat = Heartbeat(
            settings.registry.url,
            settings.registry.cluster,
            lambda: _record(worker, state, address, metrics_server.address),
            interval_s=worker.timeouts.heartbeat_s,
            ttl_s=worker.timeouts.registration_ttl_s,
        )
        heartbeat.start()
        closing.push_async_callback(asyncio.to_thread, heartbeat.close)
        log_ready(address=address, metrics=metrics_server.address, **_facts(worker))
        await _until(stopping, worker, log)
        state.draining = True
        await _drain(worker, server, stepping, log)
        if stepping.done():
            raise RuntimeError("the engine loop died") from stepping.exception()
    log.info("stopped")


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _until(stopping: asyncio.Event, worker: Worker, log: Logger) -> None:
    """Wait for the signal, reporting memory meanwhile if that is wanted."""
    reporting = asyncio.create_task(report_forever(worker.core, log)) if worker.config.report_memory_info else None
    await stopping.wait()
    if reporting is not None:
        await _end(reporting)


async def _drain(worker: Worker, server: RpcServer, stepping: asyncio.Task[None], log: Logger) -> None:
    """Let running requests end within the time; those that do not go elsewhere: their callers get Draining."""
    await server.set_serving(False)
    core = worker.core
    if not stepping.done():
        log.info("draining", requests=core.num_requests)
        with suppress(TimeoutError):
            await asyncio.wait_for(core.drained(), worker.timeouts.drain_s)
    core.fail_all(lambda: Draining(f"worker {worker.worker_id} is going down"))
    core.feed.close()


def main(program: str, default_roles: str) -> None:
    """Entry point of a worker service; exits 2 with one line when it cannot start."""
    settings = load_or_exit(WorkerSettings, sys.argv[1:], program)
    roles = split_list(settings.worker.roles or default_roles)
    worker_id = settings.worker.worker_id or new_worker_id(roles[0])
    settings = settings.model_copy(update={"worker": settings.worker.model_copy(update={"worker_id": worker_id})})
    log = configure_logging(settings.log, service=program, worker=worker_id)
    try:
        engine = load_engine(settings.worker)
        for note in engine.runner.notes:
            log.warning(note)
        engine.runner.warm_up()
        gc.collect()
        gc.freeze()  # torch's million objects stay: collecting them again would pause steps, and exit by seconds
        asyncio.run(serve(settings, roles, engine, log))
    except PandoError as error:
        print(f"{program}: {error.message}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def _record(worker: Worker, state: WorkerState, address: str, metrics_address: str) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker.worker_id,
        incarnation=worker.incarnation,
        address=address,
        roles=list(worker.roles.names),
        pid=state.pid,
        metrics_address=metrics_address,
        engine_step_age_s=worker.core.engine.step_age_s(),
        draining=state.draining,
    )


def _facts(worker: Worker) -> dict[str, object]:
    return {
        "roles": worker.roles.names,
        "incarnation": worker.incarnation,
        "numerics": worker.engine.identity.numerics_id,
        "blocks": worker.core.cache.num_blocks,
        "block_bytes": worker.engine.identity.block_bytes,
        "transports": worker.transports.names,
    }


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
