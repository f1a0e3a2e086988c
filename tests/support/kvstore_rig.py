"""Store processes in the test's own loop, over real sockets, and clients for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from common.base.clock import Clock, monotonic
from common.base.config import RegistryConfig
from common.base.logging import get_logger
from common.cache.kvstore_backend import KvStoreBackend, KvStoreConfig
from common.rpc.registry import STORE, Heartbeat
from common.rpc.server import RpcServer
from services.kvstore.config import KvStoreSettings
from services.kvstore.process import StoreProcess
from services.kvstore.service import SERVICE_NAME
from tests.support.l3_contract import CAPACITY_BYTES

DRIVERS = ("shm", "tcp")
CLUSTER = "kvstore-test"


class StoreRig:
    """One store process in this loop.

    Attributes:
        process: its parts.
        address: host:port.
    """

    def __init__(self, process: StoreProcess, server: RpcServer, address: str) -> None:
        self.process = process
        self.server = server
        self.address = address

    async def client(self, **settings: Any) -> KvStoreBackend:
        """A started client of this process only."""
        return await open_client(self.address, **settings)


async def open_registered(url: str, drivers: tuple[str, ...] = DRIVERS, cluster: str = CLUSTER) -> KvStoreBackend:
    """A started client that finds the store's processes in a registry; it reads everything by the transport."""
    backend = KvStoreBackend(KvStoreConfig(registry_url=url, cluster=cluster, drivers=drivers, inline_bytes=0))
    await backend.start()
    return backend


async def open_client(
    *addresses: str,
    drivers: tuple[str, ...] = DRIVERS,
    clock: Clock = monotonic,
    inline_bytes: int = 0,
    **settings: Any,
) -> KvStoreBackend:
    """A started client of some processes; unless told otherwise it reads everything by the transport."""
    config = KvStoreConfig(addresses=addresses, drivers=drivers, inline_bytes=inline_bytes, **settings)
    backend = KvStoreBackend(config, clock=clock)
    await backend.start()
    return backend


def settings_of(drivers: tuple[str, ...] = DRIVERS, registry_url: str = "", **fields: Any) -> KvStoreSettings:
    """Settings of a small node. Sizes below the limits of the flags are allowed here."""
    settings = KvStoreSettings(registry=RegistryConfig(url=registry_url, cluster=CLUSTER))
    given = {"segment_size": CAPACITY_BYTES, "page_size": 512, "transport": ",".join(drivers), **fields}
    return settings.model_copy(update={"kvstore": settings.kvstore.model_copy(update=given)})


@asynccontextmanager
async def running_store(
    node_id: str = "store-0",
    drivers: tuple[str, ...] = DRIVERS,
    ssd: Path | None = None,
    clock: Clock = monotonic,
    **fields: Any,
) -> AsyncIterator[StoreRig]:
    """A process with the role node; stopped, flushed and checked at the end."""
    failures: list[str] = []
    heartbeat: Heartbeat | None = None
    settings = settings_of(drivers, ssd_path=ssd, **fields)
    process = StoreProcess(settings, node_id, get_logger(), lambda: failures.append("a task died"), clock)
    server = RpcServer(process.timeouts, [SERVICE_NAME])
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    try:
        await process.start(server, address)
        await server.start()
        if settings.registry.url:
            heartbeat = Heartbeat(
                settings.registry.url,
                CLUSTER,
                lambda: process.record(address, ""),
                interval_s=0.1,
                ttl_s=30.0,
                kind=STORE,
            )
            heartbeat.start()
        yield StoreRig(process, server, address)
    finally:
        if heartbeat is not None:
            await asyncio.to_thread(heartbeat.close)
        await server.stop(0.5)
        await process.flush()
        await process.close()
    assert not failures
    check_conserved(process)


def check_conserved(process: StoreProcess) -> None:
    """After the end nothing is staged, and all pages are free or those of visible objects."""
    assert process.parts is not None
    objects, arena = process.parts.holdings.objects, process.parts.holdings.arena
    assert objects.staged_bytes == 0
    process.parts.holdings.leases.expire(float("inf"))
    resident = [one for name in objects if (one := objects.get(name)) is not None and one.run is not None]
    assert all(one.pins == 0 for one in resident)
    used = sum(one.run.num_pages for one in resident if one.run is not None)
    assert used + arena.num_free_pages == arena.num_pages
