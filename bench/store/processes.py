"""The processes of the bench: stores, and clients that are told what to measure."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 1 << 30
_START_S = 30.0
_ANSWER_S = 60.0
"""A client that says nothing for so long will not: one of Mooncake's once span for ten minutes."""


class ClientLost(Exception):
    """A client ended, or had to be ended since it did not answer."""


class Processes:
    """Starts processes and ends them all; their output goes to files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._closing = contextlib.ExitStack()

    def start(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a process."""
        log = self._closing.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | (env or {})
        )
        self._closing.callback(_end, process)
        return process

    def close(self) -> None:
        """End all."""
        self._closing.close()


class RemoteClient:
    """A `bench.store.client` process, and the servers that work for it."""

    def __init__(self, processes: Processes, spec: dict[str, Any], servers: list[int], env: dict[str, str]) -> None:
        self.name: str = spec["name"]
        self._servers = servers
        command = (sys.executable, "-m", "bench.store.client", json.dumps(spec))
        self._log = processes.folder / f"{self.name}.log"
        self._process = processes.start(self.name, *command, env=env)
        self._answer()

    def command(self, **fields: Any) -> dict[str, Any]:
        """Have it do something. Raises ClientLost."""
        assert self._process.stdin is not None
        began_s = sum(map(cpu_s, self._servers))
        self._process.stdin.write(json.dumps(fields) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer | {"server_cpu_s": sum(map(cpu_s, self._servers)) - began_s}

    def _answer(self) -> dict[str, Any]:
        """The next line that is JSON; Mooncake writes others."""
        assert self._process.stdout is not None
        patience = threading.Timer(_ANSWER_S, self._process.kill)
        patience.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
        finally:
            patience.cancel()
        raise ClientLost(f"{self.name} ended, or did not answer for {_ANSWER_S} s:\n{self._log.read_text()[-2000:]}")


def start_ours(processes: Processes, port: int) -> tuple[str, list[int]]:
    """One process of our store with all transports; returns its address and process ids."""
    flags = ("--port", str(port), "--segment-size", str(SEGMENT_BYTES), "--transport", "shm,ucx,tcp", "--roles", "node")
    process = processes.start("ours", sys.executable, "-m", "services.kvstore", *flags)
    _wait_for(port)
    return f"127.0.0.1:{port}", [process.pid]


def start_mooncake(processes: Processes, port: int, env: dict[str, str]) -> tuple[str, str, list[int]]:
    """A master and a node that lends memory; returns the addresses of both and their process ids."""
    spec = find_spec("mooncake")
    assert spec is not None and spec.origin is not None, "Mooncake is not installed"
    folder = Path(spec.origin).parent
    master = processes.start(
        f"mooncake-master-{port}",
        str(folder / "mooncake_master"),
        *(f"--rpc_port={port}", f"--metrics_port={port + 1}", "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"),
        "--logtostderr",
    )
    _wait_for(port)
    node = processes.start(
        f"mooncake-node-{port}",
        str(folder / "mooncake_client"),
        *("--host=127.0.0.1", f"--port={port + 2}", f"--master_server_address=127.0.0.1:{port}"),
        *("--metadata_server=P2PHANDSHAKE", f"--global_segment_size={SEGMENT_BYTES >> 20} MB", "--logtostderr"),
        env=env,
    )
    _wait_for(port + 2)
    return f"127.0.0.1:{port}", f"127.0.0.1:{port + 2}", [master.pid, node.pid]


def cpu_s(pid: int) -> float:
    """CPU seconds that the threads of a process have used."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # ended meanwhile
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _wait_for(port: int) -> None:
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}, see its log")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
