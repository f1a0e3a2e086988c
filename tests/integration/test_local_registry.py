"""The embedded registry: a real server on loopback that keeps nothing and speaks what the registry client needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from common.rpc.registry import Heartbeat, RegistryReader, WorkerRecord
from pando.cli.local_registry import registry_command
from pando.cli.ports import free_port
from pando.cli.probes import answers_ping
from pando.cli.processes import spawn
from tests.support.fake_cluster import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Port and pid."""
    port = free_port()
    process = spawn(registry_command(port, tmp_path), os.environ, tmp_path / "log")
    eventually(lambda: answers_ping(f"127.0.0.1:{port}"), "a PING's answer")
    yield port, process.pid
    process.terminate()
    assert process.wait(60) == 0


def test_it_listens_on_loopback_only(server: tuple[int, int]):
    _, pid = server
    listening = [one.laddr.ip for one in psutil.Process(pid).net_connections() if one.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_a_worker_registers_and_is_found(server: tuple[int, int]):
    url = f"redis://127.0.0.1:{server[0]}/0"
    record = WorkerRecord("decode-0", 7, "127.0.0.1:1", roles=["decode"])
    heartbeat = Heartbeat(url, "test", lambda: record, interval_s=0.05, ttl_s=60.0)
    heartbeat.start()

    async def find() -> list[WorkerRecord]:
        reader = RegistryReader(url, "test", 1.0)
        try:
            async with asyncio.timeout(60):
                while not (found := await reader.list_workers()):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
            return found
        finally:
            await reader.close()

    try:
        assert asyncio.run(find()) == [record]
    finally:
        heartbeat.close()
