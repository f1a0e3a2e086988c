"""Store processes of their own, with a registry, to be killed and frozen: what chaos tests of the KV store share."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import grpc
import psutil
import redis

from common.rpc.registry import STORE, RegistryReader, WorkerRecord
from pando.cli.local_registry import registry_command
from pando.cli.ports import free_port
from pando.cli.probes import answers_ping
from pando.v1 import kvstore_pb2, kvstore_pb2_grpc
from tests.support.fake_cluster import eventually
from tests.support.kvstore_rig import CLUSTER

ROOT = Path(__file__).parents[2]
SERVICE = "services.kvstore"
SEEDED = "tests.support.seeded_store"
"""A store process that is born with many objects."""


class StoreCommand:
    """One store process that may live several times.

    Attributes:
        node_id: its name.
        popen: its present or last life.
        address: of that, once it is ready.
    """

    def __init__(self, node_id: str, registry_url: str, *flags: str, module: str = SERVICE) -> None:
        """Start it. `flags` go to the module."""
        self.node_id = node_id
        self.address = ""
        self._command = [sys.executable, "-m", module, "--node-id", node_id, "--transport", "shm,tcp"]
        self._command += ["--registry.url", registry_url, "--registry.cluster", CLUSTER, "--log.format", "json", *flags]
        self.start()

    def start(self) -> None:
        """Begin a life."""
        self.popen = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def wait_ready(self) -> None:
        """Wait until it serves; fails when it ends instead."""
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            if line.startswith("{") and (event := json.loads(line)).get("event") == "ready":
                self.address = event["address"]
                threading.Thread(target=self._drain, args=(self.popen.stderr,), daemon=True).start()
                return
        raise AssertionError(f"{self.node_id} did not start")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.popen.send_signal(number)

    def kill(self) -> None:
        """End this life at once."""
        self.popen.kill()
        self.popen.wait()

    def end(self) -> int:
        """End this life by SIGTERM; returns the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait()

    @staticmethod
    def _drain(stderr: IO[str]) -> None:
        """Read what it logs, or it would wait for a reader in the end."""
        with stderr:
            for _ in stderr:
                pass

    def rss_mb(self) -> float:
        """Its resident memory."""
        return float(psutil.Process(self.popen.pid).memory_info().rss) / 1e6


class Registry:
    """A registry of its own.

    Attributes:
        url: where it is.
    """

    def __init__(self, folder: Path) -> None:
        """Start it and wait until it answers."""
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}/0"
        self._popen = subprocess.Popen(registry_command(port, folder), stdout=subprocess.DEVNULL)
        eventually(lambda: answers_ping(f"127.0.0.1:{port}"), "a PING's answer")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def wipe(self) -> None:
        """Let it forget everything."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()
        self._popen.wait()


@contextmanager
def running_registry(folder: Path) -> Iterator[Registry]:
    """A registry that ends with the block."""
    registry = Registry(folder)
    try:
        yield registry
    finally:
        registry.kill()


@contextmanager
def all_killed(processes: list[StoreCommand]) -> Iterator[list[StoreCommand]]:
    """Waits until all serve; kills them at the end. More may be added meanwhile."""
    try:
        for process in processes:
            process.wait_ready()
        yield processes
    finally:
        for process in processes:
            process.kill()


async def registered(url: str) -> list[WorkerRecord]:
    """The store's processes as the registry lists them."""
    reader = RegistryReader(url, CLUSTER, 1.0, STORE)
    try:
        return await reader.list_workers()
    finally:
        await reader.close()


async def leader_of(url: str, but: str = "") -> str | None:
    """Node id of who says in the registry that it leads, other than `but`."""
    leaders = [record.worker_id for record in await registered(url) if "leader" in record.roles]
    return next((name for name in leaders if name != but), None)


async def stats_of(address: str, timeout_s: float = 5.0) -> kvstore_pb2.GetStoreStatsResponse | None:
    """What a process says of itself; None when it does not answer."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = kvstore_pb2_grpc.KvStoreServiceStub(channel)
        try:
            return await stub.GetStoreStats(kvstore_pb2.GetStoreStatsRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return None


async def until_complete(
    leader: StoreCommand, num_nodes: int, within_s: float = 60.0
) -> kvstore_pb2.GetStoreStatsResponse:
    """Wait until a leader knows what so many nodes hold."""
    async with asyncio.timeout(within_s):
        while True:
            stats = await stats_of(leader.address)
            if stats is not None and stats.complete and stats.directory_nodes == num_nodes:
                return stats
            await asyncio.sleep(0.05)
