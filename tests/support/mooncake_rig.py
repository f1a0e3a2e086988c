"""A real Mooncake Store for tests: a master and a node that lends memory, each a process of its own.

They listen on every interface, so this runs in a network namespace of its own (tests/support/lonely_net.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from common.cache.mooncake_client import Client, connect
from common.cache.mooncake_config import MooncakeConfig

MASTER_PORT, METRICS_PORT = 51051, 51052
SEGMENT_BYTES = 16 << 20
CLIENT_TTL_S = 3
"""After so many silent seconds a node is forgotten by the master."""
CONFIG = MooncakeConfig(
    f"127.0.0.1:{MASTER_PORT}", master_metrics_port=METRICS_PORT, slab_bytes=1 << 20, staging_bytes=64 << 20
)
_LEND = """
import dataclasses, sys
from common.cache.mooncake_client import connect
from tests.support.mooncake_rig import CONFIG, SEGMENT_BYTES
client = connect(dataclasses.replace(CONFIG, segment_bytes=SEGMENT_BYTES))
print("lent", flush=True)
sys.stdin.read()
"""


class Rig:
    """The processes; made by `running`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closing = contextlib.ExitStack()
        self.start_master()
        self.start_node()

    def start_master(self) -> None:
        """Start a master, whose memory is empty, and wait until it answers."""
        spec = find_spec("mooncake")
        assert spec is not None and spec.origin is not None
        self.master = self._start(
            str(Path(spec.origin).with_name("mooncake_master")),
            f"--rpc_port={MASTER_PORT}",
            f"--metrics_port={METRICS_PORT}",
            f"--client_ttl={CLIENT_TTL_S}",
            "--rpc_address=127.0.0.1",
            "--metrics_host=127.0.0.1",
            "--logtostderr",
        )
        for port in (MASTER_PORT, METRICS_PORT):
            self._wait_for(port)

    def start_node(self) -> None:
        """Start a node and wait until its memory is in the store."""
        self.node = self._start(sys.executable, "-c", _LEND)
        assert self.node.stdout is not None
        line = self.node.stdout.readline()
        assert line == "lent\n", f"the node did not start: {line!r}, see {self._folder}"

    def stop(self) -> None:
        """End all, frozen ones too."""
        self._closing.close()

    def _start(self, *command: str) -> subprocess.Popen[str]:
        log = self._closing.enter_context((self._folder / f"{time.monotonic_ns()}.log").open("w"))
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self._closing.callback(kill, process)
        return process

    def _wait_for(self, port: int) -> None:
        ends_s = time.monotonic() + 20
        while True:
            assert self.master.poll() is None, f"the master ended, see {self._folder}"
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
                return
            assert time.monotonic() < ends_s, f"nothing listens on port {port}"
            time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    """End a process at once and reap it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def frozen(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop a process for a while."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Rig]:
    """A store that is up."""
    rig = Rig(folder)
    try:
        yield rig
    finally:
        rig.stop()


class KeptClient:
    """A client that outlives its stores, since opening and closing one takes seconds; `end` closes it."""

    def __init__(self) -> None:
        self._client = connect(CONFIG)
        self._registered: set[int] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """As the client's, but remembered."""
        self._registered.add(buffer_ptr)
        return self._client.register_buffer(buffer_ptr, size)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """As the client's."""
        self._registered.discard(buffer_ptr)
        return self._client.unregister_buffer(buffer_ptr)

    def close(self) -> int:
        """Only gives memory back."""
        for address in list(self._registered):
            self.unregister_buffer(address)
        return 0

    def end(self) -> None:
        """Close the client."""
        self._client.close()


def empty(client: Client) -> None:
    """Remove all objects."""
    assert client.remove_by_regex(".*", True) >= 0
